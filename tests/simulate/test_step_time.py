"""A step's time is the roofline's, and its work is counted pair by pair."""

import random

import numpy as np
import pytest

from minikv.errors import ArgumentError, ConfigError, UnknownNameError
from minikv.plan.catalog import find_gpu
from minikv.plan.flops import flop_cost
from minikv.plan.roofline import Roof, decode_work, gpu_roof
from minikv.plan.step_work import AttentionCost, step_cost
from minikv.plan.weights.weight_bytes import weight_bytes
from minikv.simulate import IDEAL, Assumptions, Fleet, StepTime, Trace, TraceRequest, simulate
from tests.simulate.fleets import clock

MODELS = [
    "Llama-3.1-8B",
    "Llama-3.1-70B",
    "Qwen3-30B-A3B",
    "DeepSeek-V3",
    "gemma-3-27b-it",
    "Mistral-7B-v0.1",
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kv_dtype", [None, "fp8"])
def test_a_decode_step_without_losses_takes_exactly_the_roofs_time(model, kv_dtype):
    roof = gpu_roof(find_gpu("H200"))
    ideal = StepTime.of_model(model, "H200", kv_dtype=kv_dtype, assumptions=IDEAL)
    for batch, context in ((1, 1), (7, 5000), (64, 4096), (2000, 131)):
        work = decode_work(model, batch, context, kv_dtype=kv_dtype)
        assert ideal.seconds(decode=[context] * batch) == roof.seconds(work.flops, work.num_bytes)


@pytest.mark.parametrize("window", [None, 1, 5, 16])
def test_pairs_and_reads_are_what_counting_gives(window):
    cost = AttentionCost(window, 2, 3)
    for start in range(0, 30, 3):
        for end in range(start + 1, 40):
            seen = [range(max(0, at + 1 - (window or 99)), at + 1) for at in range(start, end)]
            assert cost.pairs(start, end) == sum(map(len, seen))
            assert cost.read(start, end) == len(set().union(*seen))
            assert cost.seen(end) == len(seen[-1])


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-8B"])
def test_a_prefill_has_the_flops_of_the_parameters_and_half_the_square(model):
    cost, per = step_cost(model), flop_cost(model)
    tokens = 1000
    work = cost.work(prefill=[(0, tokens)])
    assert work.weight_flops == tokens * per.per_token + per.lm_head
    assert work.attention_flops == per.per_pair * tokens * (tokens + 1) // 2
    in_chunks = [cost.work(prefill=[(start, start + 250)]) for start in range(0, tokens, 250)]
    assert sum(each.attention_flops for each in in_chunks) == work.attention_flops
    assert sum(each.cache_bytes for each in in_chunks) == cost.attention[0].token_bytes * (
        250 + 500 + 750 + 1000
    )


def test_a_mixed_step_reads_the_weights_once():
    cost = step_cost("Llama-3.1-8B")
    mixed, decode, prefill = (
        cost.work([(0, 512)], [100, 200]),
        cost.work(decode=[100, 200]),
        cost.work(prefill=[(0, 512)]),
    )
    assert mixed.weight_bytes == decode.weight_bytes == prefill.weight_bytes
    assert mixed.flops == decode.flops + prefill.flops
    assert mixed.cache_bytes == decode.cache_bytes + prefill.cache_bytes
    assert mixed.rows == 3


@pytest.mark.parametrize("model", ["Llama-3.1-70B", "Qwen3-30B-A3B"])
def test_ranks_share_the_work_and_pay_for_it(model):
    one, four = (step_cost(model, tp=tp) for tp in (1, 4))
    whole, part = (each.work([(0, 4096)], [3000] * 16) for each in (one, four))
    assert part.flops == pytest.approx(whole.flops / 4, rel=0.02)  # routers are on every rank
    assert part.cache_bytes == pytest.approx(whole.cache_bytes / 4, rel=0.01)
    assert whole.reduced_bytes == 0 < part.reduced_bytes
    fast, slow = (clock(model, tp=4, assumptions=Assumptions(link_gb_s=rate)) for rate in (1e6, 10))
    assert slow.seconds([(0, 4096)]) > 2 * fast.seconds([(0, 4096)])


def test_an_all_reduce_moves_what_a_ring_moves():
    eight = clock("Llama-3.1-70B", tp=8, assumptions=Assumptions(link_gb_s=100))
    bytes_each = 1000 * 80 * 2 * 8192 * 2  # tokens, layers, all-reduces, hidden, bf16
    assert eight.cost.work(prefill=[(0, 1000)]).reduced_bytes == bytes_each
    assert eight.link_seconds(bytes_each) == pytest.approx(2 * 7 / 8 * bytes_each / 100e9)


def test_experts_are_read_as_tokens_meet_them():
    cost = step_cost("Qwen3-30B-A3B")
    reads = [cost.weight_bytes(tokens) for tokens in (1, 8, 64, 4096)]
    assert reads == sorted(reads)
    whole = weight_bytes("Qwen3-30B-A3B")
    assert reads[-1] == pytest.approx(whole.total - whole.parts["embedding"], rel=1e-3)


def test_more_work_never_takes_less_time():
    draw, time = random.Random(1), clock()
    for _ in range(100):
        decode = [draw.randrange(1, 9000) for _ in range(draw.randrange(1, 50))]
        start = draw.randrange(3000)
        chunk = (start, start + draw.randrange(1, 3000))
        seconds = time.seconds([chunk], decode)
        assert time.seconds([chunk], decode[1:]) <= seconds
        assert time.seconds([(chunk[0], chunk[1] + 1)], decode) >= seconds
        assert time.seconds([], [each + 1 for each in decode]) >= time.seconds([], decode)


@pytest.mark.parametrize(("model", "tp"), [("Llama-3.1-70B", 8), ("gpt-oss-20b", 1)])
def test_a_series_of_decodes_is_its_steps(model, tp):
    time, contexts = clock(model, tp=tp), [5, 70, 120, 126, 128, 900]  # gpt-oss has windows of 128
    series = time.decode_series(np.array(contexts), 20)
    due = [time.parts(time.cost.work(decode=[each + step for each in contexts])) for step in range(1, 21)]
    assert series.total.tolist() == [parts.total for parts in due]
    assert series.compute.tolist() == [parts.compute for parts in due]
    assert np.all(series.bandwidth == [parts.bandwidth for parts in due])


def test_what_is_not_known_is_refused():
    with pytest.raises(ConfigError):
        StepTime.of_model("Jamba-v0.1", "H200")
    with pytest.raises(UnknownNameError):
        StepTime.of_model("Llama-3.1-8B", "H300")
    with pytest.raises(ArgumentError):
        StepTime(step_cost("Llama-3.1-8B"), Roof("r", 1, 1), assumptions=0.5)
    with pytest.raises(ArgumentError):
        StepTime(None, Roof("r", 1, 1))


def test_a_measured_roof_is_taken():
    roof = Roof("this machine", 20.0, 0.3)
    assert StepTime.of_model("Llama-3.1-8B", roof).roof is roof


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-30B-A3B"])
@pytest.mark.parametrize("tp", [1, 4])
def test_weights_that_are_stored_otherwise_are_read_so(model, tp):
    whole = weight_bytes(model, tp=tp).total
    plain = step_cost(model, tp=tp)
    assert step_cost(model, tp=tp, weight_bytes=whole) == plain
    quarter = step_cost(model, tp=tp, weight_bytes=whole // 4)
    for tokens in (1, 7, 8192):
        assert quarter.weight_bytes(tokens) == pytest.approx(plain.weight_bytes(tokens) / 4, rel=1e-6)
    assert (quarter.token_flops, quarter.attention) == (plain.token_flops, plain.attention)
    with pytest.raises(ArgumentError):
        step_cost(model, tp=tp, weight_bytes=0)


def test_a_fleet_reads_the_weights_that_it_keeps():
    plain = Fleet.plan("Llama-3.1-8B", "H200", assumptions=IDEAL)
    small = Fleet.plan("Llama-3.1-8B", "H200", assumptions=IDEAL, weight_bytes=4 * 2**30)
    assert small.blocks[0] > plain.blocks[0]
    share = 4 * 2**30 / weight_bytes("Llama-3.1-8B").total
    token = plain.step_time.cost.attention[0].token_bytes
    seconds = [each.step_time.seconds(decode=[1]) * 4.8e12 - token for each in (plain, small)]
    assert seconds[1] / seconds[0] == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("tp", [1, 8])
def test_a_chunk_of_mla_takes_the_cheaper_way(tp):
    """DeepSeek-V3 by hand: 61 layers, 128 heads, latent 512 and rope 64, heads of 128 + 64 and 128."""
    (cost,), heads = step_cost("DeepSeek-V3", tp=tp).attention, 128 // tp
    for start, end in ((0, 1), (0, 8192), (5, 6), (200, 900), (60_000, 60_100), (60_000, 68_192)):
        pairs = sum(range(start + 1, end + 1))
        absorbed = 61 * 2 * heads * (512 + 64 + 512) * pairs
        expanded = 61 * 2 * heads * ((128 + 64 + 128) * pairs + start * 512 * (128 + 128))
        work = step_cost("DeepSeek-V3", tp=tp).work(prefill=[(start, end)])
        assert work.attention_flops == min(absorbed, expanded)
        assert absorbed - cost.saved(start, end) == work.attention_flops
    one = step_cost("DeepSeek-V3", tp=tp).work(decode=[60_100])
    assert one.attention_flops == 61 * 2 * heads * (512 + 64 + 512) * 60_100


def test_a_prefix_that_is_cached_never_costs_time():
    for model in ("DeepSeek-V3", "Llama-3.1-8B"):
        time = StepTime.of_model(model, "H200", tp=8, assumptions=IDEAL)
        seconds = [time.seconds(prefill=[(start, 4096)]) for start in range(0, 4096, 37)]
        assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("latest", [0.0, 1.7e9, 1e10])
def test_times_that_steps_would_vanish_in_are_refused(latest):
    """A step as short as the clock's tick would take no time at all."""
    trace = Trace("late", (TraceRequest(latest, 100, 2),))
    tick = float(np.spacing(latest))
    for step in (tick / 2, 50 * tick, 200 * tick, 1e-3):
        instant = StepTime(step_cost("Llama-3.1-8B"), Roof("r", 1e9, 1e9), Assumptions(1, 1, step))
        fleet = Fleet(instant, 64)
        if instant.seconds(decode=[1]) < 100 * tick:
            with pytest.raises(ArgumentError, match="begin at 0"):
                simulate(trace, fleet)
        else:
            answers = simulate(trace, fleet).answers()
            due = instant.seconds(prefill=[(0, 100)]) + instant.seconds(decode=[101])
            assert answers.seconds == pytest.approx(due, rel=0.01)
