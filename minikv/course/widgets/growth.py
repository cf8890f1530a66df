"""The growth widget: the same rows in a linear cache and in a paged one, while the reader adds tokens.

Planned bytes come from the spec, measured bytes from the tensors of two real caches, made anew for each setting
and freed again: a ``LinearKVCache`` of ``max_seq`` tokens a row, and a ``PagedKVCache`` of only the blocks that
the rows have begun. On a GPU the growth of ``torch.cuda.memory_allocated`` is shown too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from minikv.course.widgets.base import script, style
from minikv.course.widgets.fields import select, slider
from minikv.course.widgets.form import FormWidget
from minikv.errors import ArgumentError, MiniKVError, check_count
from minikv.extras import require_engine
from minikv.i18n import text
from minikv.plan import CacheSpec, LayerSpec
from minikv.plan.pool import sequence_bytes
from minikv.units import exact_bytes

# Row A has the prompt of ``length`` tokens; B, C and D have a half, a quarter and an eighth of it.
ROWS = "ABCD"
MAX_TOKENS = 2048  # of a prompt, of the steps and of a row: the most that can be drawn
LENGTHS = [1, 2, 4, 8, 16, 32, 50, 64, 100, 128, 150, 192, 256, 384, 512, 768, 1024]
ROOMS = [64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048]
BLOCK_SIZES = (8, 16, 32, 64, 128)

# Two layers of two KV heads of 16 elements in bf16: 256 bytes a token, so that a laptop holds any setting.
SMALL = CacheSpec(layers=(LayerSpec("full", kv_heads=2, k_dim=16, v_dim=16),) * 2, name="small")


@dataclass(frozen=True)
class Held:
    """One cache: its slots and tokens, planned and measured bytes, and the GPU allocator's bytes.

    ``allocated`` is None on a CPU. ``full_row`` is the first row without room for the next tokens, or None.
    """

    slots: int
    tokens: tuple[int, ...]
    planned: int
    measured: int
    allocated: int | None
    full_row: int | None = None


class GrowthWidget(FormWidget):
    """Four rows that grow by one token a step, linear beside paged, with planned and measured bytes.

    ``lang`` is "en" or "zh". The other arguments are the start, to which Reset returns: ``step`` decode steps taken,
    ``length`` tokens of row A's prompt, ``max_seq`` tokens that the linear cache reserves a row, ``block_size``
    tokens a block of the paged one. ``spec`` is the model (by default a small one; layers of one group, plain dtype),
    ``device`` the device of the caches (None: the GPU if there is one).

    Raises ``ArgumentError`` for an invalid start. Later, a setting that cannot work raises nothing: its error is
    shown, and so is the ``RowFullError`` of a linear row without room for the next token.
    """

    _table = "widgets_growth"
    _esm = script("bar.js", "form.js", "table.js", "growth.js")
    _css = style("growth.css")

    def __init__(
        self,
        lang: str = "en",
        *,
        step: int = 0,
        length: int = 100,
        max_seq: int = 256,
        block_size: int = 16,
        spec: CacheSpec = SMALL,
        device: Any = None,
    ):
        self._spec, self._device = spec, _device(device)
        start: dict[str, Any] = {
            "step": step,
            "length": length,
            "max_seq": max_seq,
            "block_size": block_size,
        }
        _check(start)
        super().__init__(lang, start)

    def text(self) -> str:
        """Return the view as plain lines, in the widget's language, without the figures that only a GPU has."""
        with self._turn:
            state, view = dict(self.state), self.view
        rows = [(row["label"], row["linear"]["text"], row["paged"]["text"]) for row in view["rows"]]
        rows += [(row["label"], *row["values"]) for row in view["table"] if row["key"] != "allocated"]
        lines = [text("widgets_growth.summary", self._lang, **state)]
        for label, *values in rows:
            line = text("widgets_growth.line", self._lang, label=label, value=" | ".join(values))
            lines.append(f"  {line}")
        return "\n".join([*lines, view["status"]])

    def _photo_view(self, state: dict[str, Any]) -> dict[str, Any]:
        view = super()._photo_view(state)
        view["table"] = [row for row in view["table"] if row["key"] != "allocated"]
        return view

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        """Return the drawing of both caches with these settings, or the sentence that says why they are impossible."""
        try:
            _check(state)
            wanted = tuple(max(1, state["length"] >> place) + state["step"] for place in range(len(ROWS)))
            linear = self._linear(state, wanted)
            paged = self._paged(state, wanted)
        except MiniKVError as refusal:
            sentence = refusal.text(lang)
            return {"scale": 1, "rows": [], "table": [], "aria": sentence, "status": sentence, "error": True}
        return _view(state, linear, paged, lang)

    def _linear(self, state: dict[str, Any], wanted: tuple[int, ...]) -> Held:
        """Return a linear cache after the prompts and the steps, as far as its rows have room."""
        from minikv.cache.linear import LinearKVCache, RowFullError

        before = self._allocated()
        cache = LinearKVCache(self._spec, len(ROWS), state["max_seq"], device=self._device)
        allocated = self._allocated()
        full_row = None
        try:
            cache.commit([length - state["step"] for length in wanted])
            for _ in range(state["step"]):
                cache.commit([1] * len(ROWS))
        except RowFullError as full:
            # Keep the row only: the error would keep this frame alive, and the cache with it.
            full_row = cast(int, full.values["row"])
        return Held(
            slots=cache.use().slots,
            tokens=cache.host_lengths,
            planned=self._spec.bytes_for(state["max_seq"], batch=len(ROWS)),
            measured=_storage_bytes(cache.tensors),
            allocated=None if allocated is None or before is None else allocated - before,
            full_row=full_row,
        )

    def _paged(self, state: dict[str, Any], wanted: tuple[int, ...]) -> Held:
        """Return a paged cache of the blocks that these lengths have begun."""
        from minikv.cache.paged import PagedKVCache

        size = state["block_size"]
        blocks = sum(-(-length // size) for length in wanted)
        before = self._allocated()
        cache = PagedKVCache(self._spec, blocks, size, device=self._device)
        allocated = self._allocated()
        tensors = [part.tensor for group in range(len(cache.kv_cache_groups)) for part in cache.parts(group)]
        return Held(
            slots=blocks * size,
            tokens=wanted,
            planned=sum(sequence_bytes(self._spec, length, size) for length in wanted),
            measured=_storage_bytes(tensors),
            allocated=None if allocated is None or before is None else allocated - before,
        )

    def _allocated(self) -> int | None:
        """Return the bytes that torch has allocated on the GPU, None on a CPU."""
        if self._device.type != "cuda":
            return None
        import torch

        return torch.cuda.memory_allocated(self._device)

    def _form(self, lang: str) -> dict[str, Any]:
        table = "widgets_growth"
        sizes = sorted({*BLOCK_SIZES, self._start["block_size"]})
        return {
            **super()._form(lang),
            "linear": text("widgets_growth.linear", lang),
            "paged": text("widgets_growth.paged", lang),
            "columns": ["", text("widgets_growth.linear", lang), text("widgets_growth.paged", lang)],
            "fields": [
                slider(table, "step", list(range(257)), 0, MAX_TOKENS, 1, lang),
                slider(table, "length", LENGTHS, 1, MAX_TOKENS, 1, lang),
                slider(table, "max_seq", ROOMS, 1, MAX_TOKENS, 1, lang),
                select(table, "block_size", [[size, str(size)] for size in sizes], lang),
            ],
        }


def _device(device: Any) -> Any:
    require_engine()
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def _check(state: dict[str, Any]) -> None:
    for key, least in (("step", 0), ("length", 1), ("max_seq", 1), ("block_size", 1)):
        check_count(key, state[key], least=least)
        if state[key] > MAX_TOKENS:
            raise ArgumentError("out_of_range", what=key, value=state[key], low=least - 1, high=MAX_TOKENS)


def _storage_bytes(tensors: Sequence[Any]) -> int:
    """Return the bytes of the storage behind these tensors, measured and not from a formula."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _view(state: dict[str, Any], linear: Held, paged: Held, lang: str) -> dict[str, Any]:
    size, room = state["block_size"], state["max_seq"]
    rows: list[dict[str, Any]] = []
    for place, name in enumerate(ROWS):
        tokens, blocks = paged.tokens[place], -(-paged.tokens[place] // size)
        rows.append(
            {
                "label": name,
                "look": place,
                "linear": {
                    "filled": linear.tokens[place],
                    "slots": room,
                    "refused": linear.full_row is not None,
                    "text": text("widgets_growth.row_linear", lang, tokens=linear.tokens[place], slots=room),
                },
                "paged": {
                    "filled": [min(size, tokens - block * size) for block in range(blocks)],
                    "slots": blocks * size,
                    "text": text(
                        "widgets_growth.row_paged",
                        lang,
                        tokens=tokens,
                        slots=blocks * size,
                        blocks=blocks,
                        block_size=size,
                    ),
                },
            }
        )
    status = text("widgets_growth.status", lang, **state, **_shares(linear, paged))
    if linear.full_row is not None:
        full = dict(row=ROWS[linear.full_row], max_seq=room)
        status = text("widgets_growth.refused", lang, status=status, **full)
    return {
        "scale": max(room, *(row["paged"]["slots"] for row in rows)),
        "rows": rows,
        "table": _table(linear, paged, lang),
        "aria": text("widgets_growth.aria", lang, status=status),
        "status": status,
        "error": linear.full_row is not None,
    }


def _shares(linear: Held, paged: Held) -> dict[str, Any]:
    return {
        "linear_slots": linear.slots,
        "linear_share": sum(linear.tokens) / linear.slots,
        "paged_slots": paged.slots,
        "paged_share": sum(paged.tokens) / paged.slots,
    }


def _table(linear: Held, paged: Held, lang: str) -> list[dict[str, Any]]:
    def line(key: str, values: Sequence[str]) -> dict[str, Any]:
        return {"key": key, "label": text(f"widgets_growth.{key}", lang), "values": list(values)}

    both = (linear, paged)
    lines = [
        line("slots", [f"{held.slots:,}" for held in both]),
        line("tokens", [f"{sum(held.tokens):,}" for held in both]),
        line("empty", [f"{held.slots - sum(held.tokens):,}" for held in both]),
        line("planned", [exact_bytes(held.planned) for held in both]),
        line("measured", [exact_bytes(held.measured) for held in both]),
    ]
    if linear.allocated is not None and paged.allocated is not None:
        lines.append(line("allocated", [exact_bytes(held.allocated or 0) for held in both]))
    return lines
