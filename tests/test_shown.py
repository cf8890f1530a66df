"""What an object says of itself where a cell ends in it: one short line, a plain table, the same in both languages.

Every class of the package that has a ``shown`` is made here once, under a model name that is out for trouble.
"""

import re
from html.parser import HTMLParser

import pytest

from minikv.errors import ArgumentError
from minikv.plan import CacheSpec, LayerSpec, plan_memory
from minikv.shown import LONGEST_LINE, Shown, one_line

HOSTILE = '<script>alert("1")</script>&<b>\n' + "x" * 200
VOID = {"br", "hr", "img", "meta", "link", "input"}


def hostile_spec(**changes):
    """The cache of a small model with that name: full, sliding and latent layers."""
    layers = (
        LayerSpec("full", 2, 16, 16),
        LayerSpec("sliding", 2, 16, 16, window=32),
        LayerSpec("full", 2, 16, 16),
    )
    return CacheSpec(
        **{"layers": layers, "name": HOSTILE, "model_type": "<i>", "max_positions": 8192} | changes
    )


def a_latent_spec():
    return hostile_spec(layers=(LayerSpec("latent", 1, 64, 8), LayerSpec("linear", state_bytes=4096)))


def a_budget():
    from dataclasses import replace

    return replace(plan_memory("Llama-3.1-8B", gpu="H200", batch=8), spec=hostile_spec())


MAKERS = {"CacheSpec": hostile_spec, "CacheSpec of MLA": a_latent_spec, "MemoryBudget": a_budget}


@pytest.fixture(params=MAKERS, scope="module")
def shown_object(request):
    return MAKERS[request.param]()


class Page(HTMLParser):
    """Reads HTML, and refuses tags that do not match."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def figures(text):
    """Every number in it, in any order: a sentence may name them in another one."""
    return sorted(number.strip(".,").replace(",", "") for number in re.findall(r"[0-9][0-9.,]*", text))


def test_its_repr_is_one_short_line_without_an_address(shown_object):
    line = repr(shown_object)
    assert line.startswith(f"<{type(shown_object).__name__}")
    assert line.endswith(">")
    assert len(line) <= LONGEST_LINE
    assert line.isprintable()
    assert "0x" not in line
    assert re.search("[0-9]", line)


def test_its_html_is_a_table_that_asks_for_nothing(shown_object):
    html = shown_object._repr_html_()
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= set("div table caption thead tbody tr th td span".split())
    assert "http" not in html
    assert "url(" not in html
    assert len(page.all("table")) == len(page.all("caption")) == 1
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))
    assert all(name in ("style", "class", "scope", "aria-hidden") for _, found in page.tags for name in found)


def test_its_html_has_no_colour_of_its_own(shown_object):
    """On white and on black alike the notebook's text colour is the one that can be read."""
    styles = " ".join(found.get("style", "") for _, found in Page(shown_object._repr_html_()).tags)
    told = dict.fromkeys(re.findall(r"(?:^|[ ;])((?:background|border|color)[a-z-]*:[^;]+)", styles))
    assert set(told) <= {"background:currentColor", "border-collapse:collapse", "color:inherit"}


def test_a_name_is_text_not_a_tag(shown_object):
    words = " ".join(Page(shown_object._repr_html_()).words)
    if HOSTILE[:20] in shown_object.text():
        assert HOSTILE[:20] in words


def test_both_languages_say_the_same_figures(shown_object):
    english, chinese = shown_object.text("en"), shown_object.text("zh")
    assert figures(english) == figures(chinese)
    assert re.search("[\u4e00-\u9fff]", chinese)
    assert not re.search("[\u4e00-\u9fff]", english)


def test_html_and_text_say_the_same_figures(shown_object):
    for lang in ("en", "zh"):
        words = " ".join(Page(shown_object.shown(lang)._repr_html_()).words)
        assert figures(words) == figures(shown_object.text(lang))


def test_a_language_that_is_not_ours_is_refused(shown_object):
    for say in (shown_object.text, shown_object.shown):
        with pytest.raises(ArgumentError, match="fr"):
            say("fr")


def test_a_chinese_cell_ends_in_the_chinese_table():
    shown = hostile_spec().shown("zh")
    assert isinstance(shown, Shown)
    assert repr(shown) == shown.text()
    assert "层数" in shown._repr_html_()


def test_a_line_keeps_its_figures_where_the_name_is_long():
    line = one_line("CacheSpec", "a" * 300, "32 layers", "128.00 KiB a token")
    assert len(line) == LONGEST_LINE
    assert line.endswith("a: 32 layers, 128.00 KiB a token>")
    assert "…" in line
    assert one_line("X", "\n\x1b[31m", "1") == "<X \\n\\x1b[31m: 1>"
    assert len(one_line("X", "name", "9" * 500)) == LONGEST_LINE


def test_what_a_reader_saw_before_was_longer_than_a_screen():
    """The two that printed 7,391 and 6,232 characters."""
    budget = plan_memory("Llama-3.1-8B", gpu="H200")
    assert repr(budget) == (
        "<MemoryBudget Llama-3.1-8B on 1 x H200 SXM: "
        "KV 108.95 GiB, 55,781 blocks of 16 tokens, 1 x 4,096 tokens fit>"
    )
    assert repr(budget.spec) == "<CacheSpec Llama-3.1-8B: 32 layers, 128.00 KiB a token, KV in bf16, tp=1>"
