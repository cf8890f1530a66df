"""The monitors on a GPU: the driver's figures by kind, and blocks of an engine that runs under captured graphs."""

import pytest
import torch

from minikv import LLM
from minikv.course import monitor
from minikv.course.widgets.monitor_memory import FREE, MemoryMonitor
from minikv.engine import SamplingParams
from tests.course.monitor_world import Parked, no_thread_is_left

DEVICE = "cuda"
MIB = 2**20
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def _ends():
    with no_thread_is_left():
        yield


def sizes(view):
    return {row["key"]: row["bytes"] for row in view["rows"]}


def test_the_device_s_memory_grows_by_a_tensor_and_adds_up():
    clock = Parked()
    made = MemoryMonitor(DEVICE, None, "en", 5, clock)
    clock.settle()
    before = sizes(made.view)
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    clock.tick()
    after = sizes(made.view)
    assert sum(after.values()) - after["total"] == after["total"]
    assert sum(after.values()) - after[FREE] >= sum(before.values()) - before[FREE]
    del held
    made.close()


def test_an_engine_is_watched_while_it_runs():
    """Blocks fill, and every kind of the report has its bytes, graphs among them."""
    with LLM("tiny-gqa", num_blocks=64, block_size=16, max_model_len=128, device=DEVICE) as llm:
        with monitor.memory(llm=llm) as memory, monitor.cache(llm) as blocks:
            llm.generate([[1, 2, 3]] * 8, SamplingParams(temperature=0, max_tokens=40))
            rows = sizes(memory.view)
            report = llm.memory_report()
            assert rows["kv"] == report.kv_bytes
            assert rows["weights"] == report.weight_bytes - (report.absent_bytes or 0)
            assert blocks.text()
        memory.close()
        blocks.close()
