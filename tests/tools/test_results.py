"""RESULTS.md and RESULTS.zh.md say what the files of figures say, and nothing else."""

import json
import re

import pytest

from tools.highlights import READMES, filled, table
from tools.results import PAGES, RESULTS, ROOT, WORDS, chinese, load, number, pages, text_of


def test_results_md_and_the_readmes_are_what_the_files_say():
    texts = pages(load(ROOT / RESULTS))
    assert {path.name for path in texts} == {*PAGES.values(), *READMES.values()}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, path.name


@pytest.mark.parametrize("lang", READMES)
def test_what_a_readme_shows_of_a_row_follows_the_row(lang):
    results = load(ROOT / RESULTS)
    row = next(row for row in results["kv_bytes"]["rows"] if "160 tokens at once, int8" in row["claim"])
    row |= {"ours": 12345.0, "holds": False}
    assert "12,345" in table(results, lang)
    assert table(results, lang).count("**") == 2 * sum(
        "**" in line for line in table(results, lang).splitlines()
    )
    results["kv_bytes"]["rows"].append(row)
    with pytest.raises(LookupError, match="2 rows"):
        table(results, lang)
    for readme in ("no place", "<!-- results -->\n<!-- /results -->\n" * 2):
        with pytest.raises(LookupError, match="places"):
            filled(readme, load(ROOT / RESULTS), lang)


@pytest.mark.parametrize("lang", PAGES)
def test_every_row_of_every_file_is_told(lang):
    text = text_of(load(ROOT / RESULTS), lang)
    holds, short = (re.escape(WORDS[lang][mark]) for mark in ("holds", "short"))
    files = [json.loads(path.read_text()) for path in (ROOT / RESULTS).glob("*.json")]
    rows = [row for told in files for row in told["rows"] if "claim" in row]
    assert len(re.findall(rf"\| ({holds}|{short}) \|$", text, re.M)) == len(rows)
    assert text.count(WORDS[lang]["short"]) == sum(not row["holds"] for row in rows)


def test_the_chinese_page_has_the_figures_of_the_english_one_and_says_every_goal():
    results = load(ROOT / RESULTS)
    english, page = (text_of(results, lang).splitlines() for lang in PAGES)
    shown = [[line for line in lines if line.count("|") == 7] for lines in (english, page)]
    assert len(shown[0]) == len(shown[1])
    for one, other in zip(*(iter(lines) for lines in shown), strict=True):
        if "---" not in one and "claim" not in one:
            cells = [[cell.strip() for cell in line.split(" | ")] for line in (one, other)]
            assert cells[0][0] == cells[1][0]
            assert re.findall(r"[\d.,]+", cells[0][1])[:1] == re.findall(r"[\d.,]+", cells[1][1])[:1]
            assert cells[0][3] == cells[1][3]
            assert re.search(r"[\u4e00-\u9fff]", cells[1][4]), cells[1][4]
    assert {name.removesuffix(".cuda") for name in results} <= chinese()["benchmarks"].keys()


@pytest.mark.parametrize(
    ("value", "text"),
    [(float("nan"), ""), (0, "0"), (0.123456, "0.1235"), (9999, "9999"), (1234567.8, "1,234,568")],
)
def test_numbers_have_four_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize("lang", READMES)
def test_a_file_that_was_not_measured_has_no_rows_in_a_readme(lang):
    results = load(ROOT / RESULTS)
    rows = table(results, lang).count("\n")
    gone = table({name: told for name, told in results.items() if name != "engine"}, lang)
    assert gone.count("\n") == rows - 3
    assert "benchmarks.engine`" not in gone


def test_rates_of_engines_that_ran_together_stand_side_by_side_once_a_load():
    rates = {"a": {"ours": 1234.0, "theirs": 99.0}, "b|c": {"ours": 5.0}}
    shares = {"a": {"ours": 0.5, "theirs": 0.0401}, "b|c": {"ours": 1.0}}
    row = {"ours": 1.0, "peer": 1.0, "ratio": 1.0, "unit": "s", "goal": "g", "holds": True, "peer_name": "p"}
    rows = [
        row | {"claim": each, "details": {"tokens/s": rates[each], "share of the floor": shares[each]}}
        for each in ("a", "a", "b|c")
    ]
    told = {"device": "d", "versions": {}, "rows": [*rows, row | {"claim": "d"}]}
    text = text_of({"x": told})
    together = ["| | ours | theirs |", "|---|---|---|", "| a | 1234 (50.0%) | 99 (4.0%) |"]
    alone = ["| | ours |", "|---|---|", "| b\\|c | 5 (100.0%) |"]
    for lines in (together, alone):
        assert "\n".join(["", *lines, ""]) in text
    assert "Tokens a second" not in text_of({"x": told | {"rows": [row | {"claim": "d"}]}})


def test_what_was_cut_says_so_and_pipes_do_not_break_the_table():
    row = {
        "claim": "a|b",
        "ours": 1.0,
        "peer": 0.0,
        "ratio": float("nan"),
        "unit": "s",
        "goal": "g",
        "holds": True,
    }
    told = {"device": "d", "versions": {"torch": "2"}, "complete": False, "rows": [row | {"peer_name": "p"}]}
    text = text_of({"x.cuda": told, "y": told})
    assert "Not every section" in text
    assert "a\\|b" in text
    assert "python -m tools.gpu --part x`" in text
    assert "python -m benchmarks.y`" in text
    assert "(#xcuda)" in text
