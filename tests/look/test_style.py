"""The style sheets: colours of the palette or of the page, and rules that count for no other output."""

import re

import pytest

from minikv.look import CODE_COLOURS, MEANINGS, NEUTRAL, SEQUENCES, report_style, stylesheet
from minikv.look.palette import GROUNDS
from minikv.look.vision import contrast

KINDS = ("", "source", "flow")
FILLS = {NEUTRAL, *SEQUENCES, *(meant.fill for meant in MEANINGS.values())}
PAGES = re.compile(
    r"var\(--(?:jp|colab)[\w-]*, *#\w+\)"
)  # the page's own colour, and another where it names none


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_has_the_colours_of_the_palette_and_of_the_page(kind):
    rules = report_style(kind)
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", PAGES.sub("", rules))) <= FILLS
    assert "--minikv" not in rules, "a variable that an output alone does not have"
    assert "url(" not in rules
    assert "\n" not in rules


@pytest.mark.parametrize("kind", KINDS)
def test_its_rules_are_those_of_its_own_classes(kind):
    rules = re.sub(r"</?style>", "", report_style(kind))
    outer = re.sub(r"(?<=\{)[^{}]*(?:\{[^{}]*\}[^{}]*)*(?=\})", "", rules)
    assert all(
        one.startswith((".minikv-shown", ".minikv-source", ".minikv-flow"))
        for one in outer.split("{}")
        if one
    )


def test_a_report_carries_little():
    """A notebook of 300 KB has up to forty reports."""
    assert len(report_style()) < 1024
    assert report_style().startswith("<style>")
    assert report_style().endswith("</style>")


def test_a_token_of_code_can_be_read_where_the_page_names_no_colour():
    for name, colour in CODE_COLOURS.items():
        fallback = re.search(r"#\w{6}", colour)[0]
        assert min(contrast(fallback, ground) for ground in GROUNDS.values()) > 4, name


def test_widgets_and_reports_have_the_same_ink_lines_and_type():
    for said in ("var(--jp-ui-font-color1", "var(--jp-border-color2", "14px/1.45 var(--jp-ui-font-family"):
        assert said in stylesheet()
        assert said in report_style()
