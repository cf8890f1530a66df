"""An arena lends every byte at most once, knows who still has one, and changes nothing when it refuses."""

import random

import numpy as np
import pytest
import torch

from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError, UnknownNameError
from minikv.memory import arena as arena_file
from minikv.memory.arena import (
    DTYPES,
    MAX_ALIGN,
    Arena,
    ArenaClosedError,
    ArenaFullError,
    ArenaInUseError,
    arena_bytes,
)
from minikv.memory.ownership import ownership, share_storage
from tests.in_turn import in_turn


def random_requests(rng, count):
    dtypes = list(DTYPES.values())
    return [
        (tuple(rng.randint(1, 7) for _ in range(rng.randint(0, 4))), rng.choice(dtypes)) for _ in range(count)
    ]


@in_turn("seed", range(30))
@pytest.mark.parametrize("align", [1, 2, 8, 64, 256, 512])
def test_loans_are_disjoint_aligned_in_order_and_fit_exactly(seed, align):
    rng = random.Random(seed)
    requests = random_requests(rng, rng.randint(1, 12))
    need = arena_bytes(requests, align)
    arena = Arena(need)
    tensors = [arena.borrow(f"t{i}", *request, align=align) for i, request in enumerate(requests)]
    report = arena.report()
    start = tensors[0].data_ptr()
    end = 0
    for (shape, dtype), tensor, loan in zip(requests, tensors, report.borrowers, strict=True):
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
        assert (loan.shape, loan.dtype, loan.nbytes, loan.alive) == (shape, dtype, tensor.nbytes, True)
        assert tensor.data_ptr() % max(align, dtype.itemsize) == 0, "as an address"
        assert loan.offset % align == 0, "counted from the arena's start"
        assert loan.offset >= end
        assert tensor.data_ptr() - start == loan.offset
        assert loan.offset - end < max(align, dtype.itemsize), "no more padding than the alignment needs"
        end = loan.offset + loan.nbytes
    assert end == need == arena.capacity
    assert report.used + report.padding == need
    assert report.free == 0
    with pytest.raises(ArenaFullError):
        arena.borrow("one more", (1,), torch.int8, align=1)
    if need > 1:
        smaller = Arena(need - 1)
        kept = [smaller.borrow(f"t{i}", *request, align=align) for i, request in enumerate(requests[:-1])]
        with pytest.raises(ArenaFullError) as error:
            smaller.borrow("the last", *requests[-1], align=align)
        assert len(kept) == len(requests) - 1
        assert error.value.values["short"] == 1


def test_what_is_written_through_one_loan_stays_out_of_the_others():
    rng = random.Random(0)
    requests = [(shape, torch.int32) for shape, _ in random_requests(rng, 20)]
    arena = Arena(arena_bytes(requests, 4))
    tensors = [arena.borrow(f"t{i}", *request, align=4) for i, request in enumerate(requests)]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))
    arena_of_one = Arena(64)
    assert arena_of_one.borrow("scalar", (), torch.float64).shape == ()


def test_a_loan_cannot_leave_its_place():
    arena = Arena(4096)
    tensor = arena.borrow("kv", (4, 8), torch.float32)
    address = tensor.data_ptr()
    seen = ownership(tensor)
    assert seen.borrowed
    assert not seen.owner
    assert seen.data_ptr == address
    assert (seen.storage_bytes, seen.keeps_alive_bytes) == (128, 0)
    other = arena.borrow("other", (4, 8), torch.float32)
    assert not share_storage(tensor, other)
    assert share_storage(tensor, tensor[1:])
    with pytest.raises(RuntimeError, match="resiz"):
        tensor.resize_(1000)


def test_a_name_is_free_again_when_its_tensor_is_gone():
    arena = Arena(4096)
    first = arena.borrow("kv", (4,), torch.float32)
    row = first[:2]
    del first
    with pytest.raises(ArgumentError) as error:
        arena.borrow("kv", (4,), torch.float32)
    assert error.value.code == "arena_name_taken"
    del row
    second = arena.borrow("kv", (4,), torch.float32)
    assert [(loan.name, loan.alive) for loan in arena.report().borrowers] == [("kv", False), ("kv", True)]
    assert arena.report().borrowers[1].offset == 256, "no byte is lent twice"
    assert second.numel() == 4


def test_a_loan_can_be_renewed_and_is_alive_while_either_tensor_is():
    arena = Arena(4096)
    arena.borrow("first", (3,), torch.float32)
    lost = arena.borrow("kv", (4, 8), torch.float32).fill_(7)
    address = lost.data_ptr()
    del lost
    before = arena.report()
    assert not before.alive
    old, new = arena.renew("kv"), arena.renew("kv")
    assert old.data_ptr() == new.data_ptr() == address
    assert old.shape == (4, 8)
    assert new.eq(7).all()
    assert [loan.name for loan in arena.report().alive] == ["kv"]
    assert (arena.report().used, arena.report().free) == (before.used, before.free)  # no byte is lent twice
    for tensor in ("old", "new"):
        with pytest.raises(ArenaInUseError) as error:
            arena.close()
        assert error.value.values["count"] == 1
        if tensor == "old":
            del old
    with pytest.raises(ArgumentError):
        arena.borrow("kv", (1,), torch.float32)
    with pytest.raises(UnknownNameError) as unknown:
        arena.renew("k")
    assert "first, kv" in unknown.value.text("en")
    del new
    arena.close()
    with pytest.raises(ArenaClosedError):
        arena.renew("kv")


def test_the_last_loan_of_a_name_is_renewed():
    arena = Arena(4096)
    arena.borrow("x", (2,), torch.int32)
    arena.borrow("x", (5,), torch.int8)
    assert arena.renew("x").shape == (5,)


def test_a_closed_arena_lends_nothing():
    arena = Arena(100)
    arena.close()
    arena.close()
    with pytest.raises(ArenaClosedError):
        arena.borrow("kv", (4,), torch.float32)
    assert "closed" in repr(arena)
    assert "closed" in arena.report().text()


BAD_LOANS = [
    ("", (4,), torch.float32, 256),
    (None, (4,), torch.float32, 256),
    ("t", (4, 0), torch.float32, 256),
    ("t", (-1,), torch.float32, 256),
    ("t", (True,), torch.float32, 256),
    ("t", (2.0,), torch.float32, 256),
    ("t", (np.int64(2),), torch.float32, 256),
    ("t", 4, torch.float32, 256),
    ("t", None, torch.float32, 256),
    ("t", "44", torch.float32, 256),
    ("t", (2**63,), torch.float32, 256),
    ("t", (2**40, 2**40), torch.float32, 256),
    ("t", (2**62,) * 500, torch.float32, 256),
    ("t", (2**31, 2**30), torch.float32, 256),
    ("t", (10**9,), torch.float32, 256),
    ("t", (4,), "float32", 256),
    ("t", (4,), None, 256),
    ("t", (4,), np.float32, 256),
    ("t", (4,), np.zeros(3), 256),
    ("t", (4,), torch.qint8, 256),
    ("t", (4,), torch.float32, 0),
    ("t", (4,), torch.float32, 3),
    ("t", (4,), torch.float32, -4),
    ("t", (4,), torch.float32, 2 * MAX_ALIGN),
    ("t", (4,), torch.float32, True),
    ("t", (4,), torch.float32, 16.0),
    ("live", (4,), torch.float32, 256),
]


@in_turn("bad", BAD_LOANS)
def test_a_bad_loan_is_refused_and_changes_nothing(bad):
    name, shape, dtype, align = bad
    arena = Arena(4096)
    live = arena.borrow("live", (3,), torch.int8)
    before = arena.report()
    with pytest.raises(MiniKVError) as error:
        arena.borrow(name, shape, dtype, align=align)
    assert error.value.text("en")
    assert error.value.text("zh")
    assert arena.report() == before
    assert arena.borrow("next", (3,), torch.int8, align=1).data_ptr() == live.data_ptr() + 3
    if name == "t" and not isinstance(error.value, ArenaFullError):
        with pytest.raises(MiniKVError):
            arena_bytes([((2,), torch.int8), (shape, dtype)], align)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, None, "64", 2**63])
def test_a_bad_size_is_refused(size):
    with pytest.raises(ArgumentError):
        Arena(size)


@pytest.mark.parametrize("device", ["gpu", "cuda:97", "meta", "", None, 3.5, "cpu:x"])
def test_a_bad_device_is_refused(device):
    with pytest.raises(ArgumentError) as error:
        Arena(64, device)
    assert error.value.code == "arena_device"


def test_a_size_that_the_machine_does_not_have_is_refused():
    with pytest.raises(DoesNotFitError) as error:
        Arena(2**60)
    assert error.value.values["device"] == torch.device("cpu")


def test_the_start_is_aligned_wherever_the_allocation_begins(monkeypatch):
    real = torch.empty
    for shift in (0, 1, 16, 64, 511):

        def shifted(size, *, dtype=None, device=None, shift=shift):
            block = real(size + 1024, dtype=dtype, device=device)
            lead = -block.data_ptr() % MAX_ALIGN + shift
            part = block.untyped_storage()[lead : lead + size]
            return real(0, dtype=dtype).set_(part)

        monkeypatch.setattr(arena_file.torch, "empty", shifted)
        storage, start = arena_file._allocate(1000, torch.device("cpu"), "a")
        assert (storage.data_ptr() + start) % MAX_ALIGN == 0
        assert start + 1000 <= storage.nbytes()
        monkeypatch.undo()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_report_names_everyone(lang):
    arena = Arena(4096, name="step buffers")
    kept = arena.borrow("logits", (2, 3), torch.float32)
    arena.borrow("lost", (), torch.int64)
    lines = arena.report().text(lang).splitlines()
    assert len(lines) == 3
    assert "step buffers" in lines[0]
    assert "4,096" in lines[0]
    assert "logits" in lines[1]
    assert "[2, 3]" in lines[1]
    assert "lost" in lines[2]
    assert kept.numel() == 6
