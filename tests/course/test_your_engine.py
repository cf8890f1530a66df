"""Your engine: each known wrong answer of each part, put into nano by force, is found, and the part is named.

In this process, without a check before it: nano's own runs beside each call, on the same state.
"""

import hashlib
from dataclasses import asdict

import pytest

from minikv.course.lessons import find_exercise
from minikv.course.your_engine import run
from minikv.course.your_engine.assemble import part_in_nano
from minikv.course.your_engine.beside import KERNEL
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.load import loads
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.course.your_engine.report import EngineReport
from minikv.course.your_engine.run import examine, prepare
from minikv.errors import UnknownNameError


def mutants():
    """(exercise's id, its known wrong answer); the first of each part always, the others with the slow tests."""
    for part in PARTS:
        try:
            known = find_exercise(part.task).misconceptions
        except UnknownNameError:
            absent = pytest.mark.xfail(reason=f"exercise {part.task} is not there yet", strict=True)
            yield pytest.param(part.task, None, id=f"{part.name}-absent", marks=absent)
            continue
        for number, wrong in enumerate(known):
            marks = [pytest.mark.slow] if number else []
            yield pytest.param(part.task, wrong, id=f"{part.name}-{wrong.name}", marks=marks)


@pytest.fixture(scope="module")
def ready():
    return [prepare(load) for load in loads()]


def proxy(own):
    return lambda *args, **kwargs: own(*args, **kwargs)


MUTANTS = list(mutants())
THERE = {mutant.values[0] for mutant in MUTANTS if mutant.values[1]}


@pytest.mark.parametrize(("task", "wrong"), MUTANTS)
def test_a_known_wrong_answer_is_found_and_its_part_is_named(ready, task, wrong):
    examined = examine(ready, {task: wrong.wrong})
    assert list(examined.findings) == [task]
    assert examined.findings[task].kind != "never"
    for lang in ("en", "zh"):
        assert examined.findings[task].text(lang)


def test_parts_that_do_as_ours_are_right_and_each_is_called(ready):
    theirs = {task: proxy(find_exercise(task).reference) for task in THERE - {KERNEL}}
    if KERNEL in THERE and (kernel := part_in_nano(PART_OF[KERNEL])) is not None:
        theirs[KERNEL] = kernel
    examined = examine(ready, theirs)
    assert examined.findings == {}
    assert all(examined.calls[task] for task in theirs)
    assert not examined.differs
    assert min(examined.seen.hits, examined.seen.chunks, examined.seen.preemptions) > 0
    assert examined.seen.requests == 48


def other_digest(previous, tokens):
    return hashlib.md5(repr((previous, list(tokens))).encode()).digest()


def other_slots(block_table, start, end, block_size):
    slots = []
    for token in range(start, end):
        block, offset = divmod(token, block_size)
        slots += [-1] if block_table[block] == -1 else [block_table[block] * block_size + offset]
    return slots


def other_allocate(self, seq, keep_free=0):
    found = self.find_prefix(seq.tokens)
    free_after = [block for block in self.free_blocks if block not in found]
    missing = self.blocks_for(len(seq.tokens)) - len(found)
    if len(free_after) - missing < keep_free:
        return False
    for block in found:
        if block in self.free_blocks:
            del self.free_blocks[block]
        self.ref_counts[block] += 1
    table = list(found)
    while missing:
        table.append(self._take())
        missing -= 1
    seq.block_table = table
    seq.num_cached = seq.num_computed = self.block_size * len(found)
    return True


def other_write(self, layer, key, value, slots):
    for cache, new in ((self.k[layer], key), (self.v[layer], value)):
        for place, slot in enumerate(slots.tolist()):
            cache[slot // cache.shape[1], slot % cache.shape[1]] = new[place].to(cache.dtype)


def test_right_answers_that_are_written_otherwise_pass_together(ready):
    theirs = {
        "02.1": lambda num_layers, num_kv_heads, k_dim, v_dim, itemsize: sum(
            num_kv_heads * (k_dim + v_dim) * itemsize for _ in range(num_layers)
        ),
        "06.5": other_write,
        "09.1": other_slots,
        "09.3": other_digest,
        "09.6": other_allocate,
    }
    examined = examine(ready, theirs)
    assert examined.findings == {}
    assert not examined.differs


def test_a_part_that_is_never_called_is_named(ready, monkeypatch):
    monkeypatch.setattr(run, "_num_blocks", lambda each: each.load.num_blocks)
    examined = examine(ready[2:], {"02.1": proxy(part_in_nano(PARTS[0]))})
    assert examined.findings["02.1"].kind == "never"


def test_a_wrong_part_changes_tokens_and_the_first_is_named(ready):
    wrong = next(each for each in find_exercise("09.1").misconceptions if each.name == "no_table")
    examined = examine(ready, {"09.1": wrong.wrong})
    effect = examined.effects["09.1"]
    assert (effect.kind, effect.load) == ("token", "tiny-gqa")
    assert ready[0].due[effect.request][effect.place] == effect.due != effect.got


def test_the_report_names_what_is_wrong_in_both_languages(ready):
    theirs = {"09.2": lambda self, seq: print("freeing"), "02.6": proxy(part_in_nano(PARTS[1]))}
    kept = {task: KeptPart("f", "", "", "2026-11-23T10:00:00Z", "1") for task in theirs}
    report = EngineReport(kept, asdict(examine(ready[2:], theirs)))
    assert not report.passed
    for lang, words in (("en", ["2 of 15", "2026-11-23", "wrong", "prints"]), ("zh", ["15 个部件", "有误"])):
        shown = report.shown(lang).text()
        assert all(word in shown for word in words), shown
    assert len(repr(report)) <= 120
    assert "<table" in report._repr_html_()
