"""allocate_kv_cache: sizes given on a CPU, the measured arithmetic with made-up figures, and the report."""

import pytest
import torch
from torch import nn

from minikv.cache import AllocationReport, allocate_kv_cache, allocator, warmup
from minikv.errors import DoesNotFitError, MiniKVError
from minikv.memory import MemoryStats, PeakReport
from minikv.plan import pool
from minikv.plan.budget import plan_memory
from minikv.plan.spec.cache_spec import CacheSpec
from tests.plan.small_models import small_config, small_model

DECODERS = ["llama", "qwen3", "gemma3_text", "mistral", "deepseek_v3", "gemma4_text", "mixtral"]
MIB = 2**20


@pytest.fixture(scope="module")
def models():
    return {name: small_model(small_config(name), torch.bfloat16) for name in DECODERS}


@pytest.fixture
def llama(models):
    return models["llama"]


def refused(call, code, error=MiniKVError):
    with pytest.raises(error) as caught:
        call()
    assert caught.value.code == code
    assert caught.value.text("zh") != caught.value.text("en")
    return caught.value


@pytest.mark.parametrize("name", DECODERS)
def test_given_bytes_are_filled_to_the_block(models, name):
    room = 3_000_000
    cache, report = allocate_kv_cache(models[name], kv_bytes=room, block_size=8, context=100)
    assert cache.nbytes == report.kv_bytes
    assert 0 <= room - cache.nbytes < report.block_bytes
    assert cache.num_blocks == report.blocks
    assert report.how == "kv_bytes"
    assert report.terms is report.peak is None
    assert {
        part.tensor.dtype for group in range(len(cache.kv_cache_groups)) for part in cache.parts(group)
    } == {torch.bfloat16}
    assert sum(report.parts().values()) == report.stats.total


@pytest.mark.parametrize("name", DECODERS)
def test_given_blocks_are_made(models, name):
    cache, report = allocate_kv_cache(models[name], num_blocks=21, block_size=8, context=64)
    counted = pool.counted_groups(cache.spec)
    for group, blocks in zip(cache.kv_cache_groups, cache.num_blocks, strict=True):
        assert blocks == (21 if group in counted else 2 * group.layer.blocks_for(64, 8))
    assert (report.num_blocks, report.max_tokens, report.batch) == (21, 168, 2)


@pytest.mark.parametrize("name", DECODERS)
def test_the_planner_and_the_allocator_agree_on_weights_and_cache_to_the_byte(models, name):
    model = models[name]
    config = model.config.to_dict() | {"dtype": "bfloat16"}
    budget = plan_memory(config, gpu_bytes=20 * MIB, chunk=64, context=100, batch=3, cuda_context_bytes=MIB,
                         workspace_bytes=MIB)  # fmt: skip
    cache, report = allocate_kv_cache(model, kv_bytes=budget.kv_bytes, context=100, batch=3, warmup_tokens=64)
    assert report.weight_bytes == budget.weight_bytes
    assert report.num_blocks == budget.num_blocks
    assert report.block_bytes == budget.block_bytes
    assert report.max_tokens == budget.max_tokens
    assert cache.spec.layers == budget.spec.layers
    groups = pool.kv_cache_groups(budget.spec)
    planned = sum(group.block_bytes(16) * n for group, n in zip(groups, report.blocks, strict=True))
    assert cache.nbytes == planned
    assert report.peak.extra > 0


def test_the_dtype_is_that_of_the_parameters_and_can_be_another(llama):
    assert allocate_kv_cache(llama, num_blocks=2)[0].spec.kv_dtype == "bf16"
    wide = small_model(small_config("llama"), torch.float32)
    assert allocate_kv_cache(wide, num_blocks=2)[0].spec.kv_dtype == "fp32"
    small, report = allocate_kv_cache(llama, num_blocks=2, kv_dtype="int8")
    assert small.layer(0).k.dtype == torch.int8
    assert report.kv_bytes == small.nbytes == 2 * small.spec.block_bytes(16)


def test_ranks_hold_their_share_of_the_heads(llama):
    whole, _ = allocate_kv_cache(llama, num_blocks=4)
    half, report = allocate_kv_cache(llama, num_blocks=4, tp=2)
    assert whole.layer(0).k.shape[2] == 2 * half.layer(0).k.shape[2]
    assert report.block_bytes * 2 == whole.nbytes // 4
    assert report.tp == 2


class Recorder(nn.Module):
    """Notes what the warm-up calls it with."""

    def __init__(self, config):
        super().__init__()
        self.config, self.weight, self.calls = config, nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), []

    def forward(self, input_ids, use_cache, logits_to_keep=0):
        self.calls.append((tuple(input_ids.shape), use_cache, logits_to_keep, torch.is_grad_enabled()))
        return input_ids.new_zeros(MIB, dtype=torch.uint8)


def test_the_warm_up_is_one_prefill_without_a_cache_or_gradients():
    model = Recorder(small_config("llama"))
    warmup(model, 77)
    assert model.calls == [((1, 77), False, 1, False)]
    _, report = allocate_kv_cache(model, num_blocks=2, warmup_tokens=300)
    assert model.calls[1:] == [((1, 300), False, 1, False)]
    assert report.warmup_tokens == 300
    assert MIB <= report.peak.extra < MIB + 10_000
    model.calls.clear()
    _, report = allocate_kv_cache(model, num_blocks=2)
    assert model.calls == []
    assert report.warmup_tokens is report.peak is None


def test_what_a_model_remembers_of_its_first_forward_stays_usable():
    class Remembers(Recorder):
        def forward(self, input_ids, **_):
            self.table = self.weight.detach() * 2

    model = Remembers(small_config("llama"))
    warmup(model, 4)
    (model.table * model.weight).sum().backward()  # an inference tensor could not be saved for this
    assert model.weight.grad.tolist() == [2, 2, 2]


def test_the_warm_up_leaves_the_model_as_it_was(llama):
    names = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
    warmup(llama, 64)
    assert all(torch.equal(tensor, names[name]) for name, tensor in llama.state_dict().items())
    assert all(parameter.grad is None for parameter in llama.parameters())
    assert not any(tensor.is_inference() for tensor in (*llama.parameters(), *llama.buffers()))


# The measured form, with a reader whose figures are made up: no GPU is needed for its arithmetic.


def measuring(monkeypatch, *, total, used, peak, current, others=None, nvml=None):
    stats = MemoryStats("cuda:0", total, total - used, current, current, current, 0, others, nvml)

    def measure(fn, device):
        fn()
        return PeakReport("cuda:0", current, peak, current)

    monkeypatch.setattr(allocator, "_is_measurable", lambda device: True)
    monkeypatch.setattr(allocator, "measure_peak", measure)
    monkeypatch.setattr(allocator.MemoryStats, "read", lambda device: stats)


@pytest.mark.parametrize("name", DECODERS)
def test_the_measured_size_is_the_formulas(models, monkeypatch, name):
    measuring(monkeypatch, total=40 * MIB, used=11 * MIB, peak=15 * MIB, current=7 * MIB)
    cache, report = allocate_kv_cache(models[name], utilization=0.8, warmup_tokens=32, context=128)
    available = int(40 * MIB * 0.8) - 11 * MIB - 15 * MIB + 7 * MIB
    assert report.how == "measured"
    assert report.terms.available == available
    assert 0 <= available - cache.nbytes < report.block_bytes
    spec = cache.spec
    assert report.num_blocks == pool.num_blocks(spec, available, 128, report.batch, 16)
    parts = report.parts()
    assert sum(parts.values()) == 40 * MIB
    assert min(parts.values()) >= 0
    assert (parts["current"], parts["not_torch"], parts["activations"]) == (7 * MIB, 4 * MIB, 8 * MIB)


def test_the_default_step_is_the_planners_chunk_or_all_positions(monkeypatch):
    model = Recorder(small_config("llama", max_position_embeddings=512))
    measuring(monkeypatch, total=40 * MIB, used=1, peak=1, current=1)
    assert allocate_kv_cache(model)[1].warmup_tokens == 512
    model = Recorder(small_config("llama", max_position_embeddings=100_000))
    assert allocate_kv_cache(model)[1].warmup_tokens == 8192
    assert [shape for shape, *_ in model.calls] == [(1, 8192)]


def test_a_given_size_is_taken_on_a_gpu_too(llama, monkeypatch):
    measuring(monkeypatch, total=40 * MIB, used=1, peak=1, current=1)
    _, report = allocate_kv_cache(llama, num_blocks=3)
    assert (report.how, report.num_blocks, report.terms, report.peak) == ("num_blocks", 3, None, None)


def test_no_room_names_every_term_and_the_three_ways_out(llama, monkeypatch):
    measuring(monkeypatch, total=40 * MIB, used=30 * MIB, peak=29 * MIB, current=17 * MIB, others=3 * MIB)
    error = refused(
        lambda: allocate_kv_cache(llama, warmup_tokens=40, tp=2), "allocator_no_room", DoesNotFitError
    )
    for lang in ("en", "zh"):
        said = error.text(lang)
        for number in (40, 36, 30, 29, 17, -6, 3):
            assert f"{number * MIB:,} B" in said
        for way in ("utilization", "warmup_tokens < 40", "tp > 2"):
            assert way in said


def test_the_last_block_that_fits_and_the_first_that_does_not(llama, monkeypatch):
    spec = CacheSpec.from_config(llama.config, kv_dtype="bf16")
    block = spec.block_bytes(16)
    figures = {"used": 2 * MIB, "peak": 3 * MIB, "current": MIB}
    measuring(monkeypatch, total=4 * MIB + block, **figures)
    assert allocate_kv_cache(llama, utilization=1)[1].num_blocks == 1
    measuring(monkeypatch, total=4 * MIB + block - 1, **figures)
    refused(lambda: allocate_kv_cache(llama, utilization=1), "allocator_no_room", DoesNotFitError)


def test_a_warm_up_that_runs_out_of_memory_is_told(monkeypatch):
    class Greedy(Recorder):
        def forward(self, **_):
            raise torch.OutOfMemoryError("CUDA out of memory")

    measuring(monkeypatch, total=40 * MIB, used=MIB, peak=1, current=1)
    model = Greedy(small_config("llama"))
    error = refused(lambda: allocate_kv_cache(model, warmup_tokens=400), "allocator_warmup", DoesNotFitError)
    assert isinstance(error.__cause__, torch.OutOfMemoryError)
    assert "warmup_tokens < 400" in str(error)


def test_a_given_size_may_take_what_torch_has_cached_on_a_gpu(llama, monkeypatch):
    block = CacheSpec.from_config(llama.config, kv_dtype="bf16").block_bytes(16)
    for cached, fits in ((2 * block, True), (2 * block - 1, False)):
        stats = MemoryStats("cuda:0", 9 * MIB, block, MIB, MIB + cached, MIB, 0)
        monkeypatch.setattr(allocator.MemoryStats, "read", lambda device, stats=stats: stats)
        if fits:
            assert allocate_kv_cache(llama, num_blocks=3)[1].num_blocks == 3
        else:
            refused(lambda: allocate_kv_cache(llama, num_blocks=3), "allocator_given_too_large")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_report_has_every_number(models, monkeypatch, lang):
    figures = {"total": 40 * MIB, "used": 11 * MIB, "peak": 15 * MIB, "current": 7 * MIB}
    measuring(monkeypatch, **figures, others=MIB + 3)
    _, report = allocate_kv_cache(models["gemma3_text"], warmup_tokens=32, batch=5)
    said = report.text(lang)
    assert isinstance(report, AllocationReport)
    numbers = [*figures.values(), *report.terms.as_dict().values(), *report.blocks, report.kv_bytes, MIB + 3]
    for number in (*numbers, report.weight_bytes, report.peak.extra, report.max_tokens, report.block_bytes):
        assert f"{number:,}" in said
    measuring(monkeypatch, **figures, nvml="NVMLError: gone")
    assert "NVMLError: gone" in allocate_kv_cache(models["mistral"])[1].text(lang)


def rows_of(report):
    """{name: (size, exact value, meaning)} of the report's table."""
    return {name: tuple(rest) for name, *rest in report.shown().rows}


EVERY_VARIABLE = """num_hidden_layers num_kv_heads head_dim itemsize block_size total weights limit used peak current
    available activations block num_blocks max_tokens kv""".split()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_variable_of_the_formula_has_a_row_on_any_device(llama, monkeypatch, device):
    if device == "cuda":
        measuring(monkeypatch, total=40 * MIB, used=11 * MIB, peak=15 * MIB, current=7 * MIB)
    size = {"kv_bytes": MIB} if device == "cpu" else {"warmup_tokens": 32}
    _, report = allocate_kv_cache(llama, **size)
    rows, config = rows_of(report), llama.config
    assert list(rows) == EVERY_VARIABLE
    counts = [config.num_hidden_layers, config.num_key_value_heads, config.head_dim, 2, 16]
    assert [rows[name][1] for name in EVERY_VARIABLE[:5]] == [f"{count:,}" for count in counts]
    layers, heads, dim, itemsize, block_size = counts
    assert f"2 x {layers} x {block_size} x {heads} x {dim} x {itemsize}" in rows["block"][2]
    assert rows["num_blocks"][1] == f"{report.num_blocks:,}"
    assert rows["max_tokens"][1] == f"{report.max_tokens:,}"
    needs_a_gpu = ["limit", "used", "peak", "current", "available"]
    if device == "cpu":
        assert all(rows[name][:2] == ("", "-") for name in needs_a_gpu)
        assert all("not measured on a CPU" in rows[name][2] for name in needs_a_gpu)
        assert report.text("zh").count("CPU 上没有测量") == len(needs_a_gpu)
    else:
        assert [rows[name][1] for name in needs_a_gpu] == [f"{n:,}" for n in report.terms.as_dict().values()]
        assert "not measured" not in report.text()


def test_a_given_size_on_a_gpu_has_the_figures_that_are_there(llama, monkeypatch):
    measuring(monkeypatch, total=40 * MIB, used=11 * MIB, peak=15 * MIB, current=7 * MIB)
    rows = rows_of(allocate_kv_cache(llama, num_blocks=3)[1])
    assert [rows[name][1] for name in ("used", "current")] == [f"{11 * MIB:,}", f"{7 * MIB:,}"]
    assert rows["available"][:2] == rows["limit"][:2] == ("", "-")
    assert "size was given" in rows["available"][2]


def test_kinds_of_layers_have_their_own_heads_and_widths_and_the_latent_is_named(models):
    _, mixed = allocate_kv_cache(models["gemma4_text"], num_blocks=4)
    kinds = {layer: n for layer, n in mixed.spec.kinds().items() if layer.token_bytes}
    assert rows_of(mixed)["head_dim"][1] == " / ".join(str(layer.k_dim) for layer in kinds)
    for lang in ("en", "zh"):
        assert all(f"{count}" in mixed.text(lang).splitlines()[-2] for count in kinds.values())
    _, latent = allocate_kv_cache(models["deepseek_v3"], num_blocks=4, kv_dtype="int8")
    (layer,) = latent.spec.kinds()
    rows = rows_of(latent)
    assert rows["head_dim"][1] == f"{layer.k_dim} + {layer.v_dim}"
    assert f"scale of {layer.scale_bytes} B" in rows["itemsize"][2]
    assert all("kv_lora_rank" in latent.text(lang) for lang in ("en", "zh"))


def test_heads_are_those_of_this_rank(llama):
    _, report = allocate_kv_cache(llama, num_blocks=4, tp=2)
    _, size, meaning = rows_of(report)["num_kv_heads"]
    assert size == str(llama.config.num_key_value_heads // 2)
    assert "tp=2" in meaning


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", DECODERS)
def test_on_a_gpu_the_cache_and_the_largest_step_fit_beside_each_other(name):
    model = small_model(small_config(name), torch.bfloat16).cuda()
    stats = MemoryStats.read("cuda")
    utilization = (stats.used + 2**30) / stats.total
    cache, report = allocate_kv_cache(model, utilization=utilization, context=256)
    terms = report.terms
    assert terms.available == terms.limit - terms.used - terms.peak + terms.current
    assert 0 <= terms.available - cache.nbytes < report.block_bytes
    assert cache.device.type == "cuda"
    assert sum(report.parts().values()) == report.stats.total
    torch.cuda.reset_peak_memory_stats()
    warmup(model, report.warmup_tokens)
    torch.cuda.synchronize()
    # 2 MiB: a large segment is rounded up to it.
    most = terms.limit - (terms.used - terms.current) + 2 * MIB
    assert torch.cuda.max_memory_allocated() <= most
    cache.close()
