"""The kernels of lesson 10 compile for a free Colab T4 and for an H200, and fit them."""

import importlib.util

import pytest

from tests.kernels.subprocesses import rows_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here"),
]


def test_no_kernel_spills():
    rows = rows_of("tests.course.lessons.l10_compiled")
    assert len(rows) == 5
    for row in rows:
        assert row["stack"] == 0, row
        assert row["registers"] <= 255, row
        assert row["shared_bytes"] <= 64 * 1024, row
