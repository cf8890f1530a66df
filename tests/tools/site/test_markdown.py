"""Markdown becomes HTML that needs neither a script nor a font."""

import pytest

from tools.site.api import said_html
from tools.site.markdown import Prose, code_html


def prose(text: str) -> tuple[str, Prose]:
    made = Prose(lambda address: address.upper())
    return made.html(text), made


def test_a_formula_is_mathml_and_an_amount_of_money_is_none():
    html, _ = prose("It takes $2 \\cdot L$ bytes.\n\n$$\\frac{a}{b}$$\n\nFrom $5 to $6.\n")
    assert html.count("<math") == 2
    assert "<mfrac>" in html
    assert "From $5 to $6." in html


def test_a_formula_that_begins_its_text_is_one_whatever_ends_it():
    html, _ = prose("$v$ = 1, 2, 3, 4\n")
    assert html.count("<math") == 1
    assert "$" not in html


@pytest.mark.parametrize(
    "formula", [r"\Big\lceil \frac{n}{s} \Big\rceil", r"\text{block\_bytes}", r"\lceil x \rceil"]
)
def test_no_command_of_latex_is_shown_as_text(formula):
    html, _ = prose(f"$${formula}$$\n")
    assert "<math" in html
    assert "\\" not in html


def test_a_long_formula_of_a_line_can_be_scrolled():
    html, _ = prose(f"So ${' + '.join('abcdefghijklm')}$, and $n$.\n")
    assert html.count('<span class="formula" tabindex="0"><math') == 1
    assert html.count("<math") == 2


def test_headings_of_one_page_have_different_places_also_in_another_part():
    made = Prose(str)
    html = made.html("## Read it, twice\n\n## Read `it`, twice\n") + made.html(
        "## Read it, twice\n\n### 问题\n"
    )
    assert [one.key for one in made.headings] == [
        "read-it-twice",
        "read-it-twice-1",
        "read-it-twice-2",
        "问题",
    ]
    assert all(f'id="{one.key}"' in html for one in made.headings)
    assert [one.level for one in made.headings] == [2, 2, 2, 3]


@pytest.mark.parametrize(
    "text",
    ["[a](b)", "![a](b)", '<a href="b">a</a>', 'a <img src="b"> a', "<details>\n\n[a](b)\n\n</details>"],
)
def test_every_address_is_asked_for(text):
    assert '="B"' in prose(text)[0]


def test_code_is_coloured_and_reached_by_keyboard():
    html, _ = prose("```python\nimport minikv  # < 1\n```\n")
    assert '<span class="kn">import</span>' in html
    assert "&lt; 1" in html
    assert 'tabindex="0"' in html
    assert "no such language" in code_html("no such language", "made-up")


def test_a_docstring_keeps_its_paragraphs_lists_and_examples():
    html = said_html("First ``x < y``.\n\n- one\n  more\n- two\n\n>>> 1 + 1\n2\n")
    assert html.startswith("<p>First <code>x &lt; y</code>.</p>")
    assert "<ul><li>one more</li><li>two</li></ul>" in html
    assert "<pre" in html
