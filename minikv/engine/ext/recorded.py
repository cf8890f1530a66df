"""Decode steps of a CPU recorded as a list of calls, and replayed without the model's code. Lesson 13b.

A CPU has no CUDA graphs, but Python stands between its operations just as it stands between a GPU's kernels: a layer
takes it half a millisecond, in which the processor could multiply. So a step is run once while every operation of
torch and every call of a C library is noted, with the very tensors and addresses. Of a tensor that is only another view
nothing is noted. What an operation makes is put into memory of the recording, and the note says to write there again.

    capture   run the step: add(a, b) -> a new tensor          note: add(a, b, out=that memory)
    replay    call all notes in order

A tensor's memory serves again as soon as the step refers to it no more, as in a step that is not recorded: the notes
are in order, so a replay writes there when the value before has been read.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from operator import is_
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.modules import module as every_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from minikv.cache.pages import Pages
from minikv.kernels.c_library import find_compiler, noting
from minikv.kernels.dispatch import checked_mode, runs_in_c

OF_ONE_STEP = "it depends on a value of one step"
OF_ONE = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded
EXCHANGED = "aten::set_", "aten::resize_", "aten::resize_as_"
# What reads values without an operation that a dispatch mode sees: always; of tensors in a list; of a second argument.
READS = Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__
READS_LISTS = torch.tensor, torch.as_tensor, torch.asarray
READS_SECOND = torch.tensor_split, Tensor.tensor_split, Tensor.new_tensor
ALIGNED = 64  # bytes
CPU = torch.device("cpu")


def can_record(cache: Pages) -> bool:
    """Return whether decodes of ``cache``, on a CPU, may be recorded: in C, which is for float32, and without checks.

    Other kernels, and checks, read lengths and tables on the host, so that a step of theirs is not like the next one.
    """
    return cache.codec.dtype == torch.float32 and _runs_unchecked_in_c()


def _runs_unchecked_in_c() -> bool:
    return runs_in_c(CPU) and checked_mode() == "0" and find_compiler() is not None


class CpuCapturer:
    """Records steps on the CPU, each when it is first needed. Their memory is shared: they never run at the same time.

    ``pool_bytes``: the memory for what they compute. ``driver_bytes`` is 0.
    """

    late = True
    driver_bytes = 0

    def __init__(self, model: nn.Module):
        self._model, self._pool, self._warm = model, _Pool(), False
        self._recorded: list[Any] = []
        self._look()

    @property
    def pool_bytes(self) -> int:
        return self._pool.num_bytes

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run, and return a function that does the same again. The first time it runs twice: C may have to be compiled.

        Raises ``RuntimeError`` if what is done depends on a value.
        """
        notes = _Notes(self._pool)
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            if not self._warm:
                run()
                self._warm = True
            with _NoReads(), notes, noting(notes.calls.append):
                run()
        return _Replay(notes.calls)

    def holds(self) -> bool:
        """Whether steps may be replayed: no hook waits to be called, and no argument is to be checked."""
        return _runs_unchecked_in_c() and not any(self._hooks)

    def renew(self) -> bool:
        """Whether the model has other modules or weights than were recorded. Captures from now on are of these."""
        parts = self._parts()
        same = len(parts) == len(self._recorded) and all(map(is_, parts, self._recorded))
        if not same:
            self._look()
        return not same

    def close(self) -> None:
        self._pool, self._recorded = _Pool(), []

    def _look(self) -> None:
        self._modules = list(self._model.modules())
        self._hooks = [every_module._global_forward_hooks, every_module._global_forward_pre_hooks]
        for each in self._modules:
            self._hooks += [each._forward_hooks, each._forward_pre_hooks]
        # Kept, so that no address in a note can come to be that of something else.
        self._recorded = self._parts()

    def _parts(self) -> list[Any]:
        """Return the model's modules, the functions in place of their ``forward``, and the memory of its weights."""
        parts: list[Any] = []
        for each in self._modules:
            parts += [*each._modules.values(), each.__dict__.get("forward")]
            for held in (each._parameters, each._buffers):
                parts += [weight if weight is None else _held(weight) for weight in held.values()]
        return parts


class _Replay:
    """Makes the noted calls again. An object: a traceback that is kept holds no cell of a closure."""

    def __init__(self, calls: list[Callable[[], Any]]):
        self._calls = calls

    def __call__(self) -> None:
        for call in self._calls:
            call()


class _Pool:
    """Memory of the recordings. A piece is free again once no tensor refers to it, those in the notes aside."""

    def __init__(self) -> None:
        self._pieces: dict[int, np.ndarray] = {}  # by address
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self._returned: deque[tuple[int, int]] = deque()  # a garbage collection may come at any place

    @property
    def num_bytes(self) -> int:
        return sum(len(each) for each in self._pieces.values())

    def take(self, like: Tensor) -> Tensor:
        """Return a tensor with the shape, strides and values of ``like`` in a piece of its own."""
        while self._returned:
            insort(self._free, self._returned.popleft())
        need = max(1, like.untyped_storage().nbytes())
        place = bisect_left(self._free, (need, 0))
        if place < len(self._free) and self._free[place][0] <= 2 * need:
            piece = self._pieces[self._free.pop(place)[1]]
        else:
            memory = np.empty(need + ALIGNED, np.uint8)
            piece = memory[-memory.ctypes.data % ALIGNED :][:need]
            self._pieces[piece.ctypes.data] = piece
        held = piece[:]  # torch holds this array as long as a tensor needs the memory
        finalize(held, self._returned.append, (len(piece), piece.ctypes.data)).atexit = False
        return _shaped(held, like).copy_(like)

    def lasting(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` in a form that does not keep its piece from serving again."""
        piece = self._pieces.get(_memory(tensor))
        return tensor.detach() if piece is None else _shaped(piece, tensor)


class _NoReads(TorchFunctionMode):
    """While it is on torch reads no tensor's values on the host, where they would be those of one step."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: Any = ()
        if func in READS_LISTS and args and isinstance(args[0], list | tuple):
            given = args[0]
        elif func in READS_SECOND:
            given = args[1:]
        if func in READS or (given and any(isinstance(each, Tensor) for each in tree_leaves(given))):
            raise RuntimeError(f"{OF_ONE_STEP}: {func.__name__}")
        return func(*args, **(kwargs or {}))


class _Notes(TorchDispatchMode):
    """``calls``: what is computed while the mode is on, in order."""

    def __init__(self, pool: _Pool):
        super().__init__()
        self.pool, self.calls = pool, list[Callable[[], Any]]()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if _differs(func, args, kwargs):
            raise RuntimeError(f"{OF_ONE_STEP}: {name}")
        found = func(*args, **kwargs)
        if any(each.is_conj() or each.is_neg() for each in tree_leaves(found) if isinstance(each, Tensor)):
            raise RuntimeError(f"{name} gives a view that is conjugate or negative")
        given = {_memory(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = [
            each for each in tree_leaves(found) if isinstance(each, Tensor) and _memory(each) not in given
        ]
        lasting = partial(tree_map_only, Tensor, self.pool.lasting)
        if name == "aten::lift_fresh":  # a constant in the code, which later operations may change
            placed = self.pool.take(found)
            self.calls.append(partial(self.pool.lasting(placed).copy_, found.clone()))
            return placed
        if func._schema.is_mutable:
            if made:
                raise RuntimeError(f"{name} changes a tensor and makes another")
            self.calls.append(partial(func, *lasting(args), **lasting(kwargs)))
            return found
        if not made:
            return found
        placed = tree_map_only(Tensor, self.pool.take, found)
        if "empty" not in name:
            self.calls.append(_again(func, lasting(args), lasting(kwargs), lasting(placed)))
        return placed


def _differs(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Return whether the host reads a value, a value decides about a shape, numbers are drawn or memory exchanged."""
    name, tags = func._schema.name, func.tags
    if name == "aten::index":  # tagged for its masks
        return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    if name.startswith("aten::_scaled_dot_product"):  # tagged for its dropout
        return bool(args[3] if len(args) > 3 else kwargs.get("dropout_p"))
    return name in EXCHANGED or any(tag in tags for tag in OF_ONE)


def _again(func: OpOverload, args: Any, kwargs: Any, into: Any) -> Callable[[], Any]:
    """Return a function that computes ``func`` into the tensors ``into``."""
    out = _with_out(func) if isinstance(into, Tensor) else None
    if out is not None:
        return partial(out[0], *args, **kwargs, **{out[1]: into})

    def computed() -> None:
        for each, found in zip(tree_leaves(into), tree_leaves(func(*args, **kwargs)), strict=True):
            if isinstance(each, Tensor):
                each.copy_(found)

    return computed


@cache
def _with_out(func: OpOverload) -> tuple[OpOverload, str] | None:
    """Return the overload of ``func`` that writes into a tensor, and its argument's name; None if there is none."""
    wanted = [(each.name, str(each.type)) for each in func._schema.arguments]
    packet = func._overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        outs = [each.name for each in overload._schema.arguments if each.is_out]
        rest = [(each.name, str(each.type)) for each in overload._schema.arguments if not each.is_out]
        if len(outs) == 1 and rest == wanted:
            return overload, outs[0]
    return None


def _memory(tensor: Tensor) -> int:
    """Return the address of the memory of ``tensor``, and of all its views; what stands for it if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _held(weight: Tensor) -> Any:
    """Return the memory of a weight as an object, the same one as long as the weight lies there."""
    return weight.untyped_storage() if weight.layout == torch.strided else weight


def _shaped(piece: np.ndarray, like: Tensor) -> Tensor:
    """Return a tensor of the shape, strides and offset of ``like`` in a piece."""
    whole = torch.from_numpy(piece)[: len(piece) // like.itemsize * like.itemsize].view(like.dtype)
    return whole.as_strided(like.shape, like.stride(), like.storage_offset())
