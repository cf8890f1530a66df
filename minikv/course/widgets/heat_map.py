"""Lesson 14: the heat-map widget, a text read under an eviction policy, step by step.

A column is a token, a row a step (or a head). The shade is the score that the policy saw, and a frame marks the kept
tokens. The rows are ``trace_eviction``'s, computed by the model when a policy or a share is first chosen. All steps,
layers and heads of a trace are sent together, so that the slider works while a cell is busy, or without a kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.fields import select, slider
from minikv.course.widgets.form import FormWidget
from minikv.course.widgets.heat_map_drawing import HEAVY, LEAVING, RECENT, SINK, draw_trace
from minikv.errors import ArgumentError, MiniKVError, check_count
from minikv.i18n import text
from minikv.models.recall import WORDS, Document, recall_documents

if TYPE_CHECKING:
    from minikv.eviction.policies.budget import Budget
    from minikv.eviction.policies.policy import Policy
    from minikv.eviction.study.trace import EvictionTrace

SHARES = (0.5, 0.25, 0.1)
MAX_TOKENS = 128  # columns that can be told apart
MAX_CELLS = 200_000  # of all layers, heads and steps: the most sent to the page for one policy
LETTERS = {SINK: "sink", HEAVY: "heavy", RECENT: "recent", LEAVING: "leaving", "-": "gone", ".": "not_yet"}


class HeatMapWidget(FormWidget):
    """A heat-map of the scores of every token, layer, head and step, with the kept tokens and the answers.

    ``lang`` is "en" or "zh". ``model``: a decoder of transformers (None: tiny-gqa). ``document``: the text and its
    questions (None: 6 facts, then 5 questions, 72 tokens). Its first ``prompt`` tokens are computed in one forward
    (None: a third), the others a step each. ``policies``: name -> Policy or its name, the reader's choices (None: those
    of ``minikv.eviction``). ``layers``: which of the model's (None: all). ``word`` gives a token id's word (None: the
    tiny models' vocabulary). ``scope`` is "head" or "layer" (None: "head", and "layer" on a model of latents). The
    others are the first settings: ``policy``, ``share`` (the capacity divided by the text's length), ``layer``,
    ``head`` (None: all), ``rows`` ("steps", "heads"), ``shade`` ("score", "rank") and ``step`` (None: the last).

    Raises ``ArgumentError`` for a text of more than 128 tokens, more than 200,000 cells and an invalid start, and what
    ``trace_eviction`` raises. Later, a setting that cannot work is shown as a sentence.
    """

    _table = "widgets_heat_map"
    _esm = script("bar.js", "form.js", "shades.js", "heat_map.js")
    _css = style("heat_map.css")

    def __init__(
        self,
        lang: str = "en",
        *,
        model: Any = None,
        document: Document | None = None,
        prompt: int | None = None,
        policies: "Mapping[str, str | Policy] | None" = None,
        layers: Sequence[int] | None = None,
        word: Callable[[int], str] = WORDS.__getitem__,
        scope: str | None = None,
        policy: str = "h2o",
        share: float = 0.25,
        layer: int | None = None,
        head: int | None = None,
        rows: str = "steps",
        shade: str = "score",
        step: int | None = None,
    ):
        self._model, self._word = model, word
        self._document = _document() if document is None else document
        self._tokens = [int(token) for token in self._document.tokens]
        check_count("tokens", len(self._tokens), least=8)
        if len(self._tokens) > MAX_TOKENS:
            raise ArgumentError(
                "out_of_range", what="tokens", value=len(self._tokens), low=7, high=MAX_TOKENS
            )
        self._prompt = len(self._tokens) // 3 if prompt is None else prompt
        self._policies = _policies(policies)
        self._layers, self._scope = layers, scope
        self._traces: dict[tuple[str, float], EvictionTrace] = {}
        self._views: dict[tuple[str, float, str], dict[str, Any]] = {}
        first = self._trace(policy, share)
        cells = first.scores.size
        if cells > MAX_CELLS:
            raise ArgumentError("heat_map_cells", cells=cells, most=MAX_CELLS, layers=len(first.layers))
        start: dict[str, Any] = {
            "policy": policy,
            "share": share,
            "layer": first.layers[-1] if layer is None else layer,
            "head": head,
            "rows": rows,
            "shade": shade,
            "step": first.steps - 1 if step is None else step,
        }
        self._check(start)
        super().__init__(lang, start)

    @property
    def trace(self) -> "EvictionTrace":
        """The trace on display. Raises ``ArgumentError`` where the settings are impossible."""
        state = dict(self.state)
        self._check(state)
        return self._trace(state["policy"], state["share"])

    def text(self) -> str:
        """Return the chosen step as plain lines, in the widget's language: numbers, and words by role."""
        with self._turn:
            state, view = dict(self.state), self.view
        if view["error"]:
            return view["status"]
        lang, shown = self._lang, self._shown(view, state)
        roles = shown["roles"][state["step"]]
        kept = self._share_text(state["share"], lang)
        lines = [
            text(
                f"{self._table}.summary",
                lang,
                policy=state["policy"],
                kept=kept,
                length=len(self._tokens),
                prompt=self._prompt,
            )
        ]
        for letter, name in LETTERS.items():
            if letter in (SINK, HEAVY, RECENT, LEAVING):
                words = [self._say(place) for place, role in enumerate(roles) if role == letter]
                label = text(f"{self._table}.mark_{name}", lang)
                said = " ".join(words) or text(f"{self._table}.no_token", lang)
                lines.append(text(f"{self._table}.line_kept", lang, label=label, words=said))
        return "\n".join([*lines, shown["status"][state["step"]]])

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        """Return all rows of this policy and share. The same object is returned while both stay, so nothing is sent."""
        try:
            self._check(state)
            key = (state["policy"], state["share"], lang)
            if key not in self._views:
                trace = self._trace(state["policy"], state["share"])
                self._views[key] = draw_trace(trace, self._document.questions, self._word, lang)
            return self._views[key]
        except MiniKVError as refusal:
            return {"maps": None, "steps": [], "status": refusal.text(lang), "error": True}

    def _form(self, lang: str) -> dict[str, Any]:
        table = self._table
        first = next(iter(self._traces.values()))

        def say(key: str) -> str:
            return text(f"{table}.{key}", lang)

        shares = sorted({*SHARES, self._start["share"]}, reverse=True)
        heads: list[list[Any]] = [[None, say("head_all" if first.heads > 1 else "head_latent")]]
        if first.heads > 1:
            heads += [[head, str(head)] for head in range(first.heads)]
        marks = ("shades", "kept", "gone", "answer")
        token = {key: f"{{{key}}}" for key in ("word", "position", "role")}  # the script fills these in
        return {
            **super()._form(lang),
            "words": [self._say(place) for place in range(len(self._tokens))],
            "marks": [
                *([mark, say(f"mark_{mark}")] for mark in marks[:3]),
                *([letter, say(f"mark_{LETTERS[letter]}")] for letter in (SINK, HEAVY, RECENT)),
                ["\u00d7", say("mark_leaving")],
                [marks[3], say("mark_answer")],
            ],
            "letters": {letter: say(f"role_{name}") for letter, name in LETTERS.items()},
            **{key: say(key) for key in ("hint", "map_aria", "strip_aria")},
            "detail": text(f"{table}.detail", lang, score="{score}", **token),
            "detail_gone": text(f"{table}.detail_gone", lang, **token),
            "step_label": text(f"{table}.step_label", lang, step="{step}", word="{word}"),
            "head_label": text(f"{table}.head_label", lang, layer="{layer}", head="{head}"),
            "row_label": text(f"{table}.row_label", lang, layer="{layer}"),
            "fields": [
                select(table, "policy", [[name, name] for name in self._policies], lang),
                select(table, "share", [[share, self._share_text(share, lang)] for share in shares], lang),
                select(table, "layer", [[layer, str(layer)] for layer in first.layers], lang),
                select(table, "head", heads, lang),
                select(table, "rows", [[rows, say(f"rows_{rows}")] for rows in ("steps", "heads")], lang),
                select(table, "shade", [[shade, say(f"shade_{shade}")] for shade in ("score", "rank")], lang),
                slider(table, "step", list(range(first.steps)), 0, first.steps - 1, 1, lang),
            ],
        }

    def _check(self, state: dict[str, Any]) -> None:
        """Raise for a setting that the controls cannot make."""
        _one_of("policy", state["policy"], self._policies)
        _check_share(state["share"])
        first = next(iter(self._traces.values()))
        _one_of("layer", state["layer"], first.layers)
        _one_of("head", state["head"], (None, *(range(first.heads) if first.heads > 1 else ())))
        _one_of("rows", state["rows"], ("steps", "heads"))
        _one_of("shade", state["shade"], ("score", "rank"))
        check_count("step", state["step"], least=0)
        if state["step"] >= first.steps:
            raise ArgumentError(
                "out_of_range", what="step", value=state["step"], low=-1, high=first.steps - 1
            )

    def _trace(self, policy: str, share: float) -> "EvictionTrace":
        """Return the trace of one policy and share, computed once."""
        from minikv.eviction.study.trace import trace_eviction

        _one_of("policy", policy, self._policies)
        _check_share(share)
        if (policy, share) not in self._traces:
            if self._model is None:
                from minikv.models import load

                self._model = load("tiny-gqa", device="cpu", dtype="fp32").model
            budget = budget_of(share, len(self._tokens))
            self._traces[policy, share] = trace_eviction(
                self._model,
                self._tokens,
                prompt=self._prompt,
                policy=self._policies[policy],
                budget=budget.budget,
                n_sink=budget.n_sink,
                n_recent=budget.n_recent,
                layers=self._layers,
                scope=self._scope or _scope_of(self._model),
            )
        return self._traces[policy, share]

    def _share_text(self, share: float, lang: str) -> str:
        capacity = budget_of(share, len(self._tokens)).capacity
        return text(f"{self._table}.share_option", lang, share=share, capacity=capacity)

    def _shown(self, view: dict[str, Any], state: dict[str, Any]) -> dict[str, list]:
        head = "all" if state["head"] is None else str(state["head"])
        return view["maps"][str(state["layer"])][head]

    def _say(self, place: int) -> str:
        return self._word(self._tokens[place])


def budget_of(share: float, length: int) -> "Budget":
    """Return a capacity of ``share`` x ``length``: a quarter of it sinks, at most 4; a third recent, at most 8."""
    from minikv.eviction.policies.budget import Budget

    capacity = max(3, round(share * length))
    sinks, recent = min(4, capacity // 4), min(8, max(2, capacity // 3))
    return Budget(n_sink=sinks, budget=capacity - sinks - recent, n_recent=recent, evict_every=1)


def _scope_of(model: Any) -> str:
    """Return "head" where each head has K and V of its own, so that it can keep its own tokens."""
    from minikv.plan.spec.cache_spec import CacheSpec

    latent = any(layer.kind == "latent" for layer in CacheSpec.from_config(model.config).layers)
    return "layer" if latent else "head"


def _document() -> Document:
    """Return a text that a page can show whole: 48 tokens with 6 facts, then 5 questions."""
    return recall_documents(1, seed=3, facts=6, context=48, queries=5, span=23)[0]


def _policies(policies: "Mapping[str, str | Policy] | None") -> "dict[str, str | Policy]":
    if policies is not None:
        check_count("policies", len(policies))
        return dict(policies)
    from minikv.eviction import POLICIES, Needs

    # A trace does not see the queries that an echo turns.
    return {name: name for name, kind in POLICIES.items() if not kind.needs & Needs.QUERIES}


def _one_of(what: str, value: Any, known: Any) -> None:
    named = isinstance(value, str | int | None) and not isinstance(value, bool)
    if not named or value not in known:
        names = ", ".join(str(name) for name in known)
        raise ArgumentError("unknown_choice", what=what, value=value, known=names)


def _check_share(share: Any) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ArgumentError("out_of_range", what="share", value=share, low=0, high=1)
