"""Snapshots: what torch writes is understood; a file that would run code is refused, and nothing in it runs."""

import contextlib
import json
import os
import pickle
import pickletools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikv.errors import ArgumentError, MiniKVError
from minikv.memory.allocator.blocks import ALLOCATED, AWAITING_FREE, INACTIVE
from minikv.memory.allocator.caching_allocator import CachingAllocator
from minikv.memory.allocator.plain_pickle import load_plain
from minikv.memory.allocator.snapshot import from_snapshot
from minikv.units import MIB

FRAME = {"filename": "model.py", "line": 12, "name": "forward"}


def as_torch_writes(model):
    """The model's segments in the form of torch.cuda.memory._snapshot (its fields, see torch/cuda/memory.py)."""
    segments = []
    for view in model.segments():
        blocks = [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_size,
                "state": block.state,
                "frames": [FRAME] if block.state == ALLOCATED else [],
            }
            for block in view.blocks
        ]
        segments.append(
            {
                "device": 0,
                "address": view.address,
                "total_size": view.total_size,
                "allocated_size": view.allocated_size,
                "active_size": view.active_size,
                "requested_size": 0,
                "stream": view.stream,
                "segment_type": view.pool,
                "segment_pool_id": (0, 0),
                "is_expandable": view.is_expandable,
                "frames": [],
                "blocks": blocks,
            }
        )
    traces = [
        [{"action": "alloc", "addr": 1, "size": 2, "stream": 0, "time_us": 3, "frames": [FRAME, FRAME]}]
    ]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"max_split_size": -1, "x": 0.5},
    }


@pytest.fixture
def model():
    model = CachingAllocator()
    addresses = [
        model.malloc(size, stream) for size, stream in ((1000, 0), (3 * MIB, 0), (30 * MIB, 7), (512, 0))
    ]
    model.record_stream(addresses[1], 7)
    model.free(addresses[1])
    model.free(addresses[0])
    return model


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_says_who_sits_where(model, tmp_path, protocol):
    path = tmp_path / "dump_snapshot.pickle"
    path.write_bytes(pickle.dumps(as_torch_writes(model), protocol=protocol))
    for source in (path, str(path), path.read_bytes()):
        read = from_snapshot(source)
        assert [segment.address for segment in read.segments] == [view.address for view in model.segments()]
        assert read.reserved == model.usage().reserved
        assert read.allocated == model.usage().allocated
        assert read.inactive_split == model.usage().inactive_split
        states = {block.state for segment in read.segments for block in segment.blocks}
        assert states == {ALLOCATED, AWAITING_FREE, INACTIVE}
        assert read.holders() == (("model.py:12 forward", 30 * MIB + 512, 2),)
        assert read.devices == (0, 0, 0)


def test_json_says_the_same(model):
    found = as_torch_writes(model)
    assert from_snapshot(json.dumps(found).encode()) == from_snapshot(pickle.dumps(found))


def test_older_forms(model):
    found = json.loads(json.dumps(as_torch_writes(model)))
    for segment in found["segments"]:
        del segment["device"], segment["is_expandable"]
        for block in segment["blocks"]:
            del block["address"], block["frames"]
            if block["state"] == AWAITING_FREE:
                block["state"] = "active_pending_free"
    read = from_snapshot(pickle.dumps(found["segments"]))
    assert [(b.address, b.state) for s in read.segments for b in s.blocks] == [
        (b.address, b.state) for s in model.segments() for b in s.blocks
    ]
    assert read.holders() == (("", 30 * MIB + 512, 2),)


class Evil:
    """Runs a command when a careless reader unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_file_that_would_run_code_is_refused_by_name(tmp_path, protocol):
    touched = tmp_path / "touched"
    for hidden in (Evil(touched), {"segments": [Evil(touched)]}, [{"segments": []}, (Evil(touched),)]):
        data = pickle.dumps(hidden, protocol=protocol)
        with pytest.raises(ArgumentError) as raised:
            from_snapshot(data)
        assert raised.value.code == "snapshot_refused"
        if protocol >= 2:
            assert "system" in raised.value.values["found"]
    assert not touched.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02cbuiltins\neval\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02\x82\x01.",  # an extension
        b"\x80\x02K\x01Q.",  # a persistent id
        b"\x80\x02}}b.",  # BUILD
        b"\x80\x02}(\x85\x85]K\x01u.",  # a list as a key: no hash
        b"\x80\x02])\x85s.",  # items into a list
        b"\x80\x02h\x05.",  # a memo entry that is not there
        b"\x80\x02a.",
        b"\x80\x02u.",
        b"\x80\x02.",
        b"\x80\x02K\x01K\x02.",
        b"\x80\x02r\xff\xff\xff\xff.",  # a memo index that would take gigabytes
        b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",  # a number of 2 GiB
        b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",  # bytes of 8 EiB
        b"\x80",
        b"",
        b"hello",
        b"\x80\x63N.",
    ],
)
def test_malicious_and_damaged_bytes(data):
    with pytest.raises(ArgumentError) as raised:
        from_snapshot(data)
    assert raised.value.code == "snapshot_refused"
    assert raised.value.text("zh")


def test_deep_nesting_does_not_overflow():
    nested_key = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."  # a tuple so deep that hashing it would crash
    with pytest.raises(ArgumentError):
        from_snapshot(nested_key)
    with pytest.raises(ArgumentError):
        from_snapshot(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    with pytest.raises(ArgumentError):
        from_snapshot(b"[" * 200_000)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=30,
)


@settings(max_examples=150)
@given(PLAIN, st.integers(2, 5))
def test_plain_data_is_read_as_pickle_reads_it(value, protocol):
    for shared in (value, [value, value]):
        data = pickle.dumps(shared, protocol=protocol)
        assert repr(load_plain(data, "test")) == repr(shared)
        assert repr(load_plain(pickletools.optimize(data), "test")) == repr(shared)


@settings(max_examples=150)
@given(st.binary(max_size=60), st.integers(2, 5), st.data())
def test_noise_gives_a_snapshot_or_an_error_of_ours(noise, protocol, data):
    good = pickle.dumps({"segments": [{"address": 512, "blocks": []}]}, protocol=protocol)
    cut = data.draw(st.integers(0, len(good)))
    for wrong in (noise, b"\x80\x04" + noise, good[:cut] + noise, good[:cut] + noise + good[cut:]):
        with contextlib.suppress(MiniKVError):
            from_snapshot(wrong)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("segments",), 3),
        (("segments", 0), 3),
        (("segments", 0, "address"), -1),
        (("segments", 0, "address"), True),
        (("segments", 0, "total_size"), 1),
        (("segments", 0, "segment_type"), "huge"),
        (("segments", 0, "stream"), "x"),
        (("segments", 0, "device"), None),
        (("segments", 0, "is_expandable"), 1),
        (("segments", 0, "blocks"), []),
        (("segments", 0, "blocks", 0), []),
        (("segments", 0, "blocks", 0, "size"), 0),
        (("segments", 0, "blocks", 0, "size"), 1.5),
        (("segments", 0, "blocks", 0, "address"), 1),
        (("segments", 0, "blocks", 0, "state"), "idle"),
        (("segments", 0, "blocks", 0, "state"), ["inactive"]),
        (("segments", 0, "blocks", 0, "frames"), "here"),
        (("segments", 0, "blocks", 0, "frames"), [{"filename": 3}]),
    ],
)
def test_what_is_no_snapshot_is_told_the_field(model, path, value):
    found = json.loads(json.dumps(as_torch_writes(model)))
    place = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ArgumentError) as raised:
        from_snapshot(json.dumps(found).encode())
    assert raised.value.code == "snapshot_shape"
    assert str(path[-1]) in raised.value.values["field"] or path[-1] in (0, "address")


@pytest.mark.parametrize("source", [3, None, ["x"], "no/such/file.pickle", "nul\0", b"{", b'{"segments": 3}'])
def test_bad_sources(source):
    with pytest.raises(MiniKVError):
        from_snapshot(source)
