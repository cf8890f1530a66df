"""Appendix B: every exhibit has the same shape and an address, and its exercises know their wrong answers."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from minikv.blocks import BlockManager, BlockPool
from minikv.course.check import run_check
from minikv.course.lessons import find_exercise, find_lesson
from minikv.course.lessons.lb.bookkeeping import FAULTS, broken, draw_books
from minikv.course.lessons.lb.watch import Watched, watch
from minikv.errors import MiniKVError
from minikv.i18n import LANGUAGES
from tests.course.mutants import assert_exercise, assert_prediction, assert_question
from tests.longer import usual_if

LESSON = find_lesson("b")
ROOT = Path(__file__).parents[3]
SOURCE = (ROOT / "notebooks" / "src" / "B_bug_museum.py").read_text(encoding="utf-8")
EXHIBITS = ("hit", "stale", "double", "leak", "large", "salt", "others", "heads", "int", "mask")
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+")
WORDS = {
    "en": {"seen": ("**Seen**:", "**Here**:"), "fix": ("**Cause**:", "**Fix**:", "**Property**:")},
    "zh": {"seen": ("**现象**：", "**这里**："), "fix": ("**原因**：", "**修复**：", "**性质**：")},
}


def cell(key, lang=None):
    """The text of a cell of the source, from its marker to the next one."""
    kind = f'\\[markdown\\] key="{key}" lang="{lang}"' if lang else f'key="{key}"(?: lang="en")?'
    found = re.search(rf"^# %% {kind}[^\n]*\n(.*?)(?=^# %% |\Z)", SOURCE, re.MULTILINE | re.DOTALL)
    assert found, f"no cell {key} {lang or ''}"
    return found[1]


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", EXHIBITS)
def test_each_exhibit_hangs_in_the_same_frame(name, lang):
    for part, words in WORDS[lang].items():
        text = cell(f"{name}_{part}", lang)
        places = [text.find(word) for word in words]
        assert -1 not in places, f"{name}_{part} lacks one of {words}"
        assert places == sorted(places)
    assert ADDRESS.search(cell(f"{name}_seen", lang)), "every bug has an address"
    code = cell(f"{name}_broken") + cell(f"{name}_call")
    assert "from minikv" in code or "manager." in code, "the package finds it"


def test_both_languages_cite_the_same_addresses_and_at_least_eight_bugs():
    for name in EXHIBITS:
        assert ADDRESS.findall(cell(f"{name}_seen", "en")) == ADDRESS.findall(cell(f"{name}_seen", "zh"))
    assert len({ADDRESS.search(cell(f"{name}_seen", "en"))[0] for name in EXHIBITS}) >= 8


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_table_at_the_end_names_every_exhibit(lang):
    rows = re.findall(r"^# \| [^|]+ \| ([\d、, ]+) \|$", cell("catch", lang), re.MULTILINE)
    named = {int(number) for row in rows for number in re.findall(r"\d+", row)}
    assert named == set(range(1, len(EXHIBITS) + 1))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_the_cells_show_is_the_bug_and_the_cure(lang):
    """The numbers that the text speaks of, as the committed notebook shows them."""
    path = ROOT / "notebooks" / lang / "B_bug_museum.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    said = {
        c["id"]: "".join("".join(out.get("data", {}).get("text/plain", [])) for out in c["outputs"])
        for c in cells
        if c["cell_type"] == "code"
    }
    numbers = {key: re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?", text) for key, text in said.items()}
    assert numbers["hit_broken"][:3] == ["512", "512", "0"]
    assert numbers["stale_broken"][:3] == ["256", "721", "465"]
    assert numbers["int_broken"][-2:] in (["4.8", "163,000"], ["163,000", "4.8"])
    assert "45568" in said["heads_broken"]
    assert float(numbers["mask_call"][-1]) == 0
    assert numbers["mask_decode"] == ["1", "0", "0", "0", "0"]
    _, by_sum, by_books = said["break_it"].strip().splitlines()
    assert [by_sum.split()[1], by_books.split()[1]] == ["0", "100"], "runs in which each noticed the bug"


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_without_a_bug_is_never_noticed(seed):
    def in_order(manager):
        manager.check_invariants()
        return True

    assert watch(BlockPool, in_order, seed) == Watched(59, "neither")


# The property of B.1, on the package's own pool.


def books_of(manager):
    """What a learner's function is given, of a real manager."""
    pool = manager.pools[0]
    counts = [pool.ref_count(block) for block in range(pool.num_blocks)]
    tables = [manager.block_table(name) for name in manager.sequences()]
    return counts, [*pool._empty, *pool._cached], tables


@pytest.mark.parametrize("seed", range(20))
def test_the_books_of_a_real_manager_are_in_order_after_every_operation(seed):
    manager, rng = BlockManager(num_blocks=20, block_size=4), random.Random(seed)
    for step in range(60):
        names = manager.sequences()
        choice = rng.random()
        try:
            if names and choice < 0.25:
                manager.fork(rng.choice(names), step)
            elif names and choice < 0.5:
                manager.free(rng.choice(names))
            elif names and choice < 0.7:
                manager.append_tokens(rng.choice(names), [rng.randrange(5)] * rng.randint(1, 6))
            else:
                manager.allocate(step, [rng.randrange(3) for _ in range(rng.randint(1, 24))])
                manager.commit(step)
        except MiniKVError:
            pass
        assert broken(*books_of(manager)) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_every_fault_is_seen(fault):
    rng, seen = random.Random(fault.__name__), 0
    for case in draw_books(rng)[7::8]:  # the sound ones of the first half, and some with one fault
        before = broken(**case)
        fault(rng, case)
        seen += broken(**case) != before
    assert seen >= 6


def test_a_sound_pool_is_among_the_cases_and_so_is_one_whose_sum_is_right_and_books_are_wrong():
    cases = [broken(**case) == [] for case in draw_books(random.Random(1))]
    assert 2 <= sum(cases) < len(cases) / 2
    wrong = [case for case in draw_books(random.Random(1)) if broken(**case)]
    sums = [sum(n > 0 for n in c["ref_counts"]) + len(c["free_list"]) == len(c["ref_counts"]) for c in wrong]
    assert sum(sums) > len(wrong) / 4


def test_a_pool_that_forgets_a_holder_is_found_by_the_books_and_not_by_the_sum():
    class Forgetful(BlockPool):
        def share(self, blocks):
            self._check_held(blocks)

    manager = BlockManager(num_blocks=8, block_size=4)
    manager.pools[0].__class__ = Forgetful
    manager.allocate("a", range(8))
    manager.fork("a", "b")
    stats = manager.stats().pools[0]
    assert stats.free + stats.used == stats.total
    with pytest.raises(MiniKVError, match="counted for 1 holders and has 2"):
        manager.check_invariants()
    assert broken(*books_of(manager)) == [0, 1]


# The exercises.


def broken_by_count(ref_counts, free_list, tables):
    every = [block for table in tables for block in table]
    blocks = range(len(ref_counts))
    counted = {b for b in blocks if ref_counts[b] != every.count(b)}
    placed = {b for b in blocks if free_list.count(b) != int(not ref_counts[b])}
    return sorted(counted | placed)


def broken_by_dicts(ref_counts, free_list, tables):
    holders = dict.fromkeys(range(len(ref_counts)), 0)
    for table in tables:
        for block in table:
            if block >= 0:
                holders[block] += 1
    places = Counter(free_list)
    return [b for b in holders if (ref_counts[b], places[b]) != (holders[b], int(ref_counts[b] == 0))]


def chunk_step_by_step(num_tokens, cached_before, cached_now, budget, block_size):
    start = cached_now
    while start >= num_tokens:
        start -= block_size
    end = start
    while end < num_tokens and end - start < budget:
        end += 1
    return start, end


def chunk_by_branch(num_tokens, cached_before, cached_now, budget, block_size):
    full = cached_now == num_tokens
    start = num_tokens - block_size if full else cached_now
    return (start, min(start + budget, num_tokens))


def namespace_by_json(adapter, tenant):
    return json.dumps([adapter, tenant])


def namespace_by_length(adapter, tenant):
    first = "-" if adapter is None else f"{len(adapter)}"
    return f"{first}:{adapter or ''}{'-' if tenant is None else '+' + tenant}"


RIGHT = {
    "B.1": [broken_by_count, broken_by_dicts],
    "B.2": [chunk_step_by_step, chunk_by_branch],
    "B.3": [namespace_by_json, namespace_by_length],
}


def empty_namespace(adapter, tenant):
    raise NotImplementedError


@pytest.mark.parametrize("id", RIGHT)
def test_exercise(id):
    stub = empty_namespace if id == "B.3" else None
    sequences = {"B.1": "tables", "B.3": "pairs"}.get(id)
    assert_exercise(find_exercise(id), right=RIGHT[id], sequences=sequences, stub=stub)


@pytest.mark.parametrize("seed", usual_if(range(5).__contains__, range(20)))
def test_the_misconceptions_that_differ_least_are_told_apart_under_every_seed(seed):
    for exercise in LESSON.exercises:
        for misconception in exercise.misconceptions:
            verdict = run_check(exercise, misconception.wrong, seed=seed)
            assert verdict.misconception == misconception.name


def test_a_namespace_that_is_no_text_fails():
    assert run_check(find_exercise("B.3"), lambda adapter, tenant: (adapter, tenant)).kind == "wrong"


def test_all_exercises_are_tested():
    assert list(RIGHT) == [exercise.id for exercise in LESSON.exercises]


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "b")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "b")
