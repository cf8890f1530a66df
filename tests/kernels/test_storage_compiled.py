"""The storage kernels, compiled for GPUs that need not be there: wide accesses, no spills, reads before writes.

``MINIKV_LONG=1`` compiles every case for every GPU.
"""

import os

import pytest

from tests.kernels.subprocesses import rows_of

LONG = os.environ.get("MINIKV_LONG", "0") not in ("", "0")


@pytest.fixture(scope="module")
def rows():
    return rows_of("tests.kernels.storage_compiled", *(["all"] if LONG else []))


def test_every_kind_of_gpu_is_compiled_for(rows):
    assert {row["capability"] for row in rows} == {75, 80, 89, 90, 100}
    assert len(rows) == (70 if LONG else 7)


def test_no_register_spills(rows):
    assert [row for row in rows if row["stack"]] == []


def test_numbers_are_written_16_bytes_at_a_time(rows):
    """All but the scales, of which each row has one."""
    for row in rows:
        stores = [bits for kind, bits in row["accesses"] if kind == "STG"]
        assert 128 in stores
        scaled = row["name"] in ("store float8_e4m3fn", "store int8")
        assert {bits for bits in stores if bits != 128} <= ({32} if scaled else set()), row


def test_numbers_are_read_16_bytes_at_a_time(rows):
    """The others are slots and blocks: one for each row that a thread has a part of."""
    for row in rows:
        loads = [bits for kind, bits in row["accesses"] if kind == "LDG"]
        assert loads.count(128) >= [bits for kind, bits in row["accesses"] if kind == "STG"].count(128)


def test_a_move_reads_everything_before_it_writes_anything(rows):
    """Every load, then the barrier, then every store: what makes one launch enough where a program holds all pairs."""
    moves = [row for row in rows if row["name"].startswith(("copy", "move"))]
    assert moves
    for row in moves:
        kinds = [kind for kind, _ in row["accesses"]]
        first_store = kinds.index("STG")
        assert "LDG" not in kinds[first_store:], row
        assert kinds[first_store - 1] == "BAR", row
