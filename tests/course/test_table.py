"""Table: figures as a cell's last line, the same in HTML and in text."""

import re

import numpy as np
import pytest

from minikv.course import Table
from minikv.errors import ArgumentError


def test_numbers_are_aligned_and_said_with_commas():
    table = Table(["dtype", "bytes a token"], [["float32", 524_288], ["int8", 131_072]], title="Llama")
    assert table.text() == "Llama\ndtype    bytes a token\nfloat32        524,288\nint8           131,072"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1234.6, "1,235"),
        (999.7, "1,000"),  # not 1e+03
        (12.345, "12.3"),
        (2.0**40, "1,099,511,627,776"),
        (float("inf"), "inf"),
        (0.0625, "0.0625"),
        (1e-7, "1e-07"),
        (None, ""),
        (True, "True"),
        (np.bool_(False), "False"),
        (np.int64(131_072), "131,072"),
        (np.float32(0.1), "0.1"),
        (7, "7"),
    ],
)
def test_a_value_is_said_with_the_digits_that_count(value, said):
    line = Table(["a", "b"], [["x", value]]).text().splitlines()[1]
    assert line.split() == ["x", said][: 1 + bool(said)]


def test_html_has_a_head_each_figure_and_escapes():
    page = Table(["<b>", "n"], [["<i>", 1_000]])._repr_html_()
    assert "<i>" not in page
    assert "<b>" not in page
    assert re.findall(r"<t[dh][^>]*>([^<]+)<", page) == ["&lt;b&gt;", "n", "&lt;i&gt;", "1,000"]
    assert "<caption" not in page


def test_right_aligns_strings_that_are_figures():
    assert (
        Table(["a", "share"], [["x", "5 %"], ["y", "100 %"]], right=["share"]).text().splitlines()[1]
        == "x    5 %"
    )


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="Row 1 has 1 values"):
        Table(["a", "b"], [["x", 1], ["y"]])
    with pytest.raises(ArgumentError, match="No column is called 'c'"):
        Table(["a"], [["x"]], right=["c"])
