"""The rules beside the parts of the real allocator that a torch without CUDA has too: its header and its settings."""

import ctypes
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikv.memory.allocator import rules as rules
from minikv.memory.allocator.caching_allocator import CachingAllocator
from minikv.memory.allocator.rules import REST, AllocatorSettings, divisions_by_interval
from minikv.units import MIB
from tests.memory.allocator.test_snapshot import as_torch_writes

torch = pytest.importorskip("torch")
HEADER = Path(torch.__file__).parent / "include/c10/core/AllocatorConfig.h"
DIVISIONS = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"


def libc10():
    """``AcceleratorAllocatorConfig::roundup_power2_divisions`` of the installed torch; skips where it is not there."""
    try:
        found = getattr(ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so")), DIVISIONS)
        set_settings = torch._C._accelerator_setAllocatorSettings
    except (OSError, AttributeError):
        pytest.skip("this torch does not export its allocator's settings")
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_size_t
    return found, set_settings


def as_text(divisions):
    if isinstance(divisions, int):
        return f"roundup_power2_divisions:{divisions}"
    return "roundup_power2_divisions:[" + ",".join(f"{k}:{v}" for k, v in divisions.items()) + "]"


def test_the_constants_are_those_of_the_installed_header():
    found = {}
    if HEADER.is_file():
        text = HEADER.read_text(encoding="utf-8")
        found = {name: int(value) for name, value in re.findall(r"constexpr size_t (k\w+) = (\d+);", text)}
    if "kMinBlockSize" not in found:
        pytest.skip("in this torch the constants are in no header")
    assert found["kMinBlockSize"] == rules.MIN_BLOCK_SIZE
    assert found["kSmallSize"] == rules.SMALL_SIZE
    assert found["kSmallBuffer"] == rules.SMALL_SEGMENT
    assert found["kMinLargeAlloc"] == rules.MIN_LARGE_ALLOC
    assert found["kRoundLarge"] == rules.ROUND_LARGE
    large = re.search(r"large_segment_size_\{(\d+)\}", text)
    assert large is None or int(large[1]) == rules.LARGE_SEGMENT


POWERS = st.integers(0, 18).map(lambda power: 2**power)
LISTS = st.dictionaries(POWERS, st.sampled_from([0, 1, 2, 4, 8, 64]), min_size=1, max_size=6)


@settings(max_examples=100)
@given(st.one_of(st.sampled_from([1, 2, 4, 16]), LISTS), st.sampled_from([None, 0, 1, 8]))
def test_the_divisions_are_those_that_torch_parses(divisions, rest):
    if isinstance(divisions, dict) and rest is not None:
        divisions = divisions | {REST: rest}
    real, set_settings = libc10()
    try:
        set_settings(as_text(divisions))
        parsed = tuple(real(MIB << interval) for interval in range(rules.INTERVALS))
    finally:
        set_settings("")
    assert divisions_by_interval(divisions) == parsed


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_split_size_mb", (1, 19, 20, 21, 4096)),
        ("max_non_split_rounding_mb", (1, 19, 20, 4096)),
        ("garbage_collection_threshold", (0.0, 0.001, 0.5, 0.999, 1.0, 1.5)),
        ("roundup_power2_divisions", (0, 1, 2, 3, 4, 6, {3: 2}, {4: 3}, {4: 0, 8: 2}, {REST: 4}, {REST: 3})),
    ],
)
def test_what_torch_refuses_is_refused(name, values):
    _, set_settings = libc10()

    def accepts(call):
        try:
            call()
        except (ValueError, RuntimeError):
            return False
        return True

    for value in values:
        text = as_text(value) if name == "roundup_power2_divisions" else f"{name}:{value}"
        try:
            theirs = accepts(lambda text=text: set_settings(text))
        finally:
            set_settings("")
        ours = accepts(lambda value=value: AllocatorSettings(**{name: value}))
        assert ours == theirs, (name, value)


def test_torchs_own_viewer_reads_the_form_that_the_snapshot_tests_use():
    from torch.cuda import _memory_viz

    model = CachingAllocator()
    model.malloc(30 * MIB)
    model.free(model.malloc(3 * MIB))
    told = _memory_viz.segsum(as_torch_writes(model))
    assert "total_reserved: 50.0MiB" in told
    assert "total_allocated: 30.0MiB" in told
