"""An arena knows who still reads its bytes, by whatever way, and gives no memory back under them."""

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minikv.memory.arena import MAX_ALIGN, Arena, ArenaInUseError

# Each takes the borrowed tensor and leaves something else that still reads its bytes.
ALIASES = {
    "itself": lambda t: t,
    "row": lambda t: t[0],
    "view": lambda t: t.view(-1),
    "empty part": lambda t: t[:0],
    "transposed": lambda t: t.T,
    "detached": lambda t: t.detach(),
    "data": lambda t: t.data,
    "other dtype": lambda t: t.view(torch.int32),
    "view of a view": lambda t: t[1:].detach().view(-1)[2:],
    "parameter": lambda t: torch.nn.Parameter(t),
    "numpy": lambda t: t.numpy(),
    "part of a numpy array": lambda t: t.numpy()[1:, ::2],
    "memoryview": lambda t: memoryview(t.numpy()),
    "numpy and back": lambda t: torch.from_numpy(t.numpy()[1:]),
    "dlpack": lambda t: torch.from_dlpack(t),
    "dlpack capsule": lambda t: torch.utils.dlpack.to_dlpack(t),
    "storage": lambda t: t.untyped_storage(),
    "part of the storage": lambda t: t.untyped_storage()[4:8],
    "typed storage": lambda t: t.storage(),
    "set from storage": lambda t: torch.empty(0).set_(t.untyped_storage(), 2, (3,)),
    "closure": lambda t: lambda: t.sum(),
    "list": lambda t: [[t[0]]],
    "iterator": lambda t: iter(t),
    "graph": lambda t: (torch.ones(4, 8, requires_grad=True) * t).sum(),
    "unbound": lambda t: t.unbind()[2],
    "subclass": lambda t: t.as_subclass(torch.nn.Buffer),
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", ALIASES)
def test_whatever_still_reads_the_bytes_keeps_the_loan_alive(kind, inference):
    if inference and kind == "graph":
        pytest.skip("inference_mode records no graph")
    arena = Arena(4096)
    other = arena.borrow("other", (4,), torch.float32)
    tensor = arena.borrow("kv", (4, 8), torch.float32)
    address = tensor.data_ptr()
    with torch.inference_mode(inference):
        alias = ALIASES[kind](tensor)
    del tensor
    gc.collect()
    with pytest.raises(ArenaInUseError) as error:
        arena.close()
    assert error.value.values["names"] == "other, kv"
    assert "other, kv" in error.value.text("zh")
    assert not arena.closed
    again = arena.borrow("after the refusal", (4,), torch.float32)
    assert again.data_ptr() == address + 256
    del alias, other, again
    gc.collect()
    assert not arena.report().alive
    arena.close()
    assert arena.closed
    assert arena.report().free == 0


@pytest.mark.parametrize(
    "copy", [torch.clone, torch.Tensor.tolist, lambda t: t + 1, lambda t: t.numpy().copy()]
)
def test_a_copy_does_not_keep_the_loan_alive(copy):
    arena = Arena(4096)
    tensor = arena.borrow("kv", (4, 8), torch.float32)
    kept = copy(tensor)
    del tensor
    arena.close()
    assert kept is not None


def test_a_loan_in_inference_mode_is_watched_too():
    with torch.inference_mode():
        arena = Arena(4096)
        tensor = arena.borrow("kv", (4, 8), torch.float32)
        part = tensor[1:]
        del tensor
        with pytest.raises(ArenaInUseError):
            arena.close()
    del part
    arena.close()


def test_without_the_undocumented_class_the_watch_says_the_same(monkeypatch):
    import torch.multiprocessing.reductions as reductions

    monkeypatch.delattr(reductions, "StorageWeakRef")
    arena = Arena(4096)
    for kind, alias_of in ALIASES.items():
        tensor = arena.borrow(kind, (4, 8), torch.float32, align=1) if kind != "typed storage" else None
        if tensor is None:
            continue
        alias = alias_of(tensor)
        del tensor
        gc.collect()
        assert [loan.name for loan in arena.report().alive] == [kind]
        del alias
        gc.collect()
        assert not arena.report().alive
    arena.close()


def test_memory_is_freed_when_the_last_reference_goes():
    arena = Arena(4096)
    tensor = arena.borrow("kv", (4, 8), torch.float32)
    whole = StorageWeakRef(arena._storage)
    with pytest.raises(ArenaInUseError):
        arena.close()
    part = tensor[2:].numpy()
    del tensor
    del arena
    gc.collect()
    assert not whole.expired(), "an arena that is dropped does not pull the memory from under a loan"
    part[:] = 7
    del part
    assert whole.expired()

    arena = Arena(4096)
    whole = StorageWeakRef(arena._storage)
    arena.close()
    assert whole.expired(), "close frees at once"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [kind for kind in ALIASES if "numpy" not in kind and kind != "memoryview"])
def test_on_a_gpu(kind):
    arena = Arena(4096, "cuda")
    tensor = arena.borrow("kv", (4, 8), torch.float32)
    assert tensor.device == arena.device
    assert tensor.data_ptr() % MAX_ALIGN == 0
    alias = ALIASES[kind](tensor) if kind not in ("graph", "set from storage") else tensor[1:]
    del tensor
    gc.collect()
    with pytest.raises(ArenaInUseError):
        arena.close()
    del alias
    gc.collect()
    before = torch.cuda.memory_allocated()
    arena.close()
    assert before - torch.cuda.memory_allocated() == 4096
