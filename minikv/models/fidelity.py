"""The cost of fewer bytes: the same tokens through two caches, and the difference of their logits. Lesson 13.

    tokens     t0 t1 … t[p-1]        t[p]          …     t[n-1]
    forwards   one prefill           a decode each
    logits     behind t[p-1]         behind t[p]   …     behind t[n-1]         n - p + 1 of each sequence

Every run gets the same tokens, also where it would have sampled others (teacher forcing), the same weights and
computing dtype, and reads its cache in the same way. So only the cache's rounding differs.

    >>> from minikv.models import load, recall_documents
    >>> model, _ = load("tiny-gqa", device="cpu")
    >>> tokens = [document.tokens for document in recall_documents(4)]
    >>> exact = forced_logits(model, tokens, prefill=193)
    >>> error = logit_error(forced_logits(model, tokens, prefill=193, kv_dtype="int8"), exact)
    >>> error.positions, error.same_top > 0.9
    (260, True)

``minikv.engine.recall`` measures the quality of a model's answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minikv.cache.allocator import kv_dtype_of
from minikv.cache.paged import PagedKVCache
from minikv.errors import ArgumentError, check_count
from minikv.i18n import pick_language, text
from minikv.models.adapter import Reads, bind_model
from minikv.models.batch import Batch
from minikv.models.measured import measure
from minikv.plan.dtypes import AnyKVDtype
from minikv.shown import Shown, html_of, one_line, text_of

_AT_ONCE = 64  # rows of logits that are compared at a time, in float64


@dataclass(frozen=True)
class LogitError:
    """The difference of logits from exact ones, over ``positions`` rows of a vocabulary.

    ``max_abs`` and ``mean_abs``: |logit - exact| over all elements. ``spread``: the standard deviation of the exact
    logits of a row, the mean over the rows, as a scale for the errors. ``kl``: the Kullback-Leibler
    divergence sum(p * log(p / q)) of the exact distribution p from q, in nats, the mean over the rows. ``same_top``:
    the share of rows with the same largest logit, which is the next token of greedy sampling.
    """

    positions: int
    max_abs: float
    mean_abs: float
    spread: float
    kl: float
    same_top: float

    def shown(self, lang: str = "en") -> Shown:
        """Return a row a figure: its name, its value, and its meaning."""
        lang = pick_language(lang)
        figures = {name: f"{getattr(self, name):.4g}" for name in ("max_abs", "mean_abs", "spread", "kl")}
        figures["same_top"] = f"{self.same_top:.1%}"
        rows = [(name, value, _say(name, lang)) for name, value in figures.items()]
        return Shown(_say("title", lang, positions=self.positions), rows=rows, right=(1,))

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        told = f"mean |error| {self.mean_abs:.4g}", f"max {self.max_abs:.4g}", f"KL {self.kl:.4g} nats"
        return one_line(
            "LogitError", "", f"{self.positions:,} positions", *told, f"same top {self.same_top:.1%}"
        )


@torch.no_grad()
def forced_logits(
    model: Any,
    tokens: Sequence[Any] | np.ndarray,
    *,
    prefill: int,
    kv_dtype: AnyKVDtype | None = None,
    block_size: int = 16,
) -> Tensor:
    """Return the logits [B, n - prefill + 1, vocabulary] of ``model`` on given tokens, with K and V in ``kv_dtype``.

    ``model`` is a decoder of transformers in eval mode, on one process. ``tokens`` [B, n] are token ids. The first
    ``prefill`` of each sequence are computed in one forward, which also reads the K and V of its own tokens from the
    cache; the others are computed one at a time. ``kv_dtype`` None is the dtype of the model's parameters, without
    rounding. The result has the dtype and the device of the model's own logits.

    Raises ``ArgumentError`` for invalid token ids, for sequences of unequal length, a ``prefill`` outside 1 to n, and
    for errors of ``PagedKVCache`` and ``bind_model``. The model is unchanged afterwards.
    """
    ids = _token_ids(model, tokens)
    check_count("prefill", prefill)
    check_count("block_size", block_size)
    batch, length = ids.shape
    if prefill > length:
        raise ArgumentError("out_of_range", what="prefill", value=prefill, low=0, high=length)
    spec = measure(model, kv_dtype=kv_dtype or kv_dtype_of(model))
    # Quantized latents can only be read as copies, so plain ones are too: else only one of the runs would round.
    reads: Reads = "gather" if any(layer.kind == "latent" for layer in spec.layers) else "auto"
    width = -(-length // block_size)
    tables = np.arange(batch * width).reshape(batch, width)  # a sequence's blocks are consecutive
    cache = PagedKVCache(spec, batch * width, block_size, device=model.get_input_embeddings().weight.device)
    adapter = bind_model(model, cache, reads=reads)
    rows = []
    try:
        for start, end in [(0, prefill), *((at, at + 1) for at in range(prefill, length))]:
            lengths, queries = np.full(batch, end), np.full(batch, end - start)
            step = Batch.build(cache, [tables] * len(cache.kv_cache_groups), lengths, queries)
            rows.append(adapter.forward(ids[:, start:end].reshape(-1), step))
    finally:
        adapter.unbind()
    return torch.stack(rows, dim=1)


def logit_error(logits: Tensor, exact: Tensor) -> LogitError:
    """Return the difference of ``logits`` [..., vocabulary] from ``exact``, of the same shape; computed in float64.

    Raises ``ArgumentError`` for two shapes, and for no logits.
    """
    if logits.shape != exact.shape:
        raise ArgumentError(
            "cache_shape", what="logits", shape=list(logits.shape), expected=list(exact.shape)
        )
    check_count("logits", logits.numel())
    found, right = logits.flatten(0, -2), exact.flatten(0, -2)
    largest, total = torch.zeros((), dtype=torch.float64), dict.fromkeys(("abs", "spread", "kl", "same"), 0.0)
    for some, due in zip(found.split(_AT_ONCE), right.split(_AT_ONCE), strict=True):
        some, due = some.double(), due.double()
        off = (some - due).abs()
        p, q = due.log_softmax(-1), some.log_softmax(-1)
        largest = torch.maximum(largest, off.max().cpu())  # maximum keeps a NaN
        total["abs"] += float(off.sum())
        total["spread"] += float(due.std(-1, correction=0).sum())
        total["kl"] += float((p.exp() * (p - q)).sum())
        total["same"] += float((some.argmax(-1) == due.argmax(-1)).sum())
    rows, elements = len(found), found.numel()
    return LogitError(
        positions=rows,
        max_abs=float(largest),
        mean_abs=total["abs"] / elements,
        spread=total["spread"] / rows,
        kl=total["kl"] / rows,
        same_top=total["same"] / rows,
    )


def _token_ids(model: Any, tokens: Sequence[Any] | np.ndarray) -> Tensor:
    """Return ``tokens`` as int64 [B, n], each in the model's vocabulary."""
    try:
        ids = np.array([np.asarray(row) for row in tokens])
    except ValueError:  # rows of different lengths
        raise ArgumentError(
            "cache_shape", what="tokens", shape=f"[{len(tokens)}, ?]", expected="[B, n]"
        ) from None
    if ids.ndim != 2 or not ids.size:
        raise ArgumentError("cache_shape", what="tokens", shape=list(ids.shape), expected="[B, n]")
    if ids.dtype.kind not in "iu":
        raise ArgumentError("cache_not_whole", what="tokens", value=f"{ids.dtype}")
    last = model.get_input_embeddings().num_embeddings - 1
    for token in (int(ids.min()), int(ids.max())):
        if not 0 <= token <= last:
            raise ArgumentError("llm_token", token=token, last=last)
    return torch.from_numpy(ids.astype(np.int64))


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"models.error_{key}", lang, **values)
