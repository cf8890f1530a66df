"""The model beside the real allocator: the same random traces, and every figure equal after every operation.

Owed: this has not run on a GPU yet. It needs no second process: it starts from an empty cache and compares what
changed. Addresses are taken from the device, because the driver chooses where a segment lies.
"""

import random

import pytest

from minikv.memory.allocator_snapshot import from_snapshot
from minikv.memory.caching_allocator import CachingAllocator
from minikv.units import MIB

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
EDGES = [1, 511, 512, 513, MIB - 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1, 20 * MIB]
MOST = 4 * 2**30  # bytes that a trace keeps live


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


def random_size(rng):
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(EDGES)
    return (
        rng.randrange(1, 64 * 1024) if kind < 0.5 else rng.randrange(1, rng.choice([MIB, 12 * MIB, 80 * MIB]))
    )


@pytest.mark.parametrize("seed", range(200))
def test_a_random_trace(device, seed):
    rng = random.Random(seed)
    model = CachingAllocator(torch.cuda.get_device_properties(device).total_memory)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    live = []
    try:
        for step in range(60):
            kind = rng.random()
            room = sum(size for _, size in live) < MOST
            if (kind < 0.55 and room) or not live:
                stream, size = rng.choice(streams), random_size(rng)
                real = torch.cuda.caching_allocator_alloc(size, device, stream)
                live.append((real, size))
                assert model.malloc(size, stream.cuda_stream, address=real) == real, (seed, step)
            elif kind < 0.95 or not room:
                real, _ = live.pop(rng.randrange(len(live)))
                torch.cuda.caching_allocator_delete(real)
                model.free(real)
            else:
                torch.cuda.empty_cache()
                model.empty_cache()
            assert differences(model) == {}, (seed, step)
    finally:
        for real, _ in live:
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
