"""The model beside the real allocator: the same random traces, and every figure equal after every operation.

Owed: this has not run on a GPU yet. It needs no second process: it starts from an empty cache and compares what
changed. Addresses are taken from the device, because the driver chooses where a segment lies.
"""

import pytest

from minikv.memory.allocator.caching_allocator import CachingAllocator
from minikv.memory.allocator.snapshot import from_snapshot
from minikv.units import MIB
from tools.gpu.traces import operations

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]

NAMES = (
    "allocation allocated_bytes active active_bytes requested_bytes segment reserved_bytes "
    "inactive_split inactive_split_bytes"
).split()
POOLS = ("all", "small_pool", "large_pool")
PARTS = ("current", "peak", "allocated", "freed")
KEYS = [f"{name}.{pool}.{part}" for name in NAMES for pool in POOLS for part in PARTS]
COUNTERS = ["num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"]
ENOUGH, DIFFERING = 5, []  # one rule that the model has otherwise makes most traces differ


@pytest.fixture
def device():
    """An allocator that holds nothing, with its statistics reset. Skips where something else holds memory."""
    import gc

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved():
        pytest.skip("another test still holds GPU memory")
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    yield torch.cuda.current_device()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def differences(model):
    """Every statistic that differs, as {name: (device, model)}."""
    real, ours = torch.cuda.memory_stats(), model.memory_stats()
    return {key: (real[key], ours[key]) for key in KEYS + COUNTERS if real[key] != ours[key]}


def step_of(operation, live, device, streams, model):
    """Do one operation of a trace on both; what differs then, in words, "" where nothing does."""
    op, value, stream = operation
    if op == "+":
        real = torch.cuda.caching_allocator_alloc(value, device, streams[stream])
        live.append(real)
        ours = model.malloc(value, streams[stream].cuda_stream, address=real)
        if ours != real:
            return f"address {real:#x}, ours {ours:#x}"
    elif op == "-":
        torch.cuda.caching_allocator_delete(live[value])
        model.free(live[value])
        live[value] = None
    else:
        torch.cuda.empty_cache()
        model.empty_cache()
    found = differences(model)
    return ", ".join(f"{name} {real:,}, ours {ours:,}" for name, (real, ours) in list(found.items())[:8])


@pytest.mark.parametrize("seed", range(200))
def test_a_random_trace(device, seed):
    """The traces that ``python -m tools.gpu --part allocator-traces`` records: what differs can be mended on a CPU."""
    if len(DIFFERING) >= ENOUGH:
        pytest.fail(f"not tried: {ENOUGH} traces differ already ({DIFFERING})")
    model = CachingAllocator(torch.cuda.get_device_properties(device).total_memory)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    live = []
    try:
        for place, operation in enumerate(operations(seed)):
            found = step_of(operation, live, device, streams, model)
            if found:
                DIFFERING.append(seed)
                pytest.fail(f"trace {seed}, operation {place} {operation}: {found}")
    finally:
        for real in live:
            if real is not None:
                torch.cuda.caching_allocator_delete(real)


def test_record_stream(device):
    """A block that another stream uses comes back after a synchronize and the next malloc, not before."""
    model = CachingAllocator()
    other = torch.cuda.Stream()
    own = torch.cuda.current_stream().cuda_stream
    busy = torch.zeros(1, device="cuda")
    model.malloc(4, own, address=busy.data_ptr())
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    model.malloc(3 * MIB, own, address=address)
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(2_000_000_000)  # keeps the stream busy for about a second
    tensor.record_stream(other)
    model.record_stream(address, other.cuda_stream)
    del tensor
    model.free(address)
    assert differences(model) == {}
    second = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    model.malloc(3 * MIB, own, address=second.data_ptr())
    assert differences(model) == {}
    torch.cuda.synchronize()
    model.synchronize()
    third = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert model.malloc(3 * MIB, own, address=third.data_ptr()) == third.data_ptr() == address
    assert differences(model) == {}


def test_a_real_snapshot(device, tmp_path):
    """The file that torch writes is read, and its blocks are the model's."""
    model = CachingAllocator()
    tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 3 * MIB, 30 * MIB)]
    own = torch.cuda.current_stream().cuda_stream
    for tensor in tensors:
        model.malloc(tensor.numel(), own, address=tensor.data_ptr())
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    read = from_snapshot(path)

    def layout(segments):
        return [
            (view.address, [(b.size, b.state, b.requested_size) for b in view.blocks]) for view in segments
        ]

    assert layout(read.segments) == layout(model.segments())
