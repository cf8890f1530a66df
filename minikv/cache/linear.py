"""LinearKVCache: the simplest cache. Every row of the batch has room for ``max_seq`` tokens from the start.

    [layers, batch, 2, kv_heads, max_seq, head_dim]        2: K at 0, V at 1

A token's place follows from its position by one multiplication; there is no table. The price: a row of 10 tokens takes
the room of ``max_seq``. Seen as pages, it is one block of ``max_seq`` tokens a row: ``LinearPages``.

One step of a model calls ``write`` in every layer, all at the same lengths, then ``commit`` once. Lengths are kept
twice: ``lengths`` on the device, for kernels, and ``host_lengths`` here, so that the host need not wait for the device.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from minikv.cache.checks import check_tokens
from minikv.cache.linear_layout import layer_sources, linear_dtype, linear_groups
from minikv.errors import ArgumentError, MiniKVError, check_count
from minikv.i18n import pick_language, text
from minikv.kernels.quantize import cast
from minikv.memory.arena import Arena, ArenaInUseError, arena_bytes
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes

ROWS_SHOWN = 16  # rows of the batch that a notebook shows
MAX_LENGTH = 2**31 - 1  # ``lengths`` is int32, as kernels take it


class RowFullError(MiniKVError):
    """A row has no room for the tokens of a step: ``row``, ``length``, ``more``, ``max_seq``."""


@dataclass(frozen=True)
class LinearUse:
    """The used part of a linear cache. Slots and tokens are per layer, bytes are of all layers.

    ``useful_bytes`` is the need of the tokens (``spec.bytes_for`` of each row's length): a sliding layer needs only its
    window, so the tokens that this cache keeps behind it are waste too.
    """

    slots: int
    tokens: int
    nbytes: int
    useful_bytes: int

    @property
    def wasted_bytes(self) -> int:
        """The bytes that are reserved and not needed now."""
        return self.nbytes - self.useful_bytes

    @property
    def wasted_fraction(self) -> float:
        """``wasted_bytes / nbytes``, from 0 to 1."""
        return self.wasted_bytes / self.nbytes

    def shown(self, lang: str = "en") -> Shown:
        """Return two sentences: tokens and slots, and the bytes of both."""
        lang = pick_language(lang)
        return Shown(
            _say("use_title", lang, tokens=self.tokens, slots=self.slots), lines=(self.sentence(lang),)
        )

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        needed = f"{format_bytes(self.useful_bytes)} of {format_bytes(self.nbytes)} needed"
        return one_line("LinearUse", "", f"{self.tokens:,} tokens in {self.slots:,} slots", needed)

    def sentence(self, lang: str) -> str:
        """Return a sentence with the needed bytes and the wasted ones."""
        sizes = {"useful": self.useful_bytes, "size": self.nbytes, "wasted": self.wasted_bytes}
        written = {name: exact_bytes(size) for name, size in sizes.items()}
        return _say("use", lang, **written, share=self.wasted_fraction)


class LinearKVCache:
    """K and V of ``batch`` rows of at most ``max_seq`` tokens each, in one allocation.

    Layers of one shape share a tensor [layers, batch, 2, kv_heads, max_seq, head_dim]. If K and V differ in width (MLA:
    K is the latent, V the rope key, one head), they share two tensors [layers, batch, kv_heads, max_seq, dim]. Every
    element starts as 0: a masked place is multiplied by 0, and 0 * NaN would be NaN.

    A sliding layer is stored in full, like the others: this layout cannot free places. A "shared"
    layer has no storage and gives the views of the layer that it reads. Refused, with the layer named
    (``ArgumentError``): recurrent state, cross-attention, indexer keys, storage formats, and every dtype but
    fp32, bf16, fp16.

    ``nbytes`` are those of K and V, without ``lengths``: ``spec.bytes_for(max_seq, batch)`` if no layer has a
    window.
    """

    def __init__(self, spec: CacheSpec, batch: int, max_seq: int, *, device: torch.device | str = "cpu"):
        if not isinstance(spec, CacheSpec):
            raise ArgumentError("cache_not_a_spec", kind=type(spec).__name__)
        check_count("batch", batch)
        check_count("max_seq", max_seq)
        if max_seq > MAX_LENGTH:
            raise ArgumentError("out_of_range", what="max_seq", value=max_seq, low=0, high=MAX_LENGTH)
        self.spec, self.batch, self.max_seq, self.dtype = spec, batch, max_seq, linear_dtype(spec)
        self._groups, self._sources = linear_groups(spec), layer_sources(spec)
        requests: list[tuple[tuple[int, ...], torch.dtype]] = [((batch,), torch.int32)]
        requests += [(shape, self.dtype) for group in self._groups for shape in group.shapes(batch, max_seq)]
        self.arena = Arena(arena_bytes(requests), device, name="linear KV cache")
        self.device = self.arena.device
        self._hold(self.arena.borrow)
        for tensor in (self.lengths, *self.tensors):
            tensor.zero_()
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors)
        self._host_lengths = (0,) * batch
        self._step: tuple[object, tuple[Tensor, ...]] | None = None

    def _hold(self, lend: Callable[[str, tuple[int, ...], torch.dtype], Tensor]) -> None:
        """Keep the tensors that ``lend`` returns for ``lengths`` and each group, and each layer's views of them."""
        views: dict[int, tuple[Tensor, Tensor]] = {}
        tensors: list[Tensor] = []
        # A cache outlives the block in which it was made, and an inference tensor could not be written outside it.
        with torch.inference_mode(False):
            self._lengths: Tensor | None = lend("lengths", (self.batch,), torch.int32)
            for group in self._groups:
                names = ("kv",) if group.joined else ("k", "v")
                parts = [
                    lend(f"{name}, layers as {group.layers[0]}", shape, self.dtype)
                    for name, shape in zip(names, group.shapes(self.batch, self.max_seq), strict=True)
                ]
                tensors += parts
                for place, layer in enumerate(group.layers):
                    if group.joined:
                        views[layer] = (parts[0][place, :, 0], parts[0][place, :, 1])
                    else:
                        views[layer] = (parts[0][place], parts[1][place])
        self.tensors, self._views = tuple(tensors), views

    @property
    def lengths(self) -> Tensor:
        """The committed tokens of each row, [batch] int32 on the device, at a fixed address."""
        if self._lengths is None:
            raise ArgumentError("paged_closed")
        return self._lengths

    @property
    def host_lengths(self) -> tuple[int, ...]:
        """The committed tokens of each row, without a wait for the device."""
        return self._host_lengths

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of one layer, [batch, kv_heads, max_seq, dim] each: views, nothing is copied.

        Row b holds ``lengths[b]`` tokens; what lies behind them does not belong to the sequence.
        """
        self._check_open()
        check_count("layer", layer, least=0)
        if layer >= len(self.spec.layers):
            raise ArgumentError(
                "out_of_range", what="layer", value=layer, low=-1, high=len(self.spec.layers) - 1
            )
        source = self._sources[layer]
        if source is None:
            raise ArgumentError("cache_no_kv", layer=layer, name=self.spec.name)
        return self._views[source]

    @torch.no_grad()
    def write(self, layer: int, k: Tensor, v: Tensor, counts: Iterable[int] | None = None) -> None:
        """Write new tokens behind each row's committed length. The lengths do not move: ``commit`` moves them.

        ``k`` is [batch, kv_heads, T, k_dim] and ``v`` [batch, kv_heads, T, v_dim], float16 or wider, on the cache's
        device; another dtype is cast, saturating. With ``counts`` row b has only its first ``counts[b]`` tokens
        (0 to T): a batch in which one row reads a prompt, another decodes and a third is idle. Writing the same
        step again overwrites it.

        Raises ``RowFullError`` before anything is written; ``ArgumentError`` for shapes, dtypes, devices, counts.
        """
        cache_k, cache_v = self.layer(layer)
        if self._sources[layer] != layer:
            raise ArgumentError("cache_shared_write", layer=layer, source=self._sources[layer])
        _, heads, _, k_dim = cache_k.shape
        check_tokens("k", k, (self.batch, heads, None, k_dim), cache_k.device)
        num_tokens = k.shape[2]
        check_tokens("v", v, (self.batch, heads, num_tokens, cache_v.shape[3]), cache_v.device)
        step = num_tokens if counts is None else self._row_counts("counts", counts, most=num_tokens)
        places = self._places(step)
        for new, cache in ((k, cache_k), (v, cache_v)):
            new = new.transpose(1, 2)  # [batch, T, heads, dim]
            if counts is not None:
                new = new[places[2], places[3]]  # [tokens, heads, dim], without the padding
            cache.transpose(1, 2)[places[0], places[1]] = cast(new, self.dtype)

    def commit(self, increments: Iterable[int]) -> None:
        """Count the tokens that this step wrote: ``lengths[b] += increments[b]``. Call it once a step, after every
        layer.

        ``increments`` is a list, tuple, NumPy array or tensor of ``batch`` whole numbers from 0; for a CUDA tensor the
        host has to wait for the values. Raises ``RowFullError`` if a row would pass ``max_seq``; then no row moves.
        """
        self._check_open()
        more = self._row_counts("increments", increments, most=None)
        self._check_room(more)
        self._set_lengths(tuple(have + new for have, new in zip(self._host_lengths, more, strict=True)))

    def reset(self, rows: Iterable[int] | None = None) -> None:
        """Start the given rows again at length 0 (None: all). The bytes stay until they are overwritten."""
        self._check_open()
        chosen = range(self.batch) if rows is None else whole_numbers("rows", rows)
        for row in chosen:
            if not 0 <= row < self.batch:
                raise ArgumentError("out_of_range", what="row", value=row, low=-1, high=self.batch - 1)
        gone = set(chosen)
        self._set_lengths(tuple(0 if row in gone else have for row, have in enumerate(self._host_lengths)))

    def use(self) -> LinearUse:
        """Return the reserved slots, the tokens, and the bytes of both."""
        self._check_open()
        return LinearUse(
            slots=self.batch * self.max_seq,
            tokens=sum(self._host_lengths),
            nbytes=self.nbytes,
            useful_bytes=sum(self.spec.bytes_for(length) for length in self._host_lengths),
        )

    @property
    def closed(self) -> bool:
        """Whether ``close`` has freed the memory."""
        return not self.tensors

    def shown(self, lang: str = "en") -> Shown:
        """Return a row for each of the first rows of the batch, with a bar; then the needed and wasted bytes of all."""
        lang, name = pick_language(lang), type(self).__name__
        if self.closed:
            return Shown(_say("closed", lang, kind=name, name=self.spec.name, size=exact_bytes(self.nbytes)))
        head = [_say(f"column_{each}", lang) for each in ("row", "held", "reserved")]
        lengths = self._host_lengths[:ROWS_SHOWN]
        rows = [(f"{row}", f"{held:,}", f"{self.max_seq:,}") for row, held in enumerate(lengths)]
        values = {"device": str(self.device), "kv_dtype": self.spec.kv_dtype}
        title = _say("title", lang, kind=name, name=self.spec.name, **values)
        more = self.batch - len(lengths)
        lines = [_say("more_rows", lang, count=more)] if more else []
        lines.append(self.use().sentence(lang))
        return Shown(title, head, rows, (0, 1, 2), lines, shares=[held / self.max_seq for held in lengths])

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        told = [
            f"{self.batch:,} rows of {self.max_seq:,} tokens",
            f"{format_bytes(self.nbytes)} on {self.device}",
        ]
        told.append("closed" if self.closed else f"{sum(self._host_lengths):,} tokens held")
        return one_line("LinearKVCache", self.spec.name, *told)

    def close(self) -> None:
        """Free the memory. A second call does nothing.

        Raises ``ArenaInUseError`` with the names of tensors that are still used elsewhere (a view, ``lengths``). The
        cache still works then: drop these, and close again.
        """
        self._lengths, self.tensors, self._views = None, (), {}  # else the arena would name the cache itself
        self._step = None
        try:
            self.arena.close()
        except ArenaInUseError:
            self._hold(lambda name, *_: self.arena.renew(name))
            raise

    def _check_open(self) -> None:
        if self.closed:
            raise ArgumentError("paged_closed")

    def _set_lengths(self, lengths: tuple[int, ...]) -> None:
        self._host_lengths = lengths
        self._step = None
        # In place, so that a kernel or a CUDA graph with the address sees the change. A copy from pageable memory is
        # staged before the call returns: non_blocking is safe, and saves waiting for the device.
        self.lengths.copy_(torch.tensor(lengths, dtype=torch.int32), non_blocking=True)

    def _places(self, step: int | tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return the places of a step's tokens, (rows, positions); for counts per row also their sources, (rows,
        columns).

        They are the same for every layer of a step, so they are computed once, and dropped when lengths move.
        """
        if self._step is None or self._step[0] != step:
            more = (step,) * self.batch if isinstance(step, int) else step
            self._check_room(more)
            device = self.lengths.device
            if isinstance(step, int):
                rows = torch.arange(self.batch, device=device)[:, None]
                positions = self.lengths[:, None] + torch.arange(step, device=device)
                places: tuple[Tensor, ...] = (rows, positions)
            else:
                counts = torch.tensor(step)
                owner = torch.arange(self.batch).repeat_interleave(counts)
                # The place where each token's row begins among all the new tokens.
                first = (counts.cumsum(0) - counts)[owner]
                index = torch.stack([owner, torch.arange(len(owner)) - first]).to(device, non_blocking=True)
                rows, columns = index
                places = (rows, self.lengths[rows] + columns, rows, columns)
            self._step = (step, places)
        return self._step[1]

    def _check_room(self, more: tuple[int, ...]) -> None:
        for row, (length, new) in enumerate(zip(self._host_lengths, more, strict=True)):
            if length + new > self.max_seq:
                free = self.max_seq - length
                raise RowFullError(
                    "linear_row_full", row=row, length=length, more=new, max_seq=self.max_seq, free=free
                )

    def _row_counts(self, what: str, counts: Any, most: int | None) -> tuple[int, ...]:
        """Return ``counts`` as one int a row, each at least 0 and at most ``most``."""
        numbers = whole_numbers(what, counts)
        if len(numbers) != self.batch:
            raise ArgumentError("linear_one_a_row", what=what, given=len(numbers), batch=self.batch)
        for row, number in enumerate(numbers):
            check_count(f"{what}[{row}]", number, least=0)
            if most is not None and number > most:
                raise ArgumentError("out_of_range", what=f"{what}[{row}]", value=number, low=-1, high=most)
        return numbers


def whole_numbers(what: str, values: Any) -> tuple[int, ...]:
    """Return whole numbers of a list, tuple, range, array or tensor as ints; ``ArgumentError`` for others."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, list | tuple | range):
        raise ArgumentError("cache_not_a_list", what=what, kind=type(values).__name__)
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, Integral):  # a NumPy integer is an Integral too
            raise ArgumentError("cache_not_whole", what=what, value=repr(number))
    return tuple(int(number) for number in listed)


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"cache.{key}", lang, **values)
