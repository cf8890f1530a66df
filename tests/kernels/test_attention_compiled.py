"""The attention kernels, compiled for GPUs that need not be there: they fit, nothing spills, the right instructions.

``MINIKV_LONG=1`` compiles every listed case; otherwise those that a change would most likely break.
"""

import os

import pytest

from minikv.kernels.gpu.ahead import SHARED_KIB
from tests.kernels.attention_compiled import EVERY_TIME, ON_REQUEST
from tests.kernels.subprocesses import rows_of

LONG = os.environ.get("MINIKV_LONG", "0") not in ("", "0")
COUNT = len(EVERY_TIME) + (len(ON_REQUEST) if LONG else 0)


@pytest.fixture(scope="module")
def rows():
    return rows_of("tests.kernels.attention_compiled", *(["all"] if LONG else []))


def test_every_case_compiles(rows):
    assert len(rows) == COUNT
    assert len(EVERY_TIME) <= 17  # with those of the storage kernels at most 24


def test_no_register_spills(rows):
    assert [row for row in rows if row["stack"]] == []
    assert all(row["registers"] <= 255 for row in rows)


def test_shared_memory_fits_the_gpu(rows):
    assert [row for row in rows if row["shared_bytes"] > SHARED_KIB[row["capability"]] * 1024] == []


def test_tensor_cores_multiply_where_there_are_some(rows):
    """Not for float32, which keeps all its bits, and not on Turing, for which Triton has no such instruction."""
    able = [row for row in rows if row["capability"] >= 80 and not row["float32"]]
    assert len(able) > len(rows) / 2
    assert [row for row in able if not row["tensor_cores"]] == []


def test_keys_are_copied_16_bytes_at_a_time_in_the_background(rows):
    able = [row for row in rows if row["capability"] >= 80 and row["num_stages"] > 1]
    assert [row for row in able if not row["async_copies"]] == []
    assert [row for row in rows if row["narrow_loads"] and row["capability"] >= 80] == []
