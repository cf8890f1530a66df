"""What lesson 12 shows: two real ranks hold what was planned, two ways to hold latents, and streams that wait."""

import pytest

from minikv.course.lessons.l12.parallel_layouts import two_ways
from minikv.course.lessons.l12.shards import ROOM, answer, measure_shards, save_one_head
from minikv.course.lessons.l12.streams import Event, Stream, run_streams
from minikv.engine import LLM
from minikv.models import load
from minikv.plan import CacheSpec, plan_memory
from minikv.plan.weights.weight_bytes import weight_list


@pytest.mark.long
def test_two_ranks_hold_what_was_planned_and_answer_as_one(tmp_path):
    save_one_head(tmp_path)
    models = [str(tmp_path), "tiny-mla"]
    for name, found in zip(models, measure_shards(*models), strict=True):
        loaded = load(name, device="cpu")
        spec = CacheSpec.from_config(loaded.model.config, tp=2, kv_dtype=found.kv_dtype)
        own = [room // spec.block_bytes(16) for room in ROOM]
        assert [each.own_blocks for each in found.ranks] == own
        assert len({each.pid for each in found.ranks}) == 2
        for each in found.ranks:
            assert each.num_blocks == min(own)
            assert each.kv_bytes == min(own) * spec.block_bytes(16)
            assert each.weight_bytes < sum(weight.nbytes for weight in loaded.model.parameters())
        with LLM(loaded, num_blocks=40) as llm:
            assert answer(llm) == found.answers


@pytest.mark.parametrize("model", ["DeepSeek-V3", "Qwen3-235B-A22B", "Llama-3.1-70B"])
def test_two_ways_share_the_gpus_as_the_plan_does(model):
    tp, dp = two_ways(model, "B200 SXM", 8)
    plan = plan_memory(model, gpu="B200 SXM", tp=8)
    assert (tp.weight_bytes, tp.kv_bytes) == (plan.weight_bytes, plan.kv_bytes)
    assert tp.tokens == tp.longest == plan.max_tokens
    assert dp.weight_bytes + dp.kv_bytes == tp.weight_bytes + tp.kv_bytes
    attention = [sum(w.bytes for w in weight_list(model, tp=n) if w.kind == "attention") for n in (1, 8)]
    assert dp.weight_bytes - tp.weight_bytes == attention[0] - attention[1]
    assert dp.tokens == 8 * dp.longest
    assert dp.token_bytes == CacheSpec.from_config(model).bytes_for(1)
    assert dp.longest * dp.token_bytes <= dp.kv_bytes < (dp.longest + 16) * dp.token_bytes


def test_latents_gain_and_heads_that_were_cut_lose():
    times = {}
    for model in ("DeepSeek-V3", "Llama-3.1-70B"):
        tp, dp = two_ways(model, "B200 SXM", 8)
        times[model] = dp.tokens / tp.tokens
        assert dp.longest < tp.longest
    assert 6 < times["DeepSeek-V3"] < 8
    assert times["Llama-3.1-70B"] < 1


def test_a_stream_keeps_its_order_and_waits_for_events():
    for schedule in ([0] * 9, [1] * 9, [1, 0] * 5):
        one, other, done = Stream("one"), Stream("other"), []
        one.do(lambda done=done: done.append("a"))
        other.do(lambda done=done: done.append("x"))
        other.wait(one.record())
        one.do(lambda done=done: done.append("b"))
        other.do(lambda done=done: done.append("y"))
        names = run_streams((one, other), schedule)
        assert done.index("a") < done.index("b")
        assert done.index("x") < done.index("y")
        assert done.index("a") < done.index("y")
        assert names == [("one" if what in "ab" else "other") for what in done]


def test_without_an_event_the_schedule_decides():
    orders = set()
    for first in (0, 1):
        one, other, done = Stream("one"), Stream("other"), []
        one.do(lambda done=done: done.append("a"))
        other.do(lambda done=done: done.append("x"))
        run_streams((one, other), [first])
        orders.add(tuple(done))
    assert orders == {("a", "x"), ("x", "a")}


def test_what_is_no_work_and_no_event_is_refused_when_it_is_queued():
    stream = Stream("one")
    with pytest.raises(TypeError):
        stream.do(None)
    with pytest.raises(TypeError):
        stream.wait(stream)
    assert stream.record() == Event(stream, 0)
