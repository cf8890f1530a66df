"""What an LLM's host memory holds: for swapped sequences, for prefixes, and nothing; in reports and in snapshots."""

import itertools
import json
from dataclasses import replace

import pytest

from minikv.engine.host_memory import HostMemory
from minikv.memory.resident import extents, resident_bytes
from minikv.plan.preemption import TransferRates
from tests.engine.llm_world import greedy, make, reference, run
from tests.engine.test_memory_report import CUDA, GIB, GPU

SWAP = TransferRates(to_host=1e9, to_device=1e9, prefill=1.0)
LLAMA = {"num_blocks": 14, "cpu_kv_bytes": 2**20, "swap_rates": SWAP}


def counted(llm):
    """(bytes of swapped sequences' blocks, bytes of other blocks that can be found), looked up one by one."""
    sequences = prefixes = 0
    for group, pool in enumerate(llm.manager.host_pools):
        size = llm.cache.kv_cache_groups[group].block_bytes(llm.cache.block_size)
        held = {
            block for seq in llm.manager.host_blocks.sequences.values() for block in seq.tables[group].live()
        }
        sequences += size * len(held)
        prefixes += size * len({content.block for content in pool.cached()} - held)
    return sequences, prefixes


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_after_every_step_the_bytes_are_those_of_the_blocks(model_type):
    model, most = reference(model_type), [0, 0]
    with make(model.model, **LLAMA) as llm:
        for prompt in model.prompts:
            llm.add_request(prompt, greedy(12))
        while llm.has_work:
            llm.step()
            report, view = llm.memory_report(), llm.snapshot()
            host = report.host
            assert (host.sequence_bytes, host.prefix_bytes) == counted(llm)
            assert host.empty_bytes >= 0
            assert sum(report.host_parts().values()) == host.num_bytes == llm.host.pool.nbytes
            assert sum(report.parts().values()) == report.total
            assert view.host_pools == tuple(pool.stats() for pool in llm.manager.host_pools)
            swapped = {seq.id for seq in view.waiting if seq.swapped}
            assert swapped == set(llm.manager.host_blocks.sequences)
            assert not any(seq.swapped for seq in view.running)
            most = [max(pair) for pair in zip(most, (host.sequence_bytes, host.prefix_bytes), strict=True)]
        assert llm.memory_report().host.sequence_bytes == 0
    assert min(most) > 0, "there was something to count"


def test_host_memory_comes_as_it_is_written():
    """A pool of 64 MiB, of which one sequence fills little; "host" is what the system says is there."""
    model = reference("llama")
    with make(model.model, **(LLAMA | {"cpu_kv_bytes": 64 * 2**20})) as llm:
        fresh = llm.memory_report()
        known = resident_bytes(extents(llm.host.pool.tensors()))
        if known is None:
            assert fresh.host.present_bytes == fresh.host.num_bytes
            return
        assert fresh.parts()["host"] == fresh.host.present_bytes < fresh.host.num_bytes / 8
        for tensor in llm.host.pool.tensors():
            tensor.zero_()
        full = llm.memory_report()
        assert full.parts()["host"] == full.host.num_bytes
        assert full.host_parts() == fresh.host_parts(), "written is not held"


def test_without_host_memory_nothing_is_said_of_it():
    with make(reference("llama").model) as llm:
        report = llm.memory_report()
        assert (report.host, report.host_parts(), report.as_dict()["host"]) == (None, {}, None)
        assert "host" not in report.parts()
        assert "host" not in report.text()
        assert llm.snapshot().host_pools == ()


def test_the_text_has_a_line_for_each_part_of_it():
    model = reference("llama")
    with make(model.model, **LLAMA) as llm:
        for prompt in model.prompts:
            llm.add_request(prompt, greedy(12))
        run(llm)
        here = llm.memory_report()
    beside = replace(GPU, host=HostMemory(7 * GIB, 4 * GIB, 2 * GIB, 7 * GIB, pinned=True))
    for report, lang in itertools.product((here, beside), ("en", "zh")):
        lines = report.text(lang).splitlines()
        for name, value in report.host_parts().items():
            (line,) = [line for line in lines if line.startswith(f"host_{name} ")]
            assert f" {value:,}  " in line
        assert any(f"{report.host.num_bytes:,}" in line for line in lines[-3:])
        told = json.loads(json.dumps(report.as_dict()))["host"]
        assert told.pop("bytes") == sum(told.values())
    assert beside.parts() == GPU.parts(), "it is none of the GPU's bytes"
    assert beside.stats is CUDA
