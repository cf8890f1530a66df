"""Exercise 10.6: the loop of nano's ``paged_decode_kernel``, and its known mistakes.

This file does not import Triton; the first kernel that runs does. Without a GPU ``prepare`` must run before it.
"""

import ast
import inspect
import linecache
import textwrap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from minikv.course.exercise import Exercise, Misconception
from minikv.course.lessons.l10.launch import paged, prepare
from minikv.errors import ArgumentError, MissingPackageError

RESCALED_SUM = ("total * shrink +", "total +")
MASK = 'logits = tl.where(seen, logits, -float("inf"))'


class Edited:
    """Nano's kernel with some of its lines changed. It is launched like a kernel: ``kernel[grid](...)``.

    Each edit is a piece of nano's source and its replacement. The kernel is built on its first launch.
    """

    def __init__(self, *edits: tuple[str, str]):
        self.edits = edits

    @cached_property
    def kernel(self) -> Any:
        nano = _nano()
        source = _source(nano)
        for ours, theirs in self.edits:
            source = source.replace(ours, theirs)
        # Triton reads a kernel's source from its file. This kernel has no file, so its source is put into linecache.
        # no quotes in the name: an assembler reads it
        file = f"<paged_decode_kernel {zlib.crc32(source.encode()):08x}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        names = dict(vars(nano))
        exec(compile(source, file, "exec"), names)
        return names["paged_decode_kernel"]

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.kernel[grid]

    def __call__(self, *arguments: Any) -> None:
        """Raise: a kernel cannot be called. ``check`` only asks whether the object is callable."""
        raise TypeError("a kernel is launched: kernel[grid](...)")


def _nano() -> Any:
    """Return nano's attention module, imported after Triton was made ready."""
    if prepare() == "none":
        raise MissingPackageError("no_triton_here")
    from minikv.nano import attention

    return attention


def _source(nano: Any) -> str:
    """Return the kernel's source from nano's file, also while another kernel replaces it."""
    text = inspect.getsource(nano)
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    kernel = next(node for node in functions if node.name == "paged_decode_kernel")
    lines = text.splitlines(keepends=True)[kernel.decorator_list[0].lineno - 1 : kernel.end_lineno]
    return textwrap.dedent("".join(lines))


class _Launch:
    """Replaces the kernel in nano: fills the result with NaN and launches the kernel, with its accesses checked."""

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            tensors = [x for x in arguments if isinstance(x, Tensor)]
            # Fill the result, so that a kernel that stores nothing does not find an old one.
            tensors[-1].fill_(torch.nan)
            with _within(tensors):
                self.kernel[grid](*arguments, **constants)

        return launch


@contextmanager
def _within(tensors: list[Tensor]) -> Iterator[None]:
    """Raise where an interpreted kernel loads or stores outside ``tensors``; the interpreter would end the process."""
    if tensors[0].is_cuda:
        yield
        return
    import numpy as np
    from triton.runtime.errors import InterpreterError
    from triton.runtime.interpreter import InterpreterBuilder

    own = [(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in tensors]

    def watched(access: Any) -> Any:
        def call(builder: Any, pointers: Any, *rest: Any) -> Any:
            mask = next(x.data for x in rest if getattr(x.data, "dtype", None) == np.bool_)
            at = np.broadcast_to(pointers.data, mask.shape)[mask].astype(np.int64)
            if not np.any([(low <= at) & (at < high) for low, high in own], axis=0).all():
                raise ArgumentError("kernel_out_of_bounds")
            return access(builder, pointers, *rest)

        return call

    names = ("create_masked_load", "create_masked_store")
    before = {name: getattr(InterpreterBuilder, name) for name in names}
    for name, access in before.items():
        setattr(InterpreterBuilder, name, watched(access))
    try:
        yield
    except InterpreterError as error:
        raise error.__cause__ or error from None  # report the error at the kernel's own line
    finally:
        for name, access in before.items():
            setattr(InterpreterBuilder, name, access)


def run_kernel(kernel, lengths, kv_heads, block_size, window, softcap, group, seed) -> dict:
    """Run ``kernel`` on a decode step, one query a sequence. Slots without a token hold NaN."""
    case = (tuple(lengths), kv_heads, block_size, window, softcap, group, seed)
    return (_known if isinstance(kernel, Edited) else _run)(kernel, *case)


def _is_stub(kernel: Any) -> bool:
    try:
        return "raise NotImplementedError" in inspect.getsource(getattr(kernel, "fn", kernel))
    except (TypeError, OSError):  # The kernel has no source to look at.
        return False


@lru_cache(maxsize=2000)
def _known(kernel: Edited, *case: Any) -> dict:
    """Return what a known kernel answers, from a cache: interpreted, a case takes hundredths of a second."""
    return _run(kernel, *case)


def _run(kernel, lengths, kv_heads, block_size, window, softcap, group, seed) -> dict:
    nano = _nano()
    if not hasattr(kernel, "__getitem__"):
        raise ArgumentError("not_a_kernel")
    if _is_stub(kernel):
        raise NotImplementedError  # an interpreter would raise it, a compiler refuses it
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = paged(list(lengths), kv_heads=kv_heads, group=group, dim=16, block_size=block_size, seed=seed)
    # Sequence 0 reads block 0, which belongs to another sequence and is not full yet.
    tables = case.block_tables + (case.block_tables >= 0).int()
    batch = replace(case, block_tables=tables).batch()
    batch = type(batch)(*(x.to(device) if isinstance(x, Tensor) else x for x in vars(batch).values()))
    other = case.k_cache.nan_to_num(0.5)[:1]
    other[:, -1] = torch.nan
    query, k, v = (
        x.to(device) for x in (case.query, torch.cat([other, case.k_cache]), torch.cat([other, case.v_cache]))
    )
    tensors = [query, k, v, batch.block_tables, batch.lengths]
    # As bits, because NaN does not equal NaN.
    before = [tensor.clone().view(torch.int32) for tensor in tensors]
    own = nano.paged_decode_kernel
    nano.paged_decode_kernel = _Launch(kernel)
    try:
        out = nano.decode_on_gpu(query, k, v, batch, case.scale, window, softcap)
    finally:
        nano.paged_decode_kernel = own
    after = [tensor.view(torch.int32) for tensor in tensors]
    changed = not all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    return {"out": out.cpu(), "inputs_changed": changed}


def draw_kernels(rng) -> list[dict]:
    """Draw tiles of 32 tokens and more, on and off a block's edge: one sequence, two, or two KV heads."""
    cases = []
    for i in range(30):
        block_size = (4, 8, 16)[i // 3 % 3]
        around = rng.choice([block_size // 2, block_size, 2 * block_size] if i < 20 else [32, 40, 48])
        lengths = [max(2, around + rng.choice([-1, 0, 1, 3])) for _ in range(1 + (i % 3 == 1))]
        cases.append(
            {
                "lengths": lengths,
                "kv_heads": 1 + (i % 3 == 2),
                "block_size": block_size,
                "window": rng.randint(2, min(lengths) - 1) if i % 4 == 1 and min(lengths) > 3 else None,
                "softcap": rng.choice([0.5, 1.5]) if i % 4 == 2 else None,
                "group": rng.choice([2, 3]),
                "seed": rng.randint(0, 999),
            }
        )
    return cases


KERNEL = Exercise(
    id="10.6",
    minutes=12,
    name="paged_decode_kernel",
    signature=("lengths", "kv_heads", "block_size", "window", "softcap", "group", "seed"),
    cases=draw_kernels,
    reference=Edited(),
    drive=run_kernel,
    misconceptions=tuple(
        Misconception(name, Edited(*edits))
        for name, edits in {
            "not_rescaled": [RESCALED_SUM, ("summed * shrink[:, None] +", "summed +")],
            "sum_not_rescaled": [RESCALED_SUM],
            "normalized_inside": [
                ("best = better", "best = better; summed = summed / total[:, None]"),
            ],
            "mask_not_on_logits": [(MASK, "pass")],
            "loads_unmasked": [
                ("mask=seen[:, None] & (dk < k_dim)", "mask=dk < k_dim"),
                ("mask=seen[:, None] & (dv < v_dim)", "mask=dv < v_dim"),
            ],
            "start_forgotten": [("at = start + tl.arange", "at = first + tl.arange")],
            "first_table": [("block_tables + seq * table_stride +", "block_tables +")],
            "block_for_slot": [("block.to(tl.int64) * block_size +", "block.to(tl.int64) +")],
            "head_forgotten": [("(slot * heads + head)", "(slot * heads)")],
            "window_ignored": [("tl.where(window > 0, tl.maximum(length - window, 0), 0)", "0")],
            "window_one_late": [("tl.maximum(length - window, 0)", "tl.maximum(length - window - 1, 0)")],
            "softcap_after_mask": [
                ("if softcap > 0:", f"{MASK}\n        if softcap > 0:"),
                (f"\n        {MASK}\n        #", "\n        #"),
            ],
            "scale_forgotten": [('input_precision="ieee") * scale', 'input_precision="ieee")')],
        }.items()
    ),
    limit_s=60.0,
)
