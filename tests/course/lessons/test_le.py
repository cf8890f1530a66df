"""Appendix E: every formula has its row, its shown value and its lesson; the values are those of plain arithmetic."""

import json
import math
import re
from functools import cache
from pathlib import Path

import pytest

from minikv.i18n import LANGUAGES

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| (\d+) \| .* \| (.*) \|$", re.MULTILINE)
LINE = re.compile(r"^ *(\d+)  (.*)$", re.MULTILINE)


@cache
def cells(lang):
    path = ROOT / "notebooks" / lang / "E_cheat_sheet.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@cache
def rows(lang):
    """Number of a formula -> the links of its row."""
    text = "\n".join("".join(cell["source"]) for cell in cells(lang) if cell["cell_type"] == "markdown")
    return {
        int(number): re.findall(r"\[(\w+)\]\((\w+)\.ipynb\)", links) for number, links in ROW.findall(text)
    }


@cache
def shown(lang):
    """Number of a formula -> the row of its value."""
    outputs = [out for cell in cells(lang)[2:] if cell["cell_type"] == "code" for out in cell["outputs"]]
    tables = ["".join(out["data"]["text/plain"]) for out in outputs if "data" in out]
    text = "\n".join(table for table in tables if "k (B)" not in table)
    return {int(number): said for number, said in LINE.findall(text)}


def numbers(lang, line):
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", shown(lang)[line])]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_formula_has_one_row_and_one_value(lang):
    assert list(rows(lang)) == list(range(1, len(rows(lang)) + 1))
    assert list(shown(lang)) == list(rows(lang))
    assert len(rows(lang)) >= 40


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_row_leads_to_its_lessons(lang):
    for number, links in rows(lang).items():
        assert links, number
        for words, stem in links:
            assert stem.split("_")[0] == words
            assert (ROOT / "notebooks/src" / f"{stem}.py").is_file(), stem


def test_both_languages_print_the_same_numbers():
    for line in shown("en"):
        assert sorted(numbers("en", line)) == sorted(numbers("zh", line)), line


def test_no_lesson_with_a_formula_is_left_out():
    named = {words for links in rows("en").values() for words, _ in links}
    assert {f"{number:02}" for number in range(19) if number != 11} | {"02b", "11a", "B", "D"} == named


# Llama-3.1-8B: 32 layers, 32 query heads, 8 KV heads of 128, hidden 4096, intermediate 14336; an H100 of 80 GB
L, HQ, H, D = 32, 32, 8, 128
K = 2 * L * H * D * 2
HIDDEN, INNER = 4096, 14336
BATCH, CONTEXT = 32, 8192
SWAP = 2 * CONTEXT * K / 50e9
BY_HAND = {
    1: K,
    2: 2 * L * H * (D + 4),
    3: 2 * L * 2 * D * 2,
    4: 61 * (512 + 64) * 2,
    5: 61 * 128 * (128 + 64 + 128) * 2,
    6: (10 * CONTEXT + 52 * 1023) * 2 * 16 * 128 * 2,
    10: 8 * 2**22 / 2**20,
    11: 31 * (CONTEXT - 1000) * K / 2**30,
    12: 31 * (63 * 16 - 1000) * K / 2**20,
    17: BATCH * K * 1024 * (2 * CONTEXT + 1025) / 2**30,
    18: 2 * BATCH * K * 1024 / 2**30,
    21: 2 * L * (HIDDEN * (2 * HQ + 2 * H) * D + 3 * HIDDEN * INNER) / 1e9,
    22: 4 * L * HQ * D / 1e3,
    23: 2 * L * (HIDDEN * (2 * HQ + 2 * H) * D + 3 * HIDDEN * INNER) // (4 * L * HQ * D) + 1,
    24: 989 / 3.35,
    28: (2 * H * D * 2 * BATCH * CONTEXT + 2 * BATCH * HQ * D * 2 + 4 * BATCH * CONTEXT // 16) / 2**20,
    31: 1e3 * SWAP,
    32: 1e3 * CONTEXT / 10_000,
    33: 1 / (2 * K / 50e9),
    34: 4 + 1532 + 512,
    35: 4 + 1532 + 512 + 15,
    36: 4 * 64,
    37: (CONTEXT - 2048) * K / 2**20,
    39: 100 * 0.999**1000,
    41: 2048 - BATCH,
}


@pytest.mark.parametrize("line", BY_HAND)
def test_a_value_is_that_of_plain_arithmetic(line):
    """Within the digits that the line shows."""
    assert any(math.isclose(found, BY_HAND[line], rel_tol=1e-9, abs_tol=0.5) for found in numbers("en", line))
    nearest = min(numbers("en", line), key=lambda found: abs(found - BY_HAND[line]))
    assert math.isclose(nearest, BY_HAND[line], rel_tol=5e-3), shown("en")[line]


@pytest.mark.parametrize("line", [29, 30])
def test_what_is_compared_is_equal(line):
    assert shown("en")[line].endswith("True")


def test_memory_adds_up_and_the_step_waits_for_memory():
    live, pinned, returnable, reserved = numbers("en", 20)
    assert math.isclose(live + pinned + returnable, reserved, abs_tol=0.2)
    assert pinned > 0, "the freed block lies beside a live one"
    ridge, intensity = numbers("en", 24)[-1], numbers("en", 25)[-1]
    assert intensity < ridge
    since, compute, read, steps, seconds = numbers("en", 45)
    assert math.isclose(since + max(compute, read) + steps, seconds, abs_tol=3e-4)
    (_, score) = numbers("en", 46)
    assert math.isclose(score, 100 * seconds / 0.5, abs_tol=0.6)
