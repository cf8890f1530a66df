"""The kernel of a prefill's sums, compiled for GPUs that need not be there: it fits, nothing spills, tensor cores.

``MINIKV_LONG=1`` compiles every listed case; otherwise those that a change would most likely break.
"""

import os

import pytest

from minikv.kernels.gpu.ahead import SHARED_KIB
from tests.kernels.subprocesses import rows_of
from tests.kernels.sums_compiled import EVERY_TIME, ON_REQUEST

LONG = os.environ.get("MINIKV_LONG", "0") not in ("", "0")


@pytest.fixture(scope="module")
def rows():
    return rows_of("tests.kernels.sums_compiled", *(["all"] if LONG else []))


def test_every_case_compiles_from_turing_to_blackwell(rows):
    assert len(rows) == len(EVERY_TIME) + (len(ON_REQUEST) if LONG else 0)
    assert {75, 80, 89, 90, 120} <= {row["capability"] for row in rows}
    assert {row["name"] for row in rows} == {"column_sums_kernel"}


def test_no_register_spills(rows):
    assert [row for row in rows if row["stack"]] == []
    assert all(row["registers"] <= 255 for row in rows)


def test_shared_memory_fits_the_gpu(rows):
    assert [row for row in rows if row["shared_bytes"] > SHARED_KIB[row["capability"]] * 1024] == []


def test_tensor_cores_multiply_where_there_are_some(rows):
    """Not for float32, which keeps all its bits, and not on Turing, for which Triton has no such instruction."""
    able = [row for row in rows if row["capability"] >= 80 and not row["float32"]]
    assert able
    assert [row for row in able if not row["tensor_cores"]] == []
