"""The swap widget: the cost of a preempted sequence, copied to the host and back or computed again.

Two bars on one axis of time: the copies out and in, and the prefill. Their rates are a link's (one number, since both
directions are never used at once) and the share of a GPU's FLOP rate that a prefill reaches. Costs and the decision
are ``minikv.plan.preemption``'s.
"""

from functools import lru_cache
from typing import Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.fields import doubling, names, offered_models, select, slider
from minikv.course.widgets.form import FormWidget
from minikv.course.widgets.table import figure_lines, figure_row, milliseconds
from minikv.errors import ArgumentError, MiniKVError
from minikv.i18n import text
from minikv.plan import CacheSpec, find_gpu, find_model, gpu_names
from minikv.plan.preemption import (
    TransferRates,
    break_even_prefill,
    cheaper_to_swap,
    recompute_seconds,
    swap_seconds,
)
from minikv.plan.roofline import decode_work, gpu_roof
from minikv.plan.spec.config import read_config
from minikv.plan.spec.layers import LayerSpec
from minikv.plan.weights.weight_bytes import weight_list
from minikv.units import format_bytes

TP_SIZES = (1, 2, 4, 8)
LINKS = (1, 2, 4, 8, 12, 16, 25, 32, 50, 64, 100, 200, 450)  # GB/s one way; 25 is PCIe 4.0 x16, 50 is 5.0
MAX_LINK, MAX_TOKENS = 10_000, 2**20
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
OUT, IN, AGAIN = "host", "k", "activations"  # of the palette


class SwapCostWidget(FormWidget):
    """Controls, two bars, a sentence and a table: swap or recompute, for one sequence on one of ``tp`` ranks.

    ``lang`` is "en" or "zh". The other arguments are the start, to which Reset returns: ``model`` and ``gpu`` are
    catalogue names, ``link`` is the rate between GPU and host in GB/s (10**9 bytes a second), ``share`` the share of
    the GPU's 16-bit FLOP rate that a prefill reaches, ``tokens`` the length of the sequence, not rounded to blocks.

    Raises ``UnknownNameError`` for a model or GPU that is not in the catalogue, ``ArgumentError`` for a card without
    a FLOP rate and for an unknown language. Later, a choice that cannot work is shown.
    """

    _table = "widgets_swap_cost"
    _esm = script("bar.js", "form.js", "table.js", "swap_cost.js")
    _css = style()

    def __init__(
        self,
        lang: str = "en",
        *,
        model: str = "Llama-3.1-8B",
        gpu: str = "H100 SXM 80GB",
        tp: int = 1,
        link: float = 50,
        share: float = 0.5,
        tokens: int = 4096,
    ):
        start: dict[str, Any] = {
            "model": find_model(model).name,
            "gpu": gpu_roof(find_gpu(gpu)).name,
            "tp": tp,
            "link": link,
            "share": share,
            "tokens": tokens,
        }
        super().__init__(lang, start)

    def text(self) -> str:
        """Return the result as plain lines, in the widget's language."""
        with self._turn:
            state, view = dict(self.state), self.view
        if view["error"]:
            return view["status"]
        lines = [text(f"{self._table}.summary", self._lang, **state)]
        return "\n".join([*lines, *figure_lines(view["table"]), view["status"]])

    def _form(self, lang: str) -> dict[str, Any]:
        columns = [text(f"{self._table}.column_{key}", lang) for key in ("work", "rate", "time")]
        tp_options = [(size, str(size)) for size in TP_SIZES]
        return {
            **super()._form(lang),
            "columns": ["", *columns],
            "fields": [
                select("widgets", "model", names(self._start["model"], _countable()), lang),
                select(self._table, "gpu", names(self._start["gpu"], _cards()), lang),
                select("widgets", "tp", tp_options, lang),
                slider(self._table, "link", LINKS, 0.1, MAX_LINK, "any", lang),
                slider(self._table, "share", SHARES, 0.001, 1, "any", lang),
                slider(self._table, "tokens", doubling(16, 2**17), 1, MAX_TOKENS, 1, lang),
            ],
        }

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        try:
            _check("link", state["link"], MAX_LINK)
            _check("share", state["share"], 1)
            _check("tokens", state["tokens"], MAX_TOKENS)
            spec = CacheSpec.from_config(state["model"], tp=state["tp"])
            weight_list(state["model"], tp=state["tp"])  # raises for query heads that the ranks do not divide
            num_bytes = spec.bytes_for(state["tokens"])
            flops = prefill_flops(state["model"], state["tokens"]) / state["tp"]
            roof = gpu_roof(find_gpu(str(state["gpu"])))
        except MiniKVError as refusal:
            sentence = refusal.text(lang)
            return {"bars": None, "table": [], "aria": sentence, "status": sentence, "error": True}
        seconds = flops / (roof.tflops * 1e12 * state["share"])
        link = state["link"] * 1e9
        return _view(state, num_bytes, flops, TransferRates(link, link, state["tokens"] / seconds), lang)


def prefill_flops(model: str, tokens: int) -> int:
    """Return the FLOPs to recompute ``tokens`` of one sequence, whole model: weights, causal attention, one row of
    logits.

    MLA is counted as a prefill computes it, with K and V of every head made from the latents. Raises as
    ``decode_work`` does.
    """
    config, weights = read_config(model), weight_list(model)
    heads = config.count("num_attention_heads")
    head = next((each for each in weights if each.kind == "lm_head"), None)
    head = head or next(each for each in weights if each.kind == "embedding")
    logits = 2 * head.num_parameters
    projections = decode_work(model, 1, 1).weight_flops - logits
    pairs = 0
    for layer in CacheSpec.from_config(model).layers:
        widths = layer.k_dim + layer.v_dim
        if layer.kind == "latent":
            widths = sum(config.count(f"{part}_head_dim") for part in ("qk_nope", "qk_rope", "v"))
        pairs += 2 * heads * widths * _pairs(layer, tokens)
    return tokens * projections + logits + pairs


def _pairs(layer: LayerSpec, tokens: int) -> int:
    """Count the pairs of a query and a key that it sees, for all ``tokens`` queries."""
    seen = tokens if layer.window is None else min(tokens, layer.window)
    return seen * (seen + 1) // 2 + (tokens - seen) * seen


def _check(what: str, value: Any, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= high:
        raise ArgumentError("out_of_range", what=what, value=value, low=0, high=high)


def _cards() -> list[str]:
    """Return the cards with a 16-bit FLOP rate in their data sheets."""
    return [name for name in gpu_names() if find_gpu(name).bf16_tflops or find_gpu(name).fp16_tflops]


@lru_cache(maxsize=1)
def _countable() -> tuple[str, ...]:
    """Return the models of the catalogue with a prefill that can be counted."""
    return tuple(offered_models(lambda name: prefill_flops(name, 1)))


def _view(
    state: dict[str, Any], num_bytes: int, flops: float, rates: TransferRates, lang: str
) -> dict[str, Any]:
    tokens = state["tokens"]
    one_way = num_bytes / rates.to_host
    swap, again = swap_seconds(num_bytes, rates), recompute_seconds(tokens, rates)
    per_token = break_even_prefill(num_bytes, rates.to_host, rates.to_device) * tokens
    values = {
        "swap": milliseconds(swap),
        "recompute": milliseconds(again),
        "times": max(swap, again) / min(swap, again),
        "prefill": rates.prefill,
        "even": per_token,
    }
    wins = "swap_wins" if cheaper_to_swap(num_bytes, tokens, rates) else "recompute_wins"
    status = text(f"widgets_swap_cost.{wins}", lang, **values)
    longest = max(swap, again)
    bars = [
        _bar("swap", [("out", OUT, one_way), ("in", IN, swap - one_way)], longest, lang),
        _bar("recompute", [("again", AGAIN, again)], longest, lang),
    ]
    moved, link = format_bytes(num_bytes), f"{state['link']:,g} GB/s"
    table = [
        ("out", [moved, link, milliseconds(one_way)]),
        ("in", [moved, link, milliseconds(swap - one_way)]),
        (
            "again",
            [f"{flops / 1e12:,.2f} TFLOP", f"{flops / again / 1e12:,.1f} TFLOP/s", milliseconds(again)],
        ),
    ]
    aria = text("widgets_swap_cost.aria", lang, status=status)
    return {
        "bars": bars,
        "table": [figure_row(key, "widgets_swap_cost.row_", figures, lang) for key, figures in table],
        "aria": aria,
        "status": status,
        "error": False,
    }


def _bar(key: str, parts: list[tuple[str, str, float]], longest: float, lang: str) -> dict[str, Any]:
    """Return a bar in shares of the longer one; ``text`` is its whole time."""
    drawn = [
        {
            "key": part,
            "look": look,
            "share": seconds / longest,
            "seconds": seconds,
            "text": text(f"widgets_swap_cost.part_{part}", lang),
        }
        for part, look, seconds in parts
    ]
    whole = milliseconds(sum(seconds for _, _, seconds in parts))
    return {
        "key": key,
        "label": text(f"widgets_swap_cost.{key}", lang),
        "text": text("widgets_swap_cost.time_value", lang, value=whole),
        "parts": drawn,
    }
