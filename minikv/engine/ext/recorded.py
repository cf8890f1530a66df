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
from collections.abc import Callable
from functools import partial
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

OF_ONE_STEP = "what follows is that of one step"
OF_VALUES = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
EXCHANGED = "aten::set_", "aten::resize_", "aten::resize_as_"
READS = Tensor.tolist, Tensor.numpy  # what is no operation of a dispatch mode
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
        self._pool, modules = _Pool(), list(model.modules())
        self._modules = [each._modules for each in modules]
        self._weights = [held for each in modules for held in (each._parameters, each._buffers)]
        self._hooks = [hooks for each in modules for hooks in (each._forward_hooks, each._forward_pre_hooks)]
        self._hooks += [every_module._global_forward_hooks, every_module._global_forward_pre_hooks]
        self._recorded = self._parts()

    @property
    def pool_bytes(self) -> int:
        return self._pool.num_bytes

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run twice, and return a function that does the same again. The first run does one-time work: it compiles C.

        Raises ``RuntimeError`` if what is done depends on a value.
        """
        run()
        notes, drawn = _Notes(self._pool), torch.get_rng_state()
        with _NoReads(), notes, noting(notes.calls.append):
            run()
        if not torch.equal(drawn, torch.get_rng_state()):
            raise RuntimeError(f"{OF_ONE_STEP}: random numbers")
        calls = tuple(notes.calls)

        def replay() -> None:
            for call in calls:
                call()

        return replay

    def holds(self) -> bool:
        """Whether the model is as it was recorded: its modules, its weights where they were, no hook to be called."""
        return _runs_unchecked_in_c() and not any(self._hooks) and self._parts() == self._recorded

    def close(self) -> None:
        self._pool = _Pool()

    def _parts(self) -> list[int]:
        """Return what tells the model's modules and weights from others."""
        modules = [id(each) for held in self._modules for each in held.values()]
        return modules + [
            _memory(each) for held in self._weights for each in held.values() if each is not None
        ]


class _Pool:
    """Memory of the recordings. A piece is free again once no tensor refers to it, those in the notes aside."""

    def __init__(self) -> None:
        self._pieces: dict[int, np.ndarray] = {}  # by address
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted

    @property
    def num_bytes(self) -> int:
        return sum(len(each) for each in self._pieces.values())

    def take(self, like: Tensor) -> Tensor:
        """Return a tensor with the shape, strides and values of ``like`` in a piece of its own."""
        need = max(1, like.untyped_storage().nbytes())
        place = bisect_left(self._free, (need, 0))
        if place < len(self._free) and self._free[place][0] <= 2 * need:
            piece = self._pieces[self._free.pop(place)[1]]
        else:
            memory = np.empty(need + ALIGNED, np.uint8)
            piece = memory[-memory.ctypes.data % ALIGNED :][:need]
            self._pieces[piece.ctypes.data] = piece
        held = piece[:]  # torch holds this array as long as a tensor needs the memory
        finalize(held, insort, self._free, (len(piece), piece.ctypes.data)).atexit = False
        return _shaped(held, like).copy_(like)

    def lasting(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` in a form that does not keep its piece from serving again."""
        piece = self._pieces.get(_memory(tensor))
        return tensor.detach() if piece is None else _shaped(piece, tensor)


class _NoReads(TorchFunctionMode):
    """While it is on no tensor's values can be read on the host, where they would be those of one step."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise RuntimeError(f"{OF_ONE_STEP}: Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


class _Notes(TorchDispatchMode):
    """``calls``: what is computed while the mode is on, in order."""

    def __init__(self, pool: _Pool):
        super().__init__()
        self.pool, self.calls = pool, list[Callable[[], Any]]()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if _differs(func, args):
            raise RuntimeError(f"{OF_ONE_STEP}: {name}")
        found = func(*args, **kwargs)
        given = {_memory(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = [
            each for each in tree_leaves(found) if isinstance(each, Tensor) and _memory(each) not in given
        ]
        lasting = partial(tree_map_only, Tensor, self.pool.lasting)
        if (
            name == "aten::lift_fresh"
        ):  # a constant of the code: later operations may change what is made of it
            placed = self.pool.take(found)
            self.calls.append(partial(self.pool.lasting(placed).copy_, found.clone()))
            return placed
        if func._schema.is_mutable:
            self.calls.append(partial(func, *lasting(args), **lasting(kwargs)))
            return found
        if not made:
            return found
        placed = tree_map_only(Tensor, self.pool.take, found)
        if "empty" not in name:
            self.calls.append(_again(func, lasting(args), lasting(kwargs), lasting(placed)))
        return placed


def _differs(func: OpOverload, args: Any) -> bool:
    """Return whether the host reads a value, a value decides about a shape, or memory is exchanged."""
    if torch.Tag.dynamic_output_shape in func.tags and func._schema.name == "aten::index":
        return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return func._schema.name in EXCHANGED or any(tag in func.tags for tag in OF_VALUES)


def _again(func: OpOverload, args: Any, kwargs: Any, into: Any) -> Callable[[], Any]:
    """Return a function that computes ``func`` into the tensors ``into``."""
    out = _with_out(func) if isinstance(into, Tensor) else None
    if out is not None:
        return partial(out[0], *args, **kwargs, **{out[1]: into})

    def computed() -> None:
        for each, found in zip(tree_leaves(into), tree_leaves(func(*args, **kwargs)), strict=True):
            each.copy_(found)

    return computed


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


def _shaped(piece: np.ndarray, like: Tensor) -> Tensor:
    """Return a tensor of the shape, strides and offset of ``like`` in a piece."""
    whole = torch.from_numpy(piece)[: len(piece) // like.itemsize * like.itemsize].view(like.dtype)
    return whole.as_strided(like.shape, like.stride(), like.storage_offset())
