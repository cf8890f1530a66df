"""The style sheets: colours of the palette or of the page, and few rules for an output that carries its own."""

import re

import pytest

from minikv.look import CODE_COLOURS, MEANINGS, NEUTRAL, SEQUENCES, report_style, stylesheet
from minikv.look.palette import GROUNDS
from minikv.look.vision import contrast

HEAD = "<table><caption></caption><thead><tr><th></th></tr></thead>"
TABLE = f'{HEAD}<tbody><tr><td align="right"></td></tr></tbody></table>'
BARS = '<td aria-hidden="true"><span style="--share:50%"></span></td>'
SENTENCES = '<div class="minikv-line minikv-note"></div>'
CODE = '<p><a href="#"></a></p><details><summary></summary><pre></pre></details><span class="keyword comment"></span>'
LIST = '<ol><li><div class="minikv-skipped"></div></li></ol>'
BODY = TABLE + BARS + SENTENCES + CODE + LIST
KINDS = ("", "source", "flow")
FILLS = {NEUTRAL, *SEQUENCES, *(meant.fill for meant in MEANINGS.values())}
# The page's own colour, and another one where it names none, mixed with the ink of the page or as it is.
OF_THE_PAGE = re.compile(
    r"var\(--(?:jp|colab)[\w-]*, *(?:#\w+|color-mix\(in srgb, *#\w+ 60%, *currentColor\))\)"
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_has_the_colours_of_the_palette_and_of_the_page(kind):
    rules = report_style(BODY, kind)
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", OF_THE_PAGE.sub("", rules))) <= FILLS
    assert "--minikv" not in rules, "a variable that an output alone does not have"
    assert "url(" not in rules
    assert "\n" not in rules


@pytest.mark.parametrize("kind", KINDS)
def test_its_rules_count_for_nothing_else_on_the_page(kind):
    rules = report_style(BODY, kind).removeprefix("<style>").removesuffix("</style>")
    inside = re.compile(r"{[^{}]*}")
    while "{" in rules:
        outer, rules = rules, inside.sub("\n", rules)
    assert outer.count("{") in (1, 2, 3)
    assert all(block.startswith(".minikv-") for block in rules.split("\n") if block)


def test_an_output_carries_the_rules_that_it_needs():
    """A notebook of at most 300 KB has up to forty outputs with a style."""
    assert len(report_style(TABLE + BARS + SENTENCES)) < 1024
    of_table, of_sentences = report_style(TABLE), report_style(SENTENCES)
    assert "text-align:right" in of_table
    assert "minikv-line" not in of_table
    assert "minikv-line" in of_sentences
    assert "table" not in of_sentences
    assert len(of_sentences) < 500


def test_a_token_of_code_can_be_read_where_the_page_names_no_colour():
    for name, colour in CODE_COLOURS.items():
        fallback = re.search(r"#\w{6}", colour)[0]
        assert min(contrast(fallback, ground) for ground in GROUNDS.values()) > 4, name


def test_widgets_and_reports_have_the_same_ink_lines_and_type():
    for said in ("var(--jp-ui-font-color1", "var(--jp-border-color2", "14px/1.45 var(--jp-ui-font-family"):
        assert said in stylesheet()
        assert said in report_style(BODY).replace(",", ", ") or said in report_style(BODY)
