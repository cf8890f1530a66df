"""Appendix A: every entry is proved, every exercise knows its wrong answers."""

import math
import re
from dataclasses import FrozenInstanceError
from html.parser import HTMLParser
from pathlib import Path

import pytest

from minikv.course.check import run_check
from minikv.course.errata import KINDS, SLIPS, errata, erratum
from minikv.course.errata_table import errata_table
from minikv.course.errata_values import VALUES, breakdown_block, dense, guide_block
from minikv.course.lessons import find_exercise, find_lesson
from minikv.errors import ArgumentError, UnknownNameError
from minikv.i18n import LANGUAGES
from minikv.plan import find_gpu, model_names
from tests.course.mutants import assert_exercise, assert_prediction, assert_question
from tests.in_turn import in_turn

LESSON = find_lesson("a")
SOURCE = Path(__file__).parents[3] / "notebooks" / "src" / "A_errata.py"
CJK = re.compile(r"[\u4e00-\u9fff]")


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def spellings(number):
    """How a sentence may write a number: exact, or a float to one or two decimals."""
    exact = {f"{number:,}", str(number)}
    return exact | {f"{number:g}", f"{number:.1f}", f"{number:.2f}"} if isinstance(number, float) else exact


def says(sentence, number):
    """Whether the number stands there as a whole, not inside a longer one."""
    return any(
        re.search(rf"(?<![\d.,]){re.escape(form)}(?![\d]|[.,]\d)", sentence) for form in spellings(number)
    )


@in_turn("entry", errata())
def test_each_entry_is_complete_and_proved(entry):
    assert entry.kind in KINDS
    assert entry.slip in SLIPS
    assert entry.right or entry.cite or entry.shown
    assert entry.cite == "" or re.fullmatch(r"https://\S+", entry.cite)
    if entry.kind in ("arithmetic", "unit"):
        assert entry.right, "arithmetic is computed, not quoted"
    for both in (entry.claim, entry.correct, entry.why):
        assert both.en.strip()
        assert both.zh.strip()
        assert not CJK.search(both.en)
        assert len(both.en) <= 180, "a row of the table is short"
    assert CJK.search(entry.why.zh)


@in_turn("entry", [e for e in errata() if e.right])
def test_the_stated_value_is_the_computed_one(entry):
    computed = as_tuple(entry.value())
    assert len(computed) == len(entry.right)
    for stated, value in zip(entry.right, computed, strict=True):
        assert type(stated) is type(value) or stated == value
        assert math.isclose(stated, value, rel_tol=1e-12)
    for lang in LANGUAGES:
        missing = [n for n in entry.right if not says(entry.correct.in_(lang), n)]
        assert not missing, f"the {lang} text does not say {missing}"


def test_each_computed_value_belongs_to_an_entry():
    assert set(VALUES) == {entry.id for entry in errata() if entry.right}


def test_ids_are_in_sequence_without_a_gap():
    by_document = {}
    for entry in errata():
        by_document.setdefault(entry.id[:3], []).append(entry)
    for number, entries in by_document.items():
        assert [e.id for e in entries] == [f"{number}-{n:02}" for n in range(1, len(entries) + 1)]
        assert len({e.document for e in entries}) == 1
    assert {n: len(entries) for n, entries in by_document.items()} == {
        "000": 11,
        "001": 37,
        "002": 20,
        "003": 26,
        "004": 10,
    }


def test_kinds_and_slips_each_split_all_entries():
    for name, known in (("kind", KINDS), ("slip", SLIPS)):
        parts = [errata(**{name: value}) for value in known]
        assert all(parts), "none is empty"
        assert sorted(e.id for part in parts for e in part) == [e.id for e in errata()]


def test_filters_agree_with_each_other():
    assert errata("003") == errata(document=errata("003")[0].document)
    assert errata("003", kind="arithmetic", slip="factor") == tuple(
        e for e in errata("003") if (e.kind, e.slip) == ("arithmetic", "factor")
    )


def test_what_does_not_exist_is_refused_by_name():
    for arguments in ({"document": "005"}, {"kind": "typo"}, {"slip": "typo"}):
        with pytest.raises(ArgumentError) as caught:
            errata(**arguments)
        assert caught.value.code == "unknown_choice"
    with pytest.raises(UnknownNameError, match="999-01"):
        erratum("999-01")
    with pytest.raises(ArgumentError, match="000-07"):
        erratum("000-07").value()


def test_an_entry_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        erratum("003-01").right = (114_688,)


def test_the_cells_that_entries_point_to_are_there():
    named = r'^# %% key="([^"]+)"(?: lang="en")?\n# \1$'  # a reader sees the first line, not the key
    keys = set(re.findall(named, SOURCE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {entry.shown for entry in errata() if entry.shown} <= keys


def test_every_slip_has_its_table_in_the_appendix():
    source = SOURCE.read_text(encoding="utf-8")
    assert set(re.findall(r'errata_table\("en", slip="(\w+)"\)', source)) == set(SLIPS)


class _Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.counts = {}

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_table_holds_every_entry_in_its_language(lang):
    table = errata_table(lang)
    parser = _Cells()
    parser.feed(table.html())
    assert parser.counts["tr"] == 1 + len(errata())
    assert parser.counts["td"] == 5 * len(errata())
    for entry in errata():
        assert entry.id in table.text()
        assert entry.correct.in_(lang) in table.text()
    bundle = table._repr_mimebundle_()
    assert bundle == errata_table(lang)._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}


def test_made_up_models_stay_made_up():
    """Two claims are that a model does not exist: the catalogue must not learn its name."""
    assert not any("70B" in name for name in model_names() if name.startswith("Qwen3"))
    assert dense(28, 8, 128, tp=8).block_bytes(16) * 8 == breakdown_block()
    assert guide_block() == 2 * 80 * 16 * 8 * 64 * 2


def test_bus_width_times_rate_is_the_catalogue_figure():
    assert erratum("002-01").value() == find_gpu("Jetson AGX Orin 64GB").bandwidth_gb_s


# The exercises.


def block_in_steps(layers, block_size, kv_heads, head_dim, itemsize):
    one_vector = head_dim * itemsize
    k_of_a_token = kv_heads * one_vector
    return sum(k_of_a_token + k_of_a_token for _ in range(layers)) * block_size


def block_as_a_product(layers, block_size, kv_heads, head_dim, itemsize):
    return math.prod((itemsize, head_dim, kv_heads, block_size, layers, 2))


def convert_by_power(value, unit, to):
    def num_bytes(name):
        power = "BKMG".index(name[0])
        return 1024.0**power if "i" in name else 1000.0**power

    return value * num_bytes(unit) / num_bytes(to)


def convert_by_table(value, unit, to):
    table = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return value * (table[unit] / table[to])


def audit_by_subtraction(terms, claimed):
    for value in terms.values():
        claimed -= value
    return claimed


def audit_one_sum(terms, claimed):
    return sum([claimed, *(-value for value in terms.values())])


def blocks_step_by_step(total, percent, used, peak, current, block):
    outside = used - current
    transient = peak - current
    left = total * percent // 100 - current - outside - transient
    return left // block if left > 0 else 0


def blocks_by_divmod(total, percent, used, peak, current, block):
    blocks, _ = divmod(int(total * percent / 100) - (used + peak - current), block)
    return max(blocks, 0)


def longest_step_by_step(num_blocks, block_size, sequences, positions):
    whole = (num_blocks // sequences) * block_size
    return whole if whole < positions else positions


def longest_by_remainder(num_blocks, block_size, sequences, positions):
    shared = num_blocks - num_blocks % sequences
    return sorted((shared * block_size // sequences, positions))[0]


RIGHT = {
    "A.1": [block_in_steps, block_as_a_product],
    "A.2": [convert_by_power, convert_by_table],
    "A.3": [audit_by_subtraction, audit_one_sum],
    "A.4": [blocks_step_by_step, blocks_by_divmod],
    "A.5": [longest_step_by_step, longest_by_remainder],
}


@pytest.mark.parametrize("id", RIGHT)
def test_exercise(id):
    assert_exercise(find_exercise(id), right=RIGHT[id])


@pytest.mark.parametrize("seed", range(25))
def test_a_limit_rounded_up_fails_under_every_seed(seed):
    def rounded_up(total, percent, used, peak, current, block):
        return max(0, math.ceil(total * percent / 100) - used - peak + current) // block

    assert run_check(find_exercise("A.4"), rounded_up, seed=seed).misconception == "rounds_up"


def test_all_exercises_are_tested():
    assert list(RIGHT) == [exercise.id for exercise in LESSON.exercises]


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "a")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "a")
