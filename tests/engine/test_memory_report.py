"""The memory report adds up to what was measured, and its parts are those of the model and the cache."""

import json
import sys
from dataclasses import replace

import psutil
import pytest
import torch

from minikv import LLM, SamplingParams
from minikv.engine import memory_report as module
from minikv.engine.memory_report import MemoryReport
from minikv.memory import MemoryStats, measure_peak
from minikv.memory.retention.live import live_storages
from minikv.models.cpu_modules import PackedWeight
from tests.plan.small_models import small_config, small_model

GIB = 2**30
CUDA = MemoryStats(
    device="cuda:0", total=80 * GIB, free=50 * GIB, allocated=20 * GIB, reserved=24 * GIB,
    peak=23 * GIB, inactive_split=0, others=3 * GIB,
)  # fmt: skip
GPU = MemoryReport("Llama-3.1-8B", CUDA, 8 * GIB, 0, GIB, 10 * GIB, 512, GIB, 8192)


def small(**changes):
    model = small_model(small_config("llama", **changes))
    model.generation_config.eos_token_id = None
    return model


def storages(tensors):
    """Bytes of the storages, each once: what ``weights`` is compared with."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("options", [{}, {"cache": "linear", "max_num_seqs": 4}, {"block_size": 256}])
def test_the_parts_are_those_of_model_and_cache_and_add_up(tied, options):
    model = small(tie_word_embeddings=tied)
    with LLM(model, num_blocks=4, **options) as llm:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, temperature=0))
        report = llm.memory_report()
        parts = report.parts()
        weights = storages(model.parameters())
        assert report.weight_bytes == weights
        assert report.buffer_bytes == storages([*model.parameters(), *model.buffers()]) - weights > 0
        assert report.kv_bytes == parts["kv"] == llm.cache.nbytes
        assert 0 <= report.padding_bytes < 4096
        assert sum(parts.values()) == report.total == report.used + report.stats.free
        assert report.used == sum(parts.values()) - parts["headroom"]
        assert report.used == pytest.approx(psutil.Process().memory_info().rss, abs=16 * 2**20)
        assert parts["rest"] > 2**20, "Python and torch are somewhere"
        assert parts["weights"] == weights - (report.absent_bytes or 0)


def test_weights_that_a_cpu_packs_count_as_they_did_before():
    model = small(hidden_size=384, intermediate_size=512)
    weights = storages(model.parameters())
    with LLM(model, num_blocks=4) as llm:
        assert any(isinstance(each, PackedWeight) for each in model.parameters())
        report = llm.memory_report()
        assert report.weight_bytes == weights
        assert sum(report.parts().values()) == report.total


def test_tied_weights_count_once():
    tied, apart = (small(tie_word_embeddings=value) for value in (True, False))
    with LLM(tied, num_blocks=4) as one, LLM(apart, num_blocks=4) as two:
        embedding = apart.get_input_embeddings().weight.nbytes
        assert two.memory_report().weight_bytes - one.memory_report().weight_bytes == embedding


def test_a_cache_that_fills_takes_no_more():
    with LLM(small(), num_blocks=32) as llm:
        before = llm.memory_report()
        llm.generate([[1] * 40, [2] * 90], SamplingParams(max_tokens=3, temperature=0))
        after = llm.memory_report()
        assert (after.kv_bytes, after.weight_bytes) == (before.kv_bytes, before.weight_bytes)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is in memory")
def test_weights_that_nobody_has_read_are_not_in_memory(tmp_path):
    model = small()
    count = 2**20
    file = tmp_path / "weights"
    file.write_bytes(bytes(4 * count))
    with LLM(model, num_blocks=4) as llm:
        plain = llm.memory_report()
        mapped = torch.from_file(str(file), shared=False, size=count, dtype=torch.float32)
        model.register_parameter("mapped", torch.nn.Parameter(mapped, requires_grad=False))
        report = llm.memory_report()
        assert plain.absent_bytes == 0
        assert report.absent_bytes == 4 * count
        assert report.weight_bytes == plain.weight_bytes + 4 * count
        assert report.parts()["weights"] == plain.parts()["weights"]
        assert sum(report.parts().values()) == report.total
        assert f"{4 * count:,}" in report.text()
        assert float(mapped.sum()) == 0
        assert llm.memory_report().absent_bytes == 0


def test_where_the_system_does_not_say_what_is_in_memory_the_report_says_so(monkeypatch):
    monkeypatch.setattr(module, "resident_bytes", lambda extents: None)
    with LLM(small(), num_blocks=4) as llm:
        report = llm.memory_report()
    assert report.absent_bytes is None
    assert report.parts()["weights"] == report.weight_bytes
    assert report.text().splitlines()[-1].startswith("Whether all weights are in memory")


@pytest.mark.parametrize("others", [3 * GIB, None])
def test_a_gpu_s_parts_add_up_to_its_memory(others):
    report = replace(GPU, stats=replace(CUDA, others=others, nvml=None if others else "ImportError: pynvml"))
    parts = report.parts()
    assert sum(parts.values()) == report.total == 80 * GIB
    assert report.used == 30 * GIB
    assert parts["cached"] == 4 * GIB
    assert parts["tensors"] == 20 * GIB - (8 + 1 + 10) * GIB - 512
    assert parts["headroom"] == 50 * GIB
    if others:
        assert (parts["context"], parts["others"]) == (3 * GIB, 3 * GIB)
    else:
        assert parts["not_torch"] == 6 * GIB
        assert "pynvml" in report.text()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_has_every_part_exactly_with_a_meaning(lang):
    with LLM(small(), num_blocks=4) as llm:
        host = llm.memory_report()
    for report in (GPU, replace(GPU, stats=replace(CUDA, others=None, nvml="no")), host):
        lines = report.text(lang).splitlines()
        assert report.model in lines[0]
        figures = report.parts() | {"used": report.used, "total": report.total}
        rows = {line.split()[0]: line for line in lines[2 : 2 + len(figures)]}
        for name, value in figures.items():
            assert f" {value:,}  " in rows[name]
            assert len(rows[name].split(f" {value:,}  ")[1]) > 5
        assert report.text("en") != report.text("zh")
    assert "8,192" in GPU.text(lang)


def test_it_says_which_model_it_is():
    model = small()
    with LLM(model, num_blocks=4) as llm:
        assert llm.memory_report().text().startswith("Memory of llama on cpu\n"), "the config has no name"
    model.config.name_or_path = "org/my-model"
    with LLM(model, num_blocks=4, cache="linear") as llm:
        assert llm.memory_report().model == "org/my-model"


def test_json_has_the_same_figures():
    told = json.loads(json.dumps(GPU.as_dict()))
    assert told["parts"] == GPU.parts()
    assert (told["device"], told["total"], told["used"]) == ("cuda:0", GPU.total, GPU.used)
    assert (told["activation_bytes"], told["warmup_tokens"]) == (GIB, 8192)


def live_bytes():
    """Bytes of every storage that any tensor of this process holds."""
    return sum(live.nbytes for live in live_storages(torch.device("cpu")).values())


@pytest.mark.slow
def test_150_decode_steps_add_no_allocated_byte():
    """After the first steps, which make what a model keeps. Torch's own count is asked for some of them: it is slow."""
    model = small(max_position_embeddings=1024, num_hidden_layers=1)
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    with LLM(model, num_blocks=64, max_num_seqs=1) as llm:
        llm.add_request([1, 2, 3], params, pieces=False)
        for _ in range(20):
            llm.step()
        before = live_bytes()
        counted = measure_peak(lambda: [llm.step() for _ in range(10)], "cpu")
        for _ in range(140):
            llm.step()
        assert live_bytes() == before > 0
        assert llm.has_work, "all of them were decode steps"
    assert counted.extra > 0
    assert counted.kept == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_parts_add_up_to_what_the_driver_says():
    model = small().cuda()
    with LLM(model, num_blocks=64) as llm:
        llm.generate([[1] * 100], SamplingParams(max_tokens=4, temperature=0))
        report = llm.memory_report()
        parts = report.parts()
        assert sum(parts.values()) == report.total == torch.cuda.mem_get_info()[1]
        assert report.weight_bytes == storages(model.parameters())
        assert parts["kv"] == llm.cache.nbytes
        assert report.absent_bytes == 0
        assert min(parts["tensors"], parts["cached"]) >= 0
