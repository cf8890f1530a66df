"""nano without a model: the recorded states are its block manager's, and every request comes to its end."""

import random

import pytest

from minikv.course.motion.paging_nano import Asked, NanoRun
from minikv.errors import ArgumentError, RequestTooLargeError

SIZES = dict(num_blocks=8, block_size=4, max_num_seqs=3, max_num_batched_tokens=8)


def random_run(seed: int) -> tuple[list[Asked], NanoRun]:
    rng = random.Random(seed)
    stems = [[rng.randrange(50) for _ in range(12)] for _ in range(2)]
    asked = [
        Asked(
            [*rng.choice(stems)[: rng.randint(1, 12)], rng.randrange(50)],
            range(100 * number, 100 * number + rng.randint(1, 12)),
            rng.randint(1, 9),
        )
        for number in range(1, rng.randint(2, 7))
    ]
    sizes = SIZES | dict(num_blocks=rng.randint(7, 12), max_num_batched_tokens=rng.randint(1, 20))
    return asked, NanoRun(asked, **sizes)


def kinds_of(run: NanoRun) -> set[str]:
    return {key for state in run.states for key, _ in state.said}


def test_what_flies_to_the_slots_is_what_every_table_reads():
    seen = set()
    for seed in range(30):
        asked, run = random_run(seed)
        slots = {}
        for state, rows in zip(run.states, run.progress, strict=True):
            for write in state.writes:
                ids = next(seq.ids for seq in state.sequences if seq.name == write.name)
                slots[write.slot] = ids[write.position]
            for seq in state.sequences:
                read = [slots[seq.table[place // 4] * 4 + place % 4] for place in range(len(seq.ids))]
                assert read == list(seq.ids)
                row = next(row for row in rows if row.name == seq.name)
                assert row.stored == len(seq.ids) <= row.total
            for number, block in enumerate(state.blocks):
                assert [slots[number * 4 + place] for place in range(len(block.ids))] == list(block.ids)
        assert [row.state for row in run.progress[-1]] == ["ended"] * len(asked)
        assert [row.total for row in run.progress[-1]] == [len(one.prompt) + len(one.answer) for one in asked]
        assert not run.states[-1].sequences
        seen |= kinds_of(run)
    assert {"step", "found", "ended", "preempted", "waiting", "nothing", "all_ended"} <= seen


def test_a_preempted_request_has_not_ended():
    for seed in range(30):
        _, run = random_run(seed)
        for state, rows in zip(run.states, run.progress, strict=True):
            said = dict(state.said)
            waiting = {row.name for row in rows if row.state == "waiting"}
            assert set(said.get("preempted", {"names": []})["names"]) <= waiting
            for name in said.get("ended", {"names": []})["names"]:
                assert next(row for row in rows if row.name == name).state == "ended"


@pytest.mark.parametrize(
    ("asked", "sizes", "error"),
    [
        (Asked([], [1]), {}, ArgumentError),
        (Asked([1], []), {}, ArgumentError),
        (Asked([1], [1], 0), {}, ArgumentError),
        (Asked([1] * 30, [1] * 4), {}, RequestTooLargeError),
        (Asked([1], [1]), {"num_blocks": 0}, ArgumentError),
        (Asked([1], [1]), {"max_num_batched_tokens": True}, ArgumentError),
    ],
)
def test_what_nano_could_not_serve_is_refused(asked, sizes, error):
    with pytest.raises(error):
        NanoRun([asked], **SIZES | sizes)


def test_a_request_that_just_fits_is_served():
    assert NanoRun([Asked([1] * 29, [1] * 4)], **SIZES).progress[-1][0].total == 33
