"""Steps ahead on a GPU: the same tokens, and the device has the next step before it has done this one."""

import warnings

import pytest
import torch

import minikv.engine.core.runner
from minikv.engine import SamplingParams
from minikv.engine.core.runner import Runner
from minikv.engine.ext.graphs import Eager
from tests.engine.llm_world import check_empty, greedy, make
from tests.engine.overlap import Prompt, overlapping
from tests.models.running import World

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
PROMPTS = [[5, 6, 7], list(range(1, 40)), [9] * 17, [3] * 6, [8, 1]]


@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("llama", {}),
        ("llama", {"kv_dtype": "int8"}),
        ("llama", {"cache": "linear", "num_blocks": 8}),
        ("gemma3_text", {}),
        ("qwen3", {}),
    ],
)
def test_tokens_are_those_of_one_step_after_the_other(model_type, options, enforce_eager):
    """Greedy and drawn; stop tokens end some texts early, and their rows are dropped."""
    model = World.bare(model_type).to("cuda", torch.float32)
    params = [
        SamplingParams(temperature=number % 2 * 1.5, max_tokens=20 - number, seed=number, logprobs=1)
        for number in range(len(PROMPTS))
    ]
    options = {"max_model_len": 100, "enforce_eager": enforce_eager, **options}
    with make(model, **options) as llm:
        assert llm.overlaps
        llm.overlaps = False
        due = llm.generate(PROMPTS, params)
        stopped = [
            SamplingParams(temperature=1.5, max_tokens=20, seed=3, stop_token_ids=(out.token_ids[4],))
            for out in due
        ]
        due_stopped = llm.generate(PROMPTS, stopped)
    with overlapping(Prompt()) as device, make(model, **options) as llm:
        got = llm.generate(PROMPTS, params)
        got_stopped = llm.generate(PROMPTS, stopped)
        assert isinstance(llm.graphs, Eager) == enforce_eager
        check_empty(llm)
    assert len(device.ahead()) > 20
    assert [out.token_ids for out in got] == [out.token_ids for out in due]
    assert [out.token_ids for out in got_stopped] == [out.token_ids for out in due_stopped]
    for mine, theirs in zip(got, due, strict=True):
        pairs = zip(mine.completions[0].logprobs, theirs.completions[0].logprobs, strict=True)
        assert all(a.logprob == pytest.approx(b.logprob, abs=1e-3) for a, b in pairs)


def test_reading_a_step_does_not_wait_for_the_one_behind_it(monkeypatch):
    """The one behind begins with a pause that is far longer than the host takes to look."""
    model = World.bare("llama").to("cuda")
    run, launched, seen = Runner.run, [], []
    with make(model, max_model_len=64) as llm:
        llm.add_request([1, 2, 3], greedy(30))
        for _ in range(4):
            llm.step()

        def paused(runner, step, *others):
            torch.cuda._sleep(10**9)
            launched.append(run(runner, step, *others))
            return launched[-1]

        real = minikv.engine.core.runner.SampledTokens.read

        def read(drawing):
            sampled = real(drawing)
            seen.append(launched[-1].numbers._copied.query())
            return sampled

        monkeypatch.setattr(Runner, "run", paused)
        monkeypatch.setattr(minikv.engine.core.runner.SampledTokens, "read", read)
        for _ in range(3):
            llm.step()
    assert seen[:3] == [False] * 3


def test_a_step_is_read_without_stopping_the_stream():
    model = World.bare("llama").to("cuda")
    with make(model, max_model_len=64) as llm:
        llm.add_request([1, 2, 3], greedy(30))
        for _ in range(4):
            llm.step()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                for _ in range(5):
                    llm.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert not [each for each in said if "called a synchronizing" in str(each.message)]
