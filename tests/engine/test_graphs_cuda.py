"""The capturer of CUDA graphs: what it asks of torch.cuda, in which order; and, with a GPU, the graphs themselves."""

import gc
import inspect
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from minikv.engine.ext import graphs as module
from minikv.engine.ext.graphs import CudaCapturer, DecodeGraphs
from tests.engine.llm_world import greedy, make
from tests.models.running import World

# Rows of whole 16 bytes, as torch's grouped product of experts wants them.
EXPERTS = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class FakeCuda:
    """``torch.cuda`` as a list of calls. ``mode`` is the debug mode, ``fails`` what the end of a capture raises."""

    def __init__(self):
        self.calls, self.mode, self.stream_now = [], 0, "main"
        self.reserved, self.free, self.fails, self.warned = 100, 900, None, False

    def note(self, name):
        return lambda *_, **__: self.calls.append(name)

    @contextmanager
    def device(self, device):
        yield

    @contextmanager
    def stream(self, stream):
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        assert (pool, stream, capture_error_mode) == ("pool", "side", "thread_local")
        self.calls.append("begin")
        self.stream_now, self.reserved, self.free = stream, self.reserved + 30, self.free - 37
        yield
        self.calls.append("end")
        if self.fails:
            raise self.fails

    def set_sync_debug_mode(self, mode):
        if not self.warned:  # torch says so once in a process
            warnings.warn("a prototype", stacklevel=1)
        self.mode, self.warned = mode, True

    def install(self, monkeypatch):
        owned = {
            "Stream": lambda: "side",
            "graph_pool_handle": lambda: "pool",
            "synchronize": self.note("synchronize"),
            "empty_cache": self.note("empty"),
            "CUDAGraph": lambda: SimpleNamespace(replay=self.note("replay"), reset=self.note("reset")),
            "get_sync_debug_mode": lambda: self.mode,
            "mem_get_info": lambda _: (self.free, 1000),
            "memory_reserved": lambda _: self.reserved,
        }
        for name in ("device", "stream", "graph", "set_sync_debug_mode"):
            owned[name] = getattr(self, name)
        for name, value in owned.items():
            assert hasattr(torch.cuda, name)
            monkeypatch.setattr(module.torch.cuda, name, value)


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def test_it_warms_up_and_looks_for_waits_before_it_captures(cuda):
    capturer, seen = CudaCapturer(torch.device("cuda")), []

    def run():
        cuda.calls.append("run")
        seen.append((cuda.mode, cuda.stream_now))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay = capturer.capture(run)
    assert seen == [(0, "side"), ("warn", "side"), (0, "side")]
    assert cuda.mode == 0
    assert cuda.stream_now == "main"
    expected = [
        "synchronize",
        "run",
        "run",
        "synchronize",
        "empty",
        "begin",
        "run",
        "end",
        "replay",
        "synchronize",
    ]
    assert cuda.calls == expected
    replay()
    assert cuda.calls[-1] == "replay"
    assert (capturer.pool_bytes, capturer.driver_bytes) == (30, 7)
    capturer.close()
    capturer.close()
    assert cuda.calls.count("reset") == 1


def test_a_run_that_waits_is_not_captured(cuda):
    def run():
        if cuda.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation (of CUDAFunctions.cpp)", stacklevel=1)

    with pytest.raises(RuntimeError, match=r"synchronizing CUDA operation, test_graphs_cuda\.py line"):
        CudaCapturer(torch.device("cuda")).capture(run)
    assert "begin" not in cuda.calls
    assert (cuda.mode, cuda.stream_now) == (0, "main")


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_run_that_fails_leaves_stream_and_mode_as_they_were(cuda, at):
    capturer, count = CudaCapturer(torch.device("cuda")), iter(range(1, 9))

    def run():
        if next(count) == at:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        capturer.capture(run)
    assert (cuda.mode, cuda.stream_now) == (0, "main")
    assert ("begin" in cuda.calls) == (at == 3)


def test_a_capture_that_cannot_end_leaves_its_stream(cuda):
    cuda.fails = RuntimeError("operation failed due to a previous error during capture")
    with pytest.raises(RuntimeError, match="previous error"):
        CudaCapturer(torch.device("cuda")).capture(lambda: None)
    assert cuda.stream_now == "main"
    assert "replay" not in cuda.calls


def test_torch_knows_the_arguments():
    given = inspect.signature(torch.cuda.graph.__init__).parameters
    assert {"cuda_graph", "pool", "stream", "capture_error_mode"} <= set(given)
    assert {"replay", "reset"} <= set(vars(torch.cuda.CUDAGraph))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("llama", {}),
        ("llama", {"kv_dtype": "int8"}),
        ("llama", {"cache": "linear", "num_blocks": 8}),
        ("gemma3_text", {}),
        ("deepseek_v3", {}),
        ("gpt_oss", {}),
    ],
)
def test_on_a_gpu_a_replay_is_bit_for_bit_what_was_captured(model_type, options):
    """Against the same padded step, computed; and the tokens against an engine that computes every step."""
    experts = model_type in ("deepseek_v3", "gpt_oss")
    # torch multiplies experts without a look at their shares in bfloat16 alone.
    model = World.bare(model_type, **(EXPERTS if experts else {}))
    model = model.to("cuda", torch.bfloat16 if experts else torch.float32)
    prompts = [[5, 6, 7], list(range(1, 40)), [9] * 17, [3] * 6, [8, 1]]
    with make(model, max_model_len=100, enforce_eager=True, **options) as llm:
        assert llm.graphs.reason == "asked"
        due = llm.generate(prompts, greedy(20))
    with make(model, max_model_len=100, **options) as llm:
        held = llm.graphs
        if isinstance(held, module.Eager) and experts and torch.cuda.get_device_capability() < (8, 0):
            pytest.skip("a product of experts that does not wait needs compute capability 8.0")
        assert isinstance(held, DecodeGraphs), llm.graphs
        computed = []
        replay = held.replay

        def both(*args):
            logits = replay(*args).clone()
            rows = min(size for size in held.buckets if size >= len(logits))
            again = llm.adapter.forward(held.buffers.token_ids(rows), held.buffers.batch(rows))
            computed.append(torch.equal(again[: len(logits)], logits))
            return logits

        held.replay = both
        got = llm.generate(prompts, greedy(20))
        del held.replay
    assert len(computed) > 10
    assert all(computed)
    if not experts:  # in bfloat16 a product of other many rows may round another way
        assert [out.token_ids for out in got] == [out.token_ids for out in due]


def memory():
    """Bytes allocated and reserved when nothing is under way."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def settled(step, read=memory, tries=15):
    """What ``read`` says when 20 steps no longer change it: temporaries may take a segment later than the first."""
    seen = [read()]
    for _ in range(tries):
        for _ in range(20):
            step()
        seen.append(read())
        if seen[-1] == seen[-2]:
            return seen[-1]
    raise AssertionError(f"memory does not settle: {seen}")


def test_memory_has_settled_when_two_readings_are_equal():
    steps, readings = [], iter([(1, 5), (2, 5), (2, 9), (2, 9), (7, 7)])
    assert settled(lambda: steps.append(1), readings.__next__) == (2, 9)
    assert len(steps) == 60
    growing = iter(range(99))
    with pytest.raises(AssertionError, match=r"does not settle: \[0, 1, 2, 3\]"):
        settled(lambda: None, growing.__next__, tries=3)


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_replays_allocate_nothing_and_their_memory_is_reported():
    model = World.bare("llama", max_position_embeddings=1024).to("cuda")
    with make(model, max_model_len=900, num_blocks=900, emit=None) as llm:
        held = llm.graphs
        for _ in range(3):
            llm.add_request([1, 2, 3], greedy(800))
        allocated, reserved = settled(llm.step)
        for _ in range(400):
            llm.step()
        now_allocated, now_reserved = memory()
        assert now_allocated == allocated
        assert now_reserved <= reserved
        found = held.memory
        assert found.buffer_bytes == held.buffers.arena.capacity
        assert found.pool_bytes > 0
        report = llm.memory_report()
        assert sum(report.parts().values()) == report.total
        assert report.parts()["graphs"] == found.num_bytes


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_step_waits_once():
    model = World.bare("llama").to("cuda")
    with make(model, max_model_len=64) as llm:
        llm.add_request([1, 2, 3], greedy(30))
        for _ in range(4):
            llm.step()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                for _ in range(5):
                    llm.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert len([each for each in seen if "synchroniz" in str(each.message).lower()]) <= 5 + 1


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_model_that_waits_runs_without_graphs():
    model = World.bare("llama").to("cuda")
    model.lm_head.register_forward_hook(lambda _, __, out: out * float(out.isfinite().all()))
    with pytest.warns(UserWarning, match="No CUDA graphs"):
        llm = make(model, max_model_len=64)
    assert llm.graphs.reason == "refused"
    with llm:
        assert len(llm.generate([[1, 2, 3]], greedy(5))[0].token_ids) == 5
