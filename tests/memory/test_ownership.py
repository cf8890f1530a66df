"""What ownership() says must equal what can be counted another way: element by element, or by freeing."""

import random

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minikv.errors import ArgumentError
from minikv.memory.arena import Arena
from minikv.memory.ownership import ownership, share_storage
from tests.in_turn import in_turn


def touched_by_counting(tensor):
    """Bytes that the elements lie on, each counted once, by numbering every place of the storage."""
    numbered = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    places = numbered.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return places.unique().numel() * tensor.element_size()


def random_view(rng, whole):
    """One to four random view operations in a row."""
    view = whole
    for _ in range(rng.randint(1, 4)):
        dim = rng.randrange(view.dim())
        length = view.shape[dim]
        action = rng.choice(["narrow", "step", "transpose", "unfold", "expand", "select"])
        if action == "narrow":
            start = rng.randrange(length)
            view = view.narrow(dim, start, rng.randint(1, length - start))
        elif action == "step":
            view = view[(slice(None),) * dim + (slice(None, None, rng.randint(1, 3)),)]
        elif action == "transpose":
            view = view.transpose(dim, rng.randrange(view.dim()))
        elif action == "unfold":
            size = rng.randint(1, length)
            view = view.unfold(dim, size, rng.randint(1, 3))
        elif action == "expand":
            view = view.unsqueeze(0).expand(rng.randint(2, 4), *view.shape)
        elif view.dim() > 1:
            view = view.select(dim, rng.randrange(length))
    return view


@in_turn("seed", range(200))
def test_bytes_are_those_that_counting_finds(seed):
    rng = random.Random(seed)
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.int8, torch.complex64])
    whole = torch.zeros([rng.randint(2, 6) for _ in range(rng.randint(1, 3))], dtype=dtype)
    view = random_view(rng, whole)
    seen = ownership(view)
    assert seen.touched_bytes == touched_by_counting(view)
    assert seen.storage_bytes == whole.nbytes
    assert seen.keeps_alive_bytes == whole.nbytes - touched_by_counting(view) >= 0
    assert seen.nbytes == view.nbytes
    assert seen.data_ptr == whole.data_ptr() + seen.offset
    assert share_storage(view, whole)


@in_turn("seed", range(50))
def test_irregular_overlap_is_counted_once(seed):
    rng = random.Random(seed)
    whole = torch.zeros(400, dtype=torch.int16)
    shape = [rng.randint(1, 5) for _ in range(3)]
    stride = [rng.randint(0, 20) for _ in range(3)]
    view = whole.as_strided(shape, stride, rng.randint(0, 9))
    assert ownership(view).touched_bytes == touched_by_counting(view)


def test_a_large_overlap_is_counted_quickly():
    windows = torch.zeros(2_000_000, dtype=torch.int8).unfold(0, 1000, 3)
    assert ownership(windows).touched_bytes == (windows.shape[0] - 1) * 3 + 1000


def test_a_new_tensor_owns_and_a_part_does_not():
    whole = torch.zeros(10, 10)
    seen = ownership(whole)
    assert seen.owner
    assert not seen.view
    assert not seen.borrowed
    assert (seen.keeps_alive_bytes, seen.offset, seen.contiguous) == (0, 0, True)
    for part in (whole[1:], whole[:, 0], whole[0], whole[:0], whole.diagonal(), whole[:9]):
        seen = ownership(part)
        assert seen.view
        assert not seen.owner
        assert seen.keeps_alive_bytes == 400 - part.nbytes


@pytest.mark.parametrize("change", [lambda t: t.view(100), lambda t: t.T, lambda t: t[:], lambda t: t[None]])
def test_a_full_size_view_is_a_view_that_keeps_nothing_beside(change):
    seen = ownership(change(torch.zeros(10, 10)))
    assert seen.view
    assert seen.keeps_alive_bytes == 0


def test_expand_repeats_bytes_without_holding_them():
    seen = ownership(torch.zeros(3, 1).expand(3, 1000))
    assert (seen.nbytes, seen.touched_bytes, seen.storage_bytes) == (12_000, 12, 12)
    assert seen.view
    assert not seen.contiguous


def test_a_clone_owns_and_lets_the_rest_go():
    whole = torch.zeros(1000)
    part = whole[:100]
    copy = part.clone()
    watch = StorageWeakRef(whole.untyped_storage())
    del whole
    assert not watch.expired()
    assert ownership(part).keeps_alive_bytes == 3600
    del part
    assert watch.expired()
    assert ownership(copy).owner
    assert ownership(copy).storage_bytes == 400


def test_memory_that_torch_did_not_allocate_is_borrowed():
    array = np.zeros(8, dtype=np.float32)
    for tensor in (
        torch.from_numpy(array),
        torch.as_tensor(array),
        torch.frombuffer(bytearray(32), dtype=torch.float32),
        torch.from_dlpack(array),
    ):
        seen = ownership(tensor)
        assert seen.borrowed
        assert not seen.owner
        assert not seen.view
    part = ownership(torch.from_numpy(array)[2:4])
    assert part.view
    assert part.borrowed
    assert part.keeps_alive_bytes == 24
    assert ownership(torch.tensor(array)).owner, "torch.tensor copies"


def test_aliases_that_torch_does_not_record_are_told_by_their_storage():
    whole = torch.zeros(6)
    with torch.inference_mode():
        inside = whole.view(2, 3)
        fresh = torch.zeros(6)
        alias = fresh.view(2, 3)
    for alias_of, other in ((whole, whole.detach()), (whole, whole.data), (whole, inside), (fresh, alias)):
        assert share_storage(alias_of, other)
    assert not share_storage(whole, fresh)
    for unrecorded in (whole.detach(), alias):
        assert ownership(unrecorded).owner, "the docstring says so"
    with torch.inference_mode():
        assert ownership(fresh[1:]).view, "a part is seen in inference_mode too"


def test_shrinking_in_place_leaves_the_storage_as_large():
    tensor = torch.zeros(100)
    tensor.resize_(10)
    assert ownership(tensor).view
    assert ownership(tensor).keeps_alive_bytes == 360


def test_empty_tensors():
    seen = ownership(torch.zeros(0))
    assert seen.owner
    assert (seen.nbytes, seen.storage_bytes, seen.keeps_alive_bytes) == (0, 0, 0)
    assert not share_storage(torch.zeros(0), torch.zeros(0))
    none_of_many = ownership(torch.zeros(8)[3:3])
    assert none_of_many.view
    assert none_of_many.keeps_alive_bytes == 32


def test_scalars_parameters_and_conjugates():
    assert ownership(torch.tensor(1.0)).owner
    assert ownership(torch.nn.Parameter(torch.zeros(3))).nbytes == 12
    complex_numbers = torch.zeros(4, dtype=torch.complex64)
    assert ownership(complex_numbers.conj()).view
    assert ownership(complex_numbers.real).keeps_alive_bytes == 16


@pytest.mark.parametrize("bad", [None, 3, [1, 2], np.zeros(3), "t"])
def test_what_is_no_tensor_is_refused(bad):
    with pytest.raises(ArgumentError) as error:
        ownership(bad)
    assert error.value.code == "not_a_tensor"
    with pytest.raises(ArgumentError):
        share_storage(torch.zeros(1), bad)


def test_tensors_without_one_storage_are_refused():
    sparse = torch.eye(3).to_sparse()
    with torch._subclasses.FakeTensorMode():
        fake = torch.zeros(3)
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    for tensor in (sparse, sparse.to_sparse_csr(), torch.zeros(3, device="meta"), fake, nested):
        with pytest.raises(ArgumentError) as error:
            ownership(tensor)
        assert error.value.code == "no_plain_storage"
    assert ownership(sparse.coalesce().values()).nbytes == 12


def test_a_tensor_that_reaches_beyond_its_storage_is_refused():
    """``resize_`` sets the shape before it finds that borrowed memory cannot grow."""
    loan = Arena(64).borrow("x", (10,), torch.float32)
    with pytest.raises(RuntimeError):
        loan.resize_(1000)
    emptied = torch.zeros(100)
    emptied.untyped_storage().resize_(0)
    tail = torch.zeros(100)[90:]
    tail.untyped_storage().resize_(396)
    for tensor, end, storage in ((loan, 4000, 40), (emptied, 400, 0), (tail, 400, 396)):
        with pytest.raises(ArgumentError) as error:
            ownership(tensor)
        assert error.value.code == "beyond_storage"
        assert (error.value.values["end"], error.value.values["storage"]) == (end, storage)
    tail.untyped_storage().resize_(400)
    assert ownership(tail).keeps_alive_bytes == 360


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_line_names_the_bytes(lang):
    line = ownership(torch.zeros(1000)[100:200]).text(lang)
    assert all(number in line for number in ("400", "4,000", "3,600"))
    assert "4,000" in ownership(torch.zeros(1000)).text(lang)
    assert "12" in ownership(torch.from_numpy(np.zeros(12, dtype=np.int8))).text(lang)
    assert "\n" not in line
