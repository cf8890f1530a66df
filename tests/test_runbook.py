"""The runbook: every command runs and shows the symptom that it is listed under, in both languages alike."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.cli.inside import Terminal

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"en": "runbook.md", "zh": "runbook.zh.md"}
SECTION = re.compile(r"^## (\d+)\. ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
PARTS = {"en": ("**Read**:", "**Fix**:", "**Lesson**:"), "zh": ("**怎么读**：", "**怎么改**：", "**课程**：")}


def sections(lang):
    text = (DOCS / PAGES[lang]).read_text(encoding="utf-8")
    return {int(number): body for number, _, body in SECTION.findall(text)}


def command(number):
    """(kind, text) of the symptom's command, and the files that it reads."""
    blocks = BLOCK.findall(sections("en")[number])
    return next(block for block in blocks if block[0] != "text"), [
        text for kind, text in blocks if kind == "text"
    ]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """``run(3)`` is (exit code, what the command of symptom 3 prints); ``change`` edits the command first."""
    monkeypatch.chdir(tmp_path)

    def run(number, change=lambda text: text):
        (kind, text), files = command(number)
        for content in files:
            (tmp_path / "server.log").write_text(content)
        if kind == "python":
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile(change(text), f"symptom {number}", "exec"), {"__name__": "symptom"})
            return 0, out.getvalue()
        words = shlex.split(change(text))
        assert words[0] == "minikv"
        done = Terminal(monkeypatch)(*words[1:])
        return done.code, done.out + done.err

    return run


def test_both_languages_have_the_same_symptoms_and_commands():
    assert list(sections("en")) == list(sections("zh")) == list(range(1, 12))
    for number in sections("en"):
        assert BLOCK.findall(sections("en")[number]) == BLOCK.findall(sections("zh")[number])


@pytest.mark.parametrize("lang", PAGES)
def test_every_symptom_says_how_to_read_it_what_to_change_and_a_lesson_that_exists(lang):
    for body in sections(lang).values():
        places = [body.find(part) for part in PARTS[lang]]
        assert -1 not in places
        assert places == sorted(places)
        links = re.findall(r"\]\((\.\./[^)]+\.ipynb)\)", body)
        assert links
        for link in links:
            assert f"/notebooks/{lang}/" in link
            source = (DOCS / link).resolve().stem
            assert (DOCS.parent / "notebooks" / "src" / f"{source}.py").is_file(), link


def number(label, said):
    """The figure behind ``label``, a regular expression: "1,336.6" where a machine is fast."""
    return float(re.search(rf"{label} +([\d.,]+)", said)[1].replace(",", ""))


def test_1_names_every_term_of_a_model_that_does_not_fit(run):
    code, said = run(1)
    assert code == 2
    assert "does not fit" in said
    assert "weights 14.96 GiB" in said


def test_2_names_the_context_that_fits(run):
    code, said = run(2)
    assert code == 0
    most = int(re.search(r"at most ([\d,]+) tokens each", said)[1].replace(",", ""))
    assert 30_000 < most < 131_072
    code, said = run(2, lambda text: text.replace("131072", str(most)))
    assert "they fit" in said


def test_3_shows_that_activations_follow_the_chunk(run):
    def activations(chunk):
        _, said = run(3, lambda text: text.replace("32768", str(chunk)))
        return number(r"activations[^\n]*?tokens", said)

    assert activations(32_768) > 3 * activations(8_192)


def test_4_prints_the_figures_that_it_speaks_of(run):
    _, said = run(4)
    for figure in ("allocated", "reserved", "non_torch"):
        assert figure in said


def test_5_is_a_storm(run):
    code, said = run(5)
    assert code == 0
    assert int(re.search(r"preemptions +(\d+)", said)[1]) >= 1
    assert re.search(r"at the most +100\.0%", said)
    figures = {name: number(name, said) for name in ("tokens/s", "computed/s")}
    assert figures["computed/s"] > 2 * figures["tokens/s"]


def test_6_shows_beginnings_that_push_each_other_out(run):
    _, said = run(6)
    few, many = (line.split() for line in said.strip().splitlines())
    assert (few[0], many[0]) == ("100", "300")
    assert int(few[1].rstrip("%")) < 10 < 80 < int(many[1].rstrip("%"))
    assert int(many[2]) == 0 < int(few[2])


def test_7_names_the_failure(run):
    assert "window_small" in run(7)[1]
    _, said = run(7, lambda text: text.replace('"h2o"', '"tova"').replace("n_recent=1)", "n_recent=16)"))
    assert "window_small" not in said


def test_8_names_who_holds_it(run):
    _, said = run(8)
    assert "answers[0]" in said
    assert "4,000,000 B" in said


def test_9_says_that_the_books_are_right_and_finds_them_wrong(run):
    assert "the books are right" in run(9)[1]
    from minikv.errors import BrokenInvariantError

    with pytest.raises(BrokenInvariantError, match="counted for"):
        run(
            9,
            lambda text: text.replace("manager.check_inv", "manager.pools[0].share([0]); manager.check_inv"),
        )


def test_10_judges_the_log(run):
    code, said = run(10)
    assert code == 0
    assert "agrees" in said
    code, said = run(10, lambda text: text.replace("Llama-3.1-8B", "Llama-2-7B"))
    assert "tp=4" in said, "the log of another model: it says what would have to be so"


def test_11_shows_a_cache_that_grows_beside_one_that_does_not(run):
    _, said = run(11)
    few, many = (line.split() for line in said.splitlines() if line.endswith("B of K"))
    assert int(few[0]) < int(many[0]) == 96 + 24 - 1
    assert int(few[2]) < int(many[2])
    assert "cache_grows" in said
