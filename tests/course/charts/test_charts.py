"""Charts: every value is in the figure and in the text, series differ without colours."""

import pytest

from minikv.course import show
from minikv.course.charts import bars, heat_map, lines


def test_lines_hold_their_values():
    chart = lines({"a": {1: 10, 2: 20.5}, "b": {1: 1234567}}, x="tokens", y="bytes", points=["b"])
    first, second = chart.figure.data
    assert (list(first.x), list(first.y), first.mode) == ([1, 2], [10, 20.5], "lines")
    assert (list(second.y), second.mode) == ([1234567], "markers")
    assert chart.text() == "bytes / tokens\na: 1 -> 10, 2 -> 20.5\nb: 1 -> 1,234,567"


def test_a_long_series_says_its_ends():
    text = lines({"a": {n: n * n for n in range(1000)}}, x="n", y="square").text()
    assert "a: 0 -> 0, " in text
    assert text.endswith("999 -> 998,001")
    assert text.count("->") == 8


def test_marks_and_levels_are_drawn_and_said():
    chart = lines({"a": {1: 1}}, x="n", y="ms", marks={"here": 3}, levels={"limit": 0.25})
    assert [shape.line.dash for shape in chart.figure.layout.shapes] == ["dash", "dash"]
    assert chart.text().endswith("here: 3\nlimit: 0.25")


def test_words_stand_at_their_line_on_a_logarithmic_axis():
    chart = lines({"a": {1: 1, 10_000: 5}}, x="n", y="ms", log="x", marks={"here": 100})
    assert (chart.figure.layout.shapes[0].x0, chart.figure.layout.annotations[0].x) == (100, 2)
    assert chart.figure.layout.xaxis.ticktext == ("1", "10,000")


def test_lines_differ_without_their_colours():
    chart = lines({name: {1: 1} for name in "abcde"}, x="x", y="y")
    assert len({line.line.dash for line in chart.figure.data}) == 5


@pytest.mark.parametrize("stacked", [False, True])
def test_bars_hold_their_values_and_differ_without_colours(stacked):
    chart = bars(
        ["one", "two"], {"K": [1, 2], "V": [3, 4]}, x="bytes", stacked=stacked, looks=["k", "v"], unit="B"
    )
    assert [list(bar.x) for bar in chart.figure.data] == [[1, 2], [3, 4]]
    assert len({bar.marker.pattern.shape for bar in chart.figure.data}) == 2
    assert chart.text().splitlines()[1:] == ["     K  V", "one  1  3", "two  2  4"]


def test_show_prints_its_text_outside_of_a_notebook(capsys):
    show(lines({"a": {1: 10}}, x="tokens", y="bytes"), caption="Below.")
    assert capsys.readouterr().out == "bytes / tokens\na: 1 -> 10\nBelow.\n"


def test_a_grid_holds_its_values_under_names_that_may_repeat():
    chart = heat_map([[0, 1.5], [2, 30]], rows=["a", "b"], columns=["one", "one"], x="token", y="layer")
    assert [list(row) for row in chart.figure.data[0].z] == [[0, 1.5], [2, 30]]
    assert chart.figure.layout.xaxis.ticktext == ("one", "one")
    assert chart.text().splitlines() == ["layer / token", "   one  one", "a       1.5", "b    2   30"]


def test_an_axis_speaks_no_prefixes_of_plotly():
    chart = lines({"a": {10.0**n: 10.0**n for n in range(-6, 10)}}, x="n", y="FLOPs", log="xy")
    for axis in (chart.figure.layout.xaxis, chart.figure.layout.yaxis):
        words = dict(zip(axis.tickvals, axis.ticktext, strict=True))
        assert [words[10.0**n] for n in (-6, -4, 0, 5, 9)] == ["10⁻⁶", "0.0001", "1", "100,000", "10⁹"]
    chart = lines({"a": {1: 0.00002, 2: 0.004}}, x="n", y="s", log="y")
    assert {"2·10⁻⁵", "0.0005", "0.005"} <= set(chart.figure.layout.yaxis.ticktext)
    for linear in (lines({"a": {1: 50_000}}, x="n", y="B"), bars(["one"], {"K": [50_000]}, x="B")):
        axes = (linear.figure.layout.xaxis, linear.figure.layout.yaxis)
        assert any(axis.exponentformat == "none" and axis.separatethousands for axis in axes)


def test_every_value_lies_between_two_ticks_of_a_logarithmic_axis():
    for values in ([3], [0.0007, 0.3], [8, 9e9], [0, 5]):
        chart = lines({"a": dict(enumerate(values, 1))}, x="n", y="s", log="y")
        ticks = chart.figure.layout.yaxis.tickvals
        assert min(ticks) <= min(value for value in values if value) <= max(values) <= max(ticks)


def test_an_axis_that_begins_above_zero_does_so_where_it_was_asked_to():
    assert lines({"a": {1: 70}}, x="n", y="GiB", y_from=60).figure.layout.yaxis.range == (60, None)
    assert lines({"a": {1: 70}}, x="n", y="GiB").figure.layout.yaxis.rangemode == "tozero"


def test_words_on_bars_are_said_beside_the_values():
    chart = bars(["one"], {"K": [1.5], "V": [2]}, x="s", stacked=True, words={"K": ["43%"], "V": ["57%"]})
    assert [list(bar.text) for bar in chart.figure.data] == [["43%"], ["57%"]]
    assert chart.text().splitlines()[1:] == ["             K        V", "one  1.5 (43%)  2 (57%)"]


def test_names_that_look_like_numbers_are_names():
    axis = bars(["100%", "40%"], {"K": [1, 2]}, x="s").figure.layout.yaxis
    assert (axis.type, axis.autorange) == ("category", "reversed")
