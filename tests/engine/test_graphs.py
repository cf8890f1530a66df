"""Decode steps that are replayed give the tokens of those that are computed, on buffers that never move."""

import gc
import itertools
import random

import pytest
import torch

from minikv.engine import SamplingParams
from minikv.engine.ext.graphs import DecodeGraphs, buckets
from minikv.kernels.gpu.common import Launch
from minikv.kernels.kv_tiles import BlockReader
from minikv.memory import ArenaInUseError
from minikv.plan.preemption import TransferRates
from tests.engine.llm_world import Broken, check_empty, greedy, make, reference, tensor_bytes
from tests.engine.rerun import Rerun, Waits, graphs
from tests.engine.test_decode_buffers import step_of
from tests.engine.test_llm_random import drive
from tests.in_turn import in_turn
from tests.longer import every_value, usual_if
from tests.models.running import poison

MODELS = {
    "llama": {},
    "qwen3": {"num_hidden_layers": 4},  # layers 2 and 3 have a window
    "gemma3_text": {},
    "deepseek_v3": {},
    "gpt_oss": {},
}


@in_turn("most", [*range(1, 40), 64, 100, 256, 1000])
def test_every_step_finds_a_bucket_that_is_hardly_larger(most):
    sizes = buckets(most)
    assert list(sizes) == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, most)
    for rows in range(1, most + 1):
        size = min(size for size in sizes if size >= rows)
        assert size - rows < 8
        assert size < 2 * rows or rows == size


# Each model and each profile once.
LOADS = [("llama", "roomy"), ("llama", "tight"), ("llama", "linear"), ("gemma3_text", "tight")]
LOADS += [("deepseek_v3", "tight"), ("gpt_oss", "roomy"), ("qwen3", "roomy")]


@pytest.mark.parametrize(
    ("model_type", "profile"),
    usual_if(LOADS.__contains__, [*itertools.product(MODELS, ("roomy", "tight")), ("llama", "linear")]),
)
def test_random_loads_have_the_tokens_of_generate(model_type, profile):
    """Mixed steps between decodes of 1 to 8 sequences, prefix hits, forks, preemption, aborted requests."""
    with graphs(every=3) as capturers:
        log, _, _ = drive(reference(model_type, **MODELS[model_type]), profile, 5, count=10, max_model_len=64)
    (capturer,) = capturers
    assert capturer.captured == len(buckets(8))
    assert capturer.replays >= 10
    assert capturer.closed
    assert log.of("preempt") or profile != "tight"


def test_blocks_that_were_swapped_are_read_by_the_next_replay():
    rates = TransferRates(to_host=1e12, to_device=1e12, prefill=1.0)  # a swap is always cheaper
    options = {"max_model_len": 64, "cpu_kv_bytes": 2**20, "swap_rates": rates}
    with graphs(every=3) as capturers:
        log, _, _ = drive(reference("llama"), "tight", 5, **options)
    assert capturers[0].replays >= 10
    assert log.of("swap_in")


@pytest.mark.parametrize(
    ("model_type", "kv_dtype"), every_value(["llama", "gpt_oss"], [None, "int8", "fp8_scaled"])
)
def test_sampled_tokens_and_logprobs_are_the_same_with_and_without(model_type, kv_dtype):
    model = reference(model_type)
    draw = random.Random(model_type)
    params = [
        SamplingParams(
            temperature=draw.choice([0, 0.7, 1.3]),
            top_k=draw.choice([0, 5]),
            top_p=draw.choice([1, 0.8]),
            max_tokens=draw.randrange(3, 14),
            seed=number,
            logprobs=draw.choice([None, 2]),
        )
        for number, _ in enumerate(model.prompts)
    ]
    options = {"kv_dtype": kv_dtype, "max_model_len": 80}
    with make(model.model, **options) as llm:
        due = llm.generate(model.prompts, params)
    with graphs() as capturers, make(model.model, **options) as llm:
        got = llm.generate(model.prompts, params)
    assert capturers[0].replays > 5
    for mine, theirs in zip(got, due, strict=True):
        assert mine.token_ids == theirs.token_ids
        for (one,), (other,) in ((mine.completions, theirs.completions),):
            assert (one.logprobs is None) == (other.logprobs is None)
            for a, b in zip(one.logprobs or (), other.logprobs or (), strict=True):
                assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_nan_in_blocks_that_nobody_reads_reaches_no_row():
    model = reference("llama")
    with graphs(), make(model.model, max_model_len=64) as llm:
        poison(llm.cache, torch.nan)
        outputs = llm.generate(model.prompts[:3], greedy(8))
        assert llm.graphs.capturer.replays
    for out in outputs:
        model.check(out, greedy(8))


def test_nothing_moves_and_nothing_grows_over_300_steps(monkeypatch):
    # A GPU's kernels keep nothing from step to step. A CPU's decode keeps an index, and memory for tiles, which grow
    # with the sequences.
    monkeypatch.setattr("minikv.kernels.attention.available", lambda: False)
    monkeypatch.setattr("minikv.kernels.attention.suits", lambda *_: False)
    monkeypatch.setattr(BlockReader, "_buffer", lambda self, shape, dtype: torch.empty(shape, dtype=dtype))
    model = reference("llama", answers=False, max_position_embeddings=1024, num_hidden_layers=1)
    with (
        graphs(every=16) as capturers,
        make(model.model, max_model_len=400, num_blocks=400, emit=None) as llm,
    ):
        held = llm.graphs
        before, addresses = None, held.buffers.addresses()
        for length in (330, 330, 300):
            llm.add_request(model.prompts[2][: length % 7 + 1], greedy(length))
        for number in range(310):
            llm.step()
            assert held.buffers.addresses() == addresses
            if number == 20:
                before = tensor_bytes()
        assert capturers[0].replays >= 300
        assert held.buffers.arena.report().capacity == held.buffers.sizes.num_bytes
        held.buffers.fill(step_of([[1]]))
        assert tensor_bytes() <= before


def test_a_step_that_fails_leaves_the_next_ones_right(monkeypatch):
    model = reference("llama")
    with graphs() as capturers, make(model.model, max_model_len=64) as llm:
        for fault in ("before", "after"):
            for prompt in model.prompts[:3]:
                llm.add_request(prompt, greedy(6))
            llm.step()
            llm.step()
            replay = llm.graphs.replay

            def broken(*args, fault=fault, replay=replay):
                if fault == "after":
                    replay(*args)
                raise Broken

            with monkeypatch.context() as patch:
                patch.setattr(llm.graphs, "replay", broken)
                out = llm.step()
            assert [type(each.completions[0].error) for each in out.finished] == [Broken] * 3
            check_empty(llm)
            replays = capturers[0].replays
            for out in llm.generate(model.prompts[3:8], greedy(7)):
                model.check(out, greedy(7))
            assert capturers[0].replays > replays


def test_close_gives_everything_back():
    model = reference("llama")
    before = tensor_bytes()
    with graphs() as capturers:
        llm = make(model.model, max_model_len=64)
        llm.generate(model.prompts[:3], greedy(4))
        llm.close()
        llm.close()
    assert capturers[0].closed
    assert tensor_bytes() <= before + 64


def test_close_refuses_while_somebody_reads_the_logits():
    model = reference("llama")
    with graphs():
        llm = make(model.model, max_model_len=64)
        llm.add_request(model.prompts[0], greedy(5))
        llm.step()
        logits = llm.graphs.replay(step_of([[1, 2]]))
        with pytest.raises(ArenaInUseError) as caught:
            llm.close()
        assert caught.value.values["names"] == "decode logits"
        del logits
        llm.close()
        assert llm.graphs.buffers.arena.closed


def test_what_waits_for_the_device_cannot_be_captured():
    model = reference("llama")
    with make(model.model, max_model_len=64) as llm:
        looks = model.model.lm_head.register_forward_hook(lambda *_: (torch.ones(1).item(), None)[1])
        before = tensor_bytes()
        capturer = Rerun()
        try:
            with pytest.raises(Waits):
                DecodeGraphs(llm.adapter, 4, 16, capturer)
        finally:
            looks.remove()
        assert capturer.closed
        assert tensor_bytes() <= before + 64
        for out in llm.generate(model.prompts[:3], greedy(4)):
            model.check(out, greedy(4))


def test_the_stand_in_notices_a_number_that_changes():
    """Or it would prove nothing."""
    model, factor = reference("llama"), [1.0]
    hook = model.model.lm_head.register_forward_hook(lambda _, __, out: out * factor[0])
    try:
        with graphs(), make(model.model, max_model_len=64) as llm:
            llm.add_request(model.prompts[0], greedy(5))
            assert not llm.step().finished
            assert not llm.step().finished
            factor[0] = 2.0
            assert isinstance(llm.step().finished[0].completions[0].error, AssertionError)
    finally:
        hook.remove()


@pytest.mark.slow
def test_the_launches_of_a_replay_are_those_that_were_captured(monkeypatch):
    """On a GPU: kernels, grids, constants and numbers. Here Triton's interpreter runs them."""
    noted, run_launch = [], Launch.run

    def note(launch):
        placed = [
            (tuple(each.shape), each.stride(), each.data_ptr() % 16)
            if isinstance(each, torch.Tensor)
            else each
            for each in launch.arguments
        ]
        noted.append((launch.kernel.__name__, launch.grid, placed, launch.constants, launch.num_warps))
        run_launch(launch)

    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    model = reference("llama", num_hidden_layers=1)
    with graphs(every=99) as capturers, make(model.model, max_model_len=12, max_num_seqs=2) as llm:
        held = llm.graphs
        monkeypatch.setattr(Launch, "run", note)
        replay, launches = held.replay, {}

        def noting(step, *sampled):
            noted.clear()
            logits = replay(step, *sampled)
            first = launches.setdefault(len(logits), list(noted))
            assert noted == first != []
            return logits

        held.replay = noting
        outputs = llm.generate(model.prompts[:2], [greedy(4), greedy(3)])
        del held.replay
        gc.collect()  # of the interpreter, which keeps the last launches
    assert capturers[0].replays == 3
    assert set(launches) == {1, 2}
    assert launches[1] != launches[2]
    for out, count in zip(outputs, (4, 3), strict=True):
        model.check(out, greedy(count))
