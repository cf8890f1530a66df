"""``Rerun`` stands in for CUDA graphs where there is no GPU: it runs a captured function again, and compares the runs.

What a graph repeats are the launches with all of their arguments. So a replay has to make the very calls that were
captured: the same operations of torch in the same order, on the same shapes, with the same plain numbers, and the same
kernels on the same addresses. An operation that would make the host wait for a GPU is refused, as in a capture.
"""

from contextlib import contextmanager
from dataclasses import fields
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import minikv.engine.factory
from minikv.engine.ext.graphs import DecodeGraphs, table_width
from minikv.kernels import PagedKV, checked

# What the models' side calls in checked mode, and how many of its first arguments were computed within the step.
KERNELS = {"paged_decode": 1, "paged_prefill": 1, "latent_decode": 2, "latent_prefill": 2, "store_kv": 2}
# Operations whose result's shape, or what the host does next, follows from values on the device.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "bincount")


class Waits(RuntimeError):
    """What torch raises inside a capture."""


class Notes(TorchDispatchMode):
    """Every operation outside of a kernel, and every kernel, in order."""

    def __init__(self):
        super().__init__()
        self.calls, self.inside = [], False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self.inside:
            name = func._schema.name.removeprefix("aten::")
            by_mask = name.startswith("index") and any(
                isinstance(each, torch.Tensor) and each.dtype == torch.bool
                for group in args[1:2]
                for each in (group if isinstance(group, list | tuple) else ())
            )
            if name in WAITS or by_mask:
                raise Waits(f"{name} would wait for the GPU")
            self.calls.append((name, *map(seen, args), *map(seen, sorted((kwargs or {}).items()))))
        return func(*args, **(kwargs or {}))

    def kernel(self, name, call):
        """``call``, of which the arguments are noted and nothing else."""
        fresh = KERNELS[name]

        def noted(*args, **kwargs):
            assert not self.inside
            lasting = map(placed, (*args[fresh:], *sorted(kwargs.items())))
            self.calls.append((name, *map(seen, args[:fresh]), *lasting))
            self.inside = True
            try:
                return call(*args, **kwargs)
            finally:
                self.inside = False

        return noted

    @contextmanager
    def taken(self):
        """Notes are taken inside of the block."""
        with self:
            patches = [
                patch.object(checked, name, self.kernel(name, getattr(checked, name))) for name in KERNELS
            ]
            for each in patches:
                each.start()
            try:
                yield self.calls
            finally:
                for each in patches:
                    each.stop()


def fields_of(kv):
    return tuple(getattr(kv, each.name) for each in fields(kv) if each.name != "memo")


def seen(value):
    """A plain value as it is, a tensor by what a launch knows of it, whatever lies in it."""
    if isinstance(value, PagedKV):
        value = fields_of(value)
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(seen(each) for each in value)
    return value


def placed(value):
    """As ``seen``, and where it lies."""
    if isinstance(value, PagedKV):
        value = fields_of(value)
    if isinstance(value, torch.Tensor):
        return (*seen(value), value.data_ptr())
    if isinstance(value, tuple):
        return tuple(placed(each) for each in value)
    return seen(value)


class Rerun:
    """A ``Capturer``, which counts what was ``captured`` and its ``replays``; ``every``-th one is compared."""

    late = False

    def __init__(self, every=1):
        self.every = every
        self.pool_bytes, self.driver_bytes = 3 * 2**20, 2**20
        self.captured = self.replays = 0
        self.closed = False

    def capture(self, run):
        assert not self.closed
        run()
        with Notes().taken() as calls:
            run()
        assert any(name in KERNELS for name, *_ in calls)
        self.captured += 1

        def replay():
            assert not self.closed, "a graph runs that was given back"
            self.replays += 1
            if self.replays % self.every:
                run()
                return
            with Notes().taken() as again:
                run()
            assert len(again) == len(calls)
            for then, now in zip(calls, again, strict=True):
                assert then == now

        return replay

    def holds(self):
        return True

    def renew(self):
        return False

    def close(self):
        self.closed = True


@contextmanager
def graphs(every=1):
    """Every ``LLM`` that is made inside of the block replays its decodes. Yields the capturers, one each."""
    capturers = []

    def captured(adapter, max_rows, longest, *, enforce_eager, ranks, evicts):
        assert not enforce_eager
        assert not evicts
        assert ranks == 1
        capturers.append(Rerun(every))
        return DecodeGraphs(adapter, max_rows, table_width(adapter, longest), capturers[-1])

    with patch.object(minikv.engine.factory, "capture_decodes", captured):
        yield capturers
