"""Decode steps that a CPU replays: the same tokens as the model's own code, and nothing that belongs to one step."""

import random
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.nn.modules.module import register_module_forward_hook

from minikv import SamplingParams
from minikv.engine.ext import recorded
from minikv.engine.ext.graphs import DecodeGraphs, Eager
from minikv.engine.ext.recorded import CpuCapturer
from minikv.kernels.c_library import find_compiler
from tests.engine.llm_world import greedy, make, reference
from tests.engine.test_llm_random import drive
from tests.models.running import World

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="steps with kernels in C are recorded")


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.setenv("MINIKV_CHECKED", "0")


@pytest.fixture
def replays(monkeypatch):
    """The number of replays, of each capture that is made."""
    counts = []
    capture = CpuCapturer.capture

    def counted(self, run):
        replay, place = capture(self, run), len(counts)
        counts.append(0)

        def again():
            counts[place] += 1
            replay()

        return again

    monkeypatch.setattr(CpuCapturer, "capture", counted)
    return counts


def answers(llm, prompts, count=8):
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    return [list(out.completions[0].token_ids) for out in llm.generate(prompts, params, progress=False)]


@pytest.mark.parametrize(
    ("model_type", "profile", "changes"),
    [
        ("llama", "roomy", {}),
        ("llama", "tight", {}),
        ("llama", "linear", {}),
        ("qwen3", "roomy", {"num_hidden_layers": 4}),  # layers 2 and 3 have a window
        ("gemma3_text", "tight", {}),
        ("gemma2", "roomy", {}),  # a softcap
        ("phi3", "tight", {}),
        ("opt", "roomy", {}),
        ("qwen3_moe", "tight", {}),  # experts, chosen by value
        ("mixtral", "roomy", {}),
        ("gpt_oss", "tight", {}),
        # As many weights as are packed.
        ("llama", "tight", {"hidden_size": 384, "intermediate_size": 512}),
    ],
)
def test_random_loads_have_the_tokens_of_generate(model_type, profile, changes, replays):
    """Steps with a prefill between decodes of 1 to 8 sequences, prefix hits, forks, preemption, aborted requests."""
    drive(reference(model_type, **changes), profile, 5, count=12, max_model_len=64)
    assert len(replays) >= 3, "several batch sizes"
    assert sum(replays) >= 20


def test_logits_are_those_of_the_models_own_code():
    """Up to rounding, since a batch is padded; also behind a replay of another size, whose memory is the same."""
    model = reference("llama")
    prompts = model.prompts[:7]
    params = [greedy(3 + 2 * number, logprobs=5) for number in range(len(prompts))]
    found = []
    for eager in (False, True):
        with make(model.model, enforce_eager=eager) as llm:
            assert isinstance(llm.graphs, DecodeGraphs) is not eager
            found.append([out.completions[0] for out in llm.generate(prompts, params, progress=False)])
    for ours, own in zip(*found, strict=True):
        assert ours.token_ids == own.token_ids
        for left, right in zip(ours.logprobs, own.logprobs, strict=True):
            assert left.logprob == pytest.approx(right.logprob, abs=1e-5)


def layer(weights, state):
    """A bit of everything: views, results of several tensors, in place, constants, a branch of the shape."""
    x, scale, slots, pages = state
    one, two, three = weights
    y = silu(x @ one).view(len(x), 2, -1).transpose(0, 1)
    y = scaled_dot_product_attention(y[None], y[None], y[None])[0].transpose(0, 1).reshape(len(x), -1)
    y = torch.cat([y, -y], dim=-1)[:, : x.shape[1]] + torch.arange(x.shape[1])
    top, place = y.topk(3, dim=-1)
    y = y * torch.zeros_like(y).scatter_(1, place, top.softmax(-1))
    if len(x) > 2:
        y = y.add_(x.mean(dim=-1, keepdim=True)).mul_(scale)
    pages.index_copy_(0, slots, y)
    constant = torch.tensor([1.0, 2.0]).mul_(scale).sum()
    return (
        constant * pages.index_select(0, slots) @ two + torch.where(x > 0, x, x.new_full((), 0.5)) @ three.T
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_computes_what_the_code_would(seed):
    """Captures of several sizes take turns, on inputs that change; each is compared with the code on the same."""
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    width = 12
    weights = [[torch.randn(width, width, generator=generator) / 3 for _ in range(3)] for _ in range(4)]
    capturer, made = CpuCapturer(nn.Identity()), {}
    for rows in (1, 2, 5, 8):
        state = torch.zeros(rows, width), torch.ones(1), torch.arange(rows), torch.zeros(16, width)
        out = torch.zeros(rows, width)

        def run(state=state, out=out):
            x, *rest = state
            for each in weights:
                x = layer(each, (x, *rest))
            out.copy_(x)

        with torch.no_grad():
            made[rows] = state, out, run, capturer.capture(run)
    used = capturer.pool_bytes
    for _ in range(30):
        state, out, run, replay = made[draw.choice(list(made))]
        state[0].normal_(generator=generator)
        state[1].uniform_(0.5, 2, generator=generator)
        state[2].copy_(torch.randperm(16, generator=generator)[: len(state[0])])
        with torch.no_grad():
            out.fill_(torch.nan)
            replay()
            found = out.clone()
            run()
        assert torch.equal(found, out)
    assert capturer.pool_bytes == used
    # The layers come after each other in the same memory, and so do the captures.
    assert used < 60 * 8 * width * 4


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: x * x.max().item(),
        lambda x: x * (1 if x.sum() > 0 else 2),
        lambda x: x * x.tolist()[0],
        lambda x: x * torch.from_numpy(x.numpy().copy()),
        lambda x: x * torch.from_numpy(x.__array__()),
        lambda x: x * torch.tensor([x[0], x[1], 1.0, 2.0]),
        lambda x: torch.tensor_split(x, torch.tensor([2]))[0],
        lambda x: x * torch.view_as_complex(torch.stack([x, x], -1)).conj().imag,
        lambda x: nn.LSTM(4, 4).train()(x[None])[0][0] + torch.rand_like(x),
        lambda x: x[x > 0],
        lambda x: x[torch.nonzero(x)[:, 0]],
        lambda x: torch.masked_select(x, x > 0),
        lambda x: torch.rand_like(x) * x,
        lambda x: torch.nn.functional.dropout(x, 0.5),
    ],
)
def test_what_belongs_to_one_step_is_refused(reads):
    x, out = torch.arange(1.0, 5), torch.zeros(4)

    def run():
        found = reads(x)
        out[: len(found)].copy_(found)

    with torch.no_grad(), pytest.raises(RuntimeError, match=r"one step|conjugate"):
        CpuCapturer(nn.Identity()).capture(run)
    assert x.tolist() == [1, 2, 3, 4], "tensors can be read again"


def test_another_thread_may_read_while_a_step_is_captured():
    x, found = torch.arange(1.0, 5), []

    def run():
        reader = threading.Thread(target=lambda: found.append((x.tolist(), float(x.sum()))))
        reader.start()
        reader.join()
        x.add(1)

    CpuCapturer(nn.Identity()).capture(run)
    assert found == [([1, 2, 3, 4], 10)] * 2


def test_a_model_that_reads_values_runs_its_own_code(replays):
    """Experts are chosen by value, and their number is the host's. Nobody is warned: answers come as before."""
    model = reference("llama")
    with make(model.model) as llm:
        due = answers(llm, model.prompts[:4])
    norm = model.model.model.norm
    own = type(norm).forward
    norm.forward = lambda x: own(norm, x) * (1 if float(x.sum()) == float(x.sum()) else 0)
    try:
        with make(model.model) as llm:
            assert llm.graphs.reason == "refused"
            assert "captured" in llm.memory_report().text()
            assert answers(llm, model.prompts[:4]) == due
    finally:
        del norm.forward


def test_a_batch_size_that_cannot_be_captured_runs_the_models_code(replays, monkeypatch):
    model = reference("llama")
    norm = model.model.model.norm
    own = type(norm).forward
    tries, capture = [], CpuCapturer.capture
    monkeypatch.setattr(
        CpuCapturer, "capture", lambda self, run: tries.append(run.rows) or capture(self, run)
    )
    norm.forward = lambda x: own(norm, x * (1 if x.shape[1] < 4 else max(1, int(x.sum() * 0))))
    try:
        with make(model.model) as llm:
            found = answers(llm, model.prompts[:5])
    finally:
        del norm.forward
    assert found == [model.answer(prompt, 8)[0] for prompt in model.prompts[:5]]
    assert len(replays) == 1
    assert tries == [1, 8], "it is tried once"


def test_a_capture_in_the_middle_of_a_run_touches_no_block(replays):
    """It is made of padding: sequences that run have what they had."""
    model = reference("llama")
    with make(model.model) as llm:
        llm.add_request(list(model.prompts[5]), greedy(12, ignore_eos=True))
        for _ in range(4):
            llm.step()
        held = llm.cache.layer(0)
        before, known = (held.k.clone(), held.v.clone()), len(replays)
        assert llm.graphs._is_captured(8)
        assert len(replays) == known + 1
        assert torch.equal(before[0], held.k)
        assert torch.equal(before[1], held.v)
        del held


@pytest.mark.parametrize("change", ["hook", "everywhere", "moved", "forward", "checked", "reference"])
def test_a_model_that_changes_runs_its_own_code(change, replays, monkeypatch):
    """Hooks are called, weights and functions that were exchanged count, checks are made: from the next prompt on."""
    world = World.bare("llama", num_hidden_layers=2, hidden_size=24, intermediate_size=28)
    seen, undo = [], None
    with make(world) as llm:
        first = answers(llm, [[5, 6, 7]])
        count = sum(replays)
        assert count
        if change == "hook":
            undo = world.model.norm.register_forward_hook(lambda *_: seen.append(1))
        elif change == "everywhere":
            norm = world.model.norm
            undo = register_module_forward_hook(lambda module, *_: seen.append(1) if module is norm else None)
        elif change == "forward":
            own = world.model.norm.forward
            world.model.norm.forward = lambda x: seen.append(1) or own(x)
        elif change == "moved":
            world.lm_head.weight.data = world.lm_head.weight.data.flip(0).clone()
        elif change == "checked":
            monkeypatch.setenv("MINIKV_CHECKED", "1")
        else:
            monkeypatch.setenv("MINIKV_KERNELS", "reference")
        llm.reset_prefix_cache()
        second = answers(llm, [[5, 6, 7]])
        if change in ("moved", "forward"):
            assert sum(replays) > count, "recorded anew"
            assert change == "moved" or seen
        else:
            assert sum(replays) == count
        if change == "moved":
            last = world.lm_head.weight.shape[0] - 1
            assert second[0][0] == last - first[0][0]
        else:
            assert second == first
        if undo is not None:
            assert len(seen) == 8
            undo.remove()
            llm.reset_prefix_cache()
            assert answers(llm, [[5, 6, 7]]) == first
            assert sum(replays) > count


def test_results_that_are_no_tensor_are_left_out():
    x, out = torch.arange(1.0, 5), torch.zeros(4)
    cell = nn.LSTM(4, 4).eval()
    with torch.no_grad():
        replay = CpuCapturer(cell).capture(lambda: out.copy_(cell(x[None])[0][0]))
        x.mul_(-0.5)
        replay()
        assert torch.equal(out, cell(x[None])[0][0])


def test_numbers_that_another_thread_draws_are_none_of_the_step():
    x, out = torch.arange(1.0, 5), torch.zeros(4)

    def run():
        drawing = threading.Thread(target=torch.rand, args=(3,))
        drawing.start()
        drawing.join()
        out.copy_(x + 1)

    CpuCapturer(nn.Identity()).capture(run)


@pytest.mark.parametrize("where", ["open", "run"])
def test_inference_mode_may_be_on_or_off(where):
    model = reference("llama")
    prompts = model.prompts[:5]
    with torch.inference_mode(where == "open"):
        llm = make(model.model)
    with llm:
        for on in (where == "run", where == "open", where == "run"):
            with torch.inference_mode(on):
                llm.reset_prefix_cache()
                assert answers(llm, prompts) == [model.answer(prompt, 8)[0] for prompt in prompts]


def test_autocast_is_computed_by_the_models_code(replays):
    model = reference("llama")
    with make(model.model) as llm:
        before = answers(llm, model.prompts[:3])
        count = sum(replays)
        with torch.autocast("cpu", torch.bfloat16):
            llm.reset_prefix_cache()
            answers(llm, model.prompts[:3])
        assert sum(replays) == count
        llm.reset_prefix_cache()
        assert answers(llm, model.prompts[:3]) == before
        assert sum(replays) > count


def test_another_llm_on_the_model_disturbs_no_step(replays):
    """Its weights are packed once, and stay where they are."""
    model = reference("llama", hidden_size=384, intermediate_size=512)
    prompt = model.prompts[5]
    with make(model.model) as llm:
        llm.add_request(list(prompt), greedy(8, ignore_eos=True))
        for _ in range(3):
            llm.step()
        count = sum(replays)
        with make(model.model) as other:
            assert answers(other, [prompt]) == [model.answer(prompt, 8)[0]]
            while llm.has_work:
                done = llm.step().finished
        assert list(done[0].completions[0].token_ids) == model.answer(prompt, 8)[0]
        assert sum(replays) > count + 6


def test_what_a_step_reads_stays_when_a_weight_moves(replays):
    """In the middle of a sequence the memory that was recorded is kept; from the next prompt on the new one counts."""
    world = World.bare("llama", num_hidden_layers=2, hidden_size=24, intermediate_size=28)
    norm = world.model.norm
    with make(world) as llm:
        before = answers(llm, [[5, 6, 7]])
        llm.add_request([5, 6, 7], greedy(8, ignore_eos=True))
        llm.reset_prefix_cache()
        for _ in range(3):
            llm.step()
        norm.weight.data = norm.weight.data.clone()
        gone = [torch.full_like(norm.weight, torch.nan) for _ in range(50)]
        while llm.has_work:
            done = llm.step().finished
        assert list(done[0].completions[0].token_ids) == before[0]
        count = len(replays)
        assert answers(llm, [[5, 6, 7]]) == before
        assert len(replays) == count + 1, "recorded anew"
        del gone


def test_a_capture_that_was_interrupted_keeps_nothing(monkeypatch):
    model = reference("llama")
    llm = make(model.model)
    answers(llm, model.prompts[:1])

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(recorded._Notes, "__torch_dispatch__", stop)
    with pytest.raises(KeyboardInterrupt) as kept:
        answers(llm, model.prompts[:5])
    monkeypatch.undo()
    monkeypatch.setenv("MINIKV_CHECKED", "0")
    llm.close()
    assert kept.value is not None


def test_a_replay_that_would_differ_is_not_used(monkeypatch):
    model = reference("llama")
    own = recorded._again
    monkeypatch.setattr(
        recorded,
        "_again",
        lambda func, *rest: own(
            torch.ops.aten.neg.default if func is torch.ops.aten.silu.default else func, *rest
        ),
    )
    with make(model.model) as llm:
        assert llm.graphs.reason == "refused"
        assert "differs" in llm.graphs.detail
        assert answers(llm, model.prompts[:2]) == [model.answer(prompt, 8)[0] for prompt in model.prompts[:2]]


def test_close_gives_the_memory_back():
    model = reference("llama")
    llm = make(model.model)
    answers(llm, model.prompts[:3])
    held = llm.graphs
    report = llm.memory_report()
    assert report.graphs.pool_bytes > 0
    assert report.graphs.driver_bytes == 0
    assert f"{report.graphs.count} recorded" in report.text()
    llm.close()
    assert held.capturer.pool_bytes == 0


def test_where_nothing_is_recorded_it_says_why(monkeypatch):
    model = reference("llama")
    with make(model.model, enforce_eager=True) as llm:
        assert llm.graphs == Eager("asked")
        assert "enforce_eager" in llm.memory_report().text()
    monkeypatch.setattr(recorded, "find_compiler", lambda: None)
    with make(model.model) as llm:
        assert llm.graphs == Eager("cpu")
