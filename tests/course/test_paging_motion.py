"""Paging as it moves: the recorded states are the manager's, and what moves between them brings one to the next."""

import json
import random

import pytest

from minikv import LLM, SamplingParams
from minikv.blocks import NULL_BLOCK, BlockManager
from minikv.course.motion import PagingMotion, PagingRecorder, record_generate, scene_module, scene_page
from minikv.errors import OutOfBlocksError
from minikv.i18n import LANGUAGES
from tests.course.engine_widget_world import PROMPTS, bare_model


def walked(seed: int, calls: int = 60) -> PagingRecorder:
    """Random calls on a small pool: prompts that begin alike, forks, appends, ends."""
    rng, recorder = random.Random(seed), PagingRecorder(BlockManager(16, 4))
    stems = [[rng.randrange(100) for _ in range(12)] for _ in range(2)]
    for number in range(calls):
        names = recorder.manager.sequences()
        call = rng.choice(["allocate", "append", "append", "fork", "free"]) if names else "allocate"
        before = len(recorder.states)
        try:
            if call == "allocate":
                stem = rng.choice(stems)[: rng.randint(1, 12)]
                recorder.allocate(
                    f"S{number}", [*stem, *(rng.randrange(100) for _ in range(rng.randint(0, 5)))]
                )
            elif call == "append":
                recorder.append(rng.choice(names), rng.randrange(100))
            elif call == "fork":
                recorder.fork(rng.choice(names), f"S{number}")
            else:
                recorder.free(rng.choice(names))
        except OutOfBlocksError:
            assert len(recorder.states) == before, "what was refused is no state"
        else:
            assert len(recorder.states) == before + 1
            assert_last_is_the_managers(recorder)
    return recorder


def assert_last_is_the_managers(recorder: PagingRecorder) -> None:
    manager, state = recorder.manager, recorder.states[-1]
    pool = manager.pools[0]
    assert [(seq.name, list(seq.table), list(seq.ids)) for seq in state.sequences] == [
        (name, manager.block_table(name), manager.tokens(name).tolist()) for name in manager.sequences()
    ]
    for number, block in enumerate(state.blocks):
        assert len(block.owners) == pool.ref_count(number)
        kind = ("used", "shared")[pool.ref_count(number) > 1] if pool.ref_count(number) else None
        assert block.kind == (kind or ("cached" if pool.is_published(number) else "empty"))


def replay(recorder: PagingRecorder) -> dict[str, int]:
    """Carry the token ids where the drawing carries K and V, and read each sequence through its table."""
    size, slots = recorder.manager.block_size, {}
    seen = {"copies": 0, "found": 0, "writes": 0, "forks": 0}
    for state in recorder.states:
        ids = {seq.name: seq.ids for seq in state.sequences}
        for copy in state.copies:
            for place in range(copy.tokens):
                slots[copy.dst * size + place] = slots[copy.src * size + place]
        for write in state.writes:
            slots[write.slot] = ids[write.name][write.position]
        for seq in state.sequences:
            for position, token in enumerate(seq.ids):
                block = seq.table[position // size]
                assert block == NULL_BLOCK or slots[block * size + position % size] == token
        for number, block in enumerate(state.blocks):
            assert [slots[number * size + place] for place in range(len(block.ids))] == list(block.ids)
        seen["copies"] += len(state.copies)
        seen["found"] += len(state.found)
        seen["writes"] += len(state.writes)
    return seen


def test_the_states_are_the_managers_and_the_flights_fill_every_slot():
    counts = [replay(walked(seed)) for seed in range(8)]
    assert all(sum(count[what] for count in counts) > 10 for what in ("copies", "found", "writes"))


def test_a_real_generate_is_recorded_step_by_step():
    params = [
        SamplingParams(temperature=0, max_tokens=6, n=2 if number == 1 else 1)
        for number in range(len(PROMPTS))
    ]
    sizes = dict(num_blocks=30, block_size=4, max_num_seqs=4, max_batched_tokens=16, max_model_len=64)
    with LLM(bare_model(), seed=1, **sizes) as llm:
        recorder = record_generate(llm, PROMPTS, params)
        seen = replay(recorder)
        assert not recorder.states[-1].sequences
    assert seen["copies"], "samples of one prompt share its last block"
    assert seen["found"]
    text = PagingMotion("en", recorder).text()
    assert "B1" in text
    assert "Ended" in text


def test_a_preempted_sequence_of_a_generate_has_not_ended():
    sizes = dict(num_blocks=14, block_size=4, max_num_seqs=4, max_batched_tokens=16, max_model_len=64)
    with LLM(bare_model(), seed=1, **sizes) as llm:
        recorder = record_generate(llm, PROMPTS, SamplingParams(temperature=0, max_tokens=12))
    replay(recorder)
    said = [dict(state.said) for state in recorder.states]
    preempted = [name for values in said if "preempted" in values for name in values["preempted"]["names"]]
    assert preempted
    ended = [name for values in said if "ended" in values for name in values["ended"]["names"]]
    assert len(ended) == len(set(ended)), "a sequence ends once"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_states_are_complete_json_and_the_text_has_their_figures(lang):
    recorder = walked(3, calls=20)
    motion = PagingMotion(lang, recorder)
    scene = json.loads(json.dumps(motion.scene))
    assert len(scene["states"]) == len(recorder.states)
    for view, state in zip(scene["states"], recorder.states, strict=True):
        assert set(view) == {"status", "sequences", "blocks", "writes", "copies", "found"}
        assert [block[0] for block in view["blocks"]] == [block.kind for block in state.blocks]
        for name, _, length, table, ids in view["sequences"]:
            assert len(ids) == length <= len(table) * 4
            assert f"{name}" in motion.text()
            assert str(table) in motion.text()
        assert view["status"] in motion.text()
    assert motion.text() == PagingMotion(lang, recorder).text()
    assert motion.text().isascii() == (lang == "en")


def test_a_module_is_plain_and_a_page_of_it_asks_for_nothing():
    module = scene_module("paging")
    assert "anywidget" not in module
    assert "model" not in module.split()
    assert module.rstrip().endswith("export { mount };")
    assert module.count("export ") == 1
    for call in ("import ", "fetch(", "XMLHttpRequest", "http:", "https:"):
        assert call not in module.replace("http://www.w3.org/2000/svg", "")
    hostile = PagingRecorder(BlockManager(4, 2))
    hostile.allocate("</script><b>", [1, 2, 3])
    page = scene_page("paging", PagingMotion("zh", hostile).scene)
    assert page.count("</script>") == 1


def test_a_step_outside_the_recording_is_its_nearest():
    motion = PagingMotion("en", walked(1, calls=5), step=99)
    assert motion.step == len(motion.states) - 1
    motion.step = -4
    assert motion.step == 0
