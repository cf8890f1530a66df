"""Why an engine has no CUDA graphs, and what those that it has take: held before, measured after, and reported."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from minikv.cache.allocator import warmup
from minikv.engine import factory
from minikv.engine.ext import graph_memory
from minikv.engine.ext import graphs as module
from minikv.engine.ext.graphs import Eager, capture_decodes, expected_memory, partial_bytes, table_width
from minikv.engine.factory import build_cache
from minikv.errors import ArgumentError, DoesNotFitError
from minikv.kernels.expanding import LatentSizes
from minikv.memory import Arena
from minikv.models import ATTENTION, own_attention
from minikv.plan import CacheSpec
from minikv.plan.estimate import EXPANDED_BYTES
from tests.engine.llm_world import greedy, make, reference, run, tensor_bytes
from tests.engine.rerun import graphs
from tests.engine.test_factory import wish
from tests.engine.test_memory_report import CUDA, GPU
from tests.models.running import World

# Why there are none ---------------------------------------------------------------------------------------


def on_cuda(**changes):
    """As much of an adapter on a GPU as is looked at before anything is captured."""
    window = SimpleNamespace(layer=SimpleNamespace(window=None))
    cache = SimpleNamespace(
        device=torch.device("cuda"), num_blocks=[9], kv_cache_groups=[window], block_size=4
    )
    return SimpleNamespace(
        **{"cache": cache, "reads": "paged", "position_limit": None, "states": None, **changes}
    )


def test_it_says_why_nothing_is_captured():
    model = reference("llama")
    with make(model.model) as llm:
        assert llm.graphs == Eager("cpu")
        assert "graph" not in llm.memory_report().text()
    assert capture_decodes(on_cuda(), 4, 8, enforce_eager=True) == Eager("asked")
    assert capture_decodes(on_cuda(), 4, 8, ranks=2) == Eager("ranks")
    assert capture_decodes(on_cuda(reads="gather"), 4, 8) == Eager("gather")
    assert capture_decodes(on_cuda(states=object()), 4, 8) == Eager("states")
    endless = on_cuda()
    endless.cache.kv_cache_groups[0].layer.window = 7
    assert capture_decodes(endless, 4, None) == Eager("endless")


def test_a_table_is_as_wide_as_the_longest_sequence_or_the_pool():
    assert table_width(on_cuda(), 17) == 5
    assert table_width(on_cuda(), 1000) == 9
    assert table_width(on_cuda(), None) == 9


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "memory"),
        (DoesNotFitError("arena_no_memory", arena="x", nbytes="9 B", device="cuda:0"), "memory"),
        (RuntimeError("a wait\nmore"), "refused"),
    ],
)
def test_what_torch_refuses_runs_without_graphs_and_says_so(monkeypatch, error, reason):
    def refuses(*_):
        raise error

    monkeypatch.setattr(module, "CudaCapturer", refuses)
    with pytest.warns(UserWarning, match=r"No CUDA graphs: .*slower"):
        why = capture_decodes(on_cuda(), 4, 8)
    assert why.reason == reason
    assert why.detail == str(error).splitlines()[0].rstrip(".")
    for lang in ("en", "zh"):
        assert why.detail in why.text(lang)


def test_an_error_of_ours_is_raised_and_the_model_is_as_it_was(monkeypatch):
    model = reference("llama")

    def refuses(*_, **__):
        raise ArgumentError("llm_closed")

    before = tensor_bytes()
    monkeypatch.setattr("minikv.engine.factory.capture_decodes", refuses)
    with pytest.raises(ArgumentError):
        make(model.model)
    monkeypatch.undo()
    assert not model.model.config._attn_implementation.startswith("minikv")
    assert tensor_bytes() <= before + 64
    with make(model.model) as llm:
        _, outputs = run(llm)
        assert not outputs


# Their memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_the_expected_memory_has_the_buffers_to_the_byte(model_type):
    model = reference(model_type)
    with graphs(), make(model.model, max_model_len=50, max_num_seqs=6) as llm:
        found = llm.graphs.memory
        spec, width = llm.cache.spec, llm.graphs.buffers.sizes.width
        assert width == 13
    expected = expected_memory(model.model, spec, 6, width, 4)
    assert (expected.count, expected.buffer_bytes) == (found.count, found.buffer_bytes)
    logits = 6 * 97 * 4
    assert expected.pool_bytes >= module.POOL_SLACK + logits
    assert expected.driver_bytes == found.count * module.GRAPH_BYTES


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "deepseek_v3"])
def test_the_partial_results_of_split_attention_are_those_of_the_launches(monkeypatch, model_type):
    """For every layer and every batch size that is captured; plain torch and C leave none."""
    launches = pytest.importorskip("minikv.kernels.gpu.launches")
    made, model = [0], reference(model_type, answers=False, max_position_embeddings=4096).model

    def noted(launch):
        if launch.kernel is launches.merge_splits_kernel:
            made.append(sum(tensor.nbytes for tensor in launch.arguments[:3]))

    monkeypatch.setattr(launches.Launch, "run", noted)
    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    with graphs(), make(model, num_blocks=256, block_size=16, max_num_seqs=6) as llm:
        spec, sizes = llm.cache.spec, llm.graphs.buffers.sizes
    assert max(made) == partial_bytes(model, spec, sizes, 16) > 0
    with_parts = expected_memory(model, spec, 6, sizes.width, 16)
    monkeypatch.setenv("MINIKV_KERNELS", "reference")
    assert partial_bytes(model, spec, sizes, 16) == 0
    without = expected_memory(model, spec, 6, sizes.width, 16)
    assert with_parts.pool_bytes - without.pool_bytes == max(made)
    monkeypatch.delenv("MINIKV_KERNELS")
    assert partial_bytes(model, spec, sizes, 16) == 0


def test_a_model_that_is_bound_already_can_be_measured():
    model = reference("llama")
    with make(model.model) as llm:
        with own_attention(model.model):
            assert expected_memory(model.model, llm.cache.spec, 4, 8, 4).count == 3
            warmup(model.model, 8)
        model.check(llm.generate(model.prompts[0], greedy(5))[0], greedy(5))
    with own_attention(model.model):
        assert model.model.config._attn_implementation != ATTENTION


def test_the_memory_is_held_while_the_cache_is_measured(monkeypatch):
    model, arenas = reference("llama").model, []
    spec = CacheSpec.from_config(model.config, kv_dtype="fp32")
    expected = factory._graph_bytes(model, spec, wish(), 64)
    assert expected == expected_memory(model, spec, 8, 16, 4).num_bytes
    assert not factory._graph_bytes(model, spec, wish(enforce_eager=True), 64)
    assert not factory._graph_bytes(model, spec, wish(), None)
    monkeypatch.setattr(
        graph_memory, "Arena", lambda *args, **more: arenas.append(Arena(*args, **more)) or arenas[-1]
    )
    with graph_memory.held(expected, torch.device("cpu")):
        assert arenas[0].capacity == expected
        assert not arenas[0].closed
    assert arenas[0].closed
    with graph_memory.held(0, torch.device("cpu")):
        assert len(arenas) == 1
    with monkeypatch.context() as patch:

        def refuses(*_):
            raise torch.OutOfMemoryError

        patch.setattr(factory, "expected_memory", refuses)
        assert not factory._graph_bytes(model, spec, wish(), 64), "allocate_kv_cache says what is short"
    _, report = build_cache(model, spec, wish(num_blocks=9))
    assert report.held_bytes == 0, "the size is given"


@pytest.mark.parametrize(
    ("model_type", "kv_dtype"), [("deepseek_v3", "fp8"), ("deepseek_v32", "fp32"), ("llama4_text", "fp32")]
)
def test_nothing_is_held_for_a_model_that_will_read_copies(model_type, kv_dtype):
    model = World.bare(model_type)
    model.config.dtype = torch.float32
    spec = CacheSpec.from_config(model.config, kv_dtype=kv_dtype)
    assert factory._graph_bytes(model, spec, wish(), 64) == 0
    assert factory._expanded_bytes(model, spec, wish(), 64) == 0
    with make(model, kv_dtype=kv_dtype) as llm:
        assert llm.adapter.reads == "gather"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_a_prefill_makes_of_latents_is_held_too_and_named(monkeypatch, lang):
    model = reference("deepseek_v3").model
    monkeypatch.setattr(model.config, "dtype", torch.float32)
    spec = CacheSpec.from_config(model.config, kv_dtype="fp32")
    config = model.config
    rank, rope, nope = config.kv_lora_rank, config.qk_rope_head_dim, config.qk_nope_head_dim
    heads = config.num_attention_heads
    sizes = LatentSizes(heads, rank, rope, nope, config.v_head_dim, 4, EXPANDED_BYTES, wish().block_size)
    for longest in (64, 61):
        assert factory._expanded_bytes(model, spec, wish(), longest) == 64 * sizes.key_bytes(heads)
    assert factory._expanded_bytes(model, spec, wish(), None) == EXPANDED_BYTES
    assert not factory._expanded_bytes(model, spec, wish(reads="gather"), 64)
    other = reference("llama").model
    assert not factory._expanded_bytes(other, CacheSpec.from_config(other.config), wish(), 64)
    _, report = build_cache(model, spec, wish(num_blocks=9))
    assert report.expanded_bytes == 0, "the size is given"
    assert f"{2**28:,}" in replace(report, expanded_bytes=2**28).text(lang)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_reports_say_what_the_graphs_take(lang):
    found = module.GraphMemory(11, 70, 2**27, 2**25)
    report = replace(GPU, graphs=found, held_bytes=2**20)
    assert sum(report.parts().values()) == report.total
    assert report.parts()["graphs"] == found.num_bytes
    silent = replace(report, stats=replace(CUDA, others=None, nvml="no"))
    assert sum(silent.parts().values()) == silent.total
    plain = GPU.parts()
    assert plain["cached"] - report.parts()["cached"] == found.pool_bytes
    assert plain["context"] - report.parts()["context"] == found.driver_bytes
    assert plain["tensors"] - report.parts()["tensors"] == found.buffer_bytes
    text = report.text(lang)
    assert f"{found.num_bytes - 2**20:,}" in text
    assert f"{found.num_bytes:,}" in text
    assert f"{found.num_bytes - 2**20:,}" not in replace(report, held_bytes=2**28).text(lang)
    why = Eager("refused", "a wait")
    assert why.text(lang) in replace(GPU, why_eager=why).text(lang)
    assert report.as_dict()["graphs"] == 11
