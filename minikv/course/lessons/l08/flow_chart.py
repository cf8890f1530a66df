"""Lesson 08: the flow chart of one allocation, with the numbers of its ``AllocationReport``.

The chart is an ordered list of boxes, so that it can be read aloud and works without styles. The branch that this
run did not take is shown too, and marked.
"""

import html
from dataclasses import dataclass
from typing import Any

from minikv.cache.allocation import AllocationReport
from minikv.i18n import pick_language, text
from minikv.shown import shown_html
from minikv.units import exact_bytes, format_bytes


@dataclass(frozen=True)
class Box:
    """One box: the call that it stands for, its lines, and whether this run went through it."""

    code: str
    lines: tuple[str, ...]
    taken: bool = True


class FlowChart:
    """What ``allocate_kv_cache`` did in the run of ``report``, box by box, in ``lang``.

    Figures of the machine itself (its total and used memory) appear only where the size was measured.
    """

    def __init__(self, report: AllocationReport, lang: str = "en"):
        self._lang = pick_language(lang)
        self._title = self._say("title", name=report.name, device=report.device, tp=report.tp)
        self.steps = self._steps(report)

    def text(self) -> str:
        """Return the boxes as numbered lines; two parallel branches carry a and b."""
        lines = [self._title]
        for number, boxes in enumerate(self.steps, 1):
            for letter, box in zip("ab", boxes, strict=False):
                mark = f"{number}{letter}" if len(boxes) > 1 else f"{number}"
                skipped = "" if box.taken else self._say("skipped")
                lines.append(f"{mark:>3}. {box.code}{skipped}")
                lines += [f"       {line}" for line in box.lines]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": shown_html(self._html(), "flow"), "text/plain": self.text()}

    def _html(self) -> str:
        items = ("".join(map(self._box, boxes)) for boxes in self.steps)
        rows = "".join(f"<li><div>{item}</div></li>" for item in items)
        return f'<div class="minikv-line"><b>{html.escape(self._title)}</b></div><ol>{rows}</ol>'

    def _box(self, box: Box) -> str:
        kind, skipped = "", ""
        if not box.taken:
            kind, skipped = ' class="minikv-skipped"', f"<i>{html.escape(self._say('skipped'))}</i>"
        lines = "".join(f"<div>{html.escape(line)}</div>" for line in box.lines)
        return f"<div{kind}><code>{html.escape(box.code)}</code>{skipped}{lines}</div>"

    def _say(self, key: str, **values: Any) -> str:
        return text(f"lesson_08.flow.{key}", self._lang, **values)

    def _steps(self, report: AllocationReport) -> list[tuple[Box, ...]]:
        say, terms, peak = self._say, report.terms, report.peak
        block = say("block", size=report.block_size, block=exact_bytes(report.block_bytes))
        warm = say("no_warmup")
        read: tuple[str, ...] = (say("read_given"),)
        formula: tuple[str, ...] = (say("formula_given"),)
        if peak is not None:
            warm = say("warmup", tokens=report.warmup_tokens, extra=exact_bytes(peak.extra))
        if terms is not None:
            read = tuple(
                f"{name} = {exact_bytes(getattr(terms, name))}"
                for name in ("total", "used", "peak", "current")
            )
            short = {name: format_bytes(value) for name, value in terms.as_dict().items()}
            formula = (
                f"int({format_bytes(terms.total)} * {terms.utilization}) = {short['limit']}",
                f"{short['limit']} - {short['used']} - {short['peak']} + {short['current']}",
                f"available = {exact_bytes(terms.available)}",
            )
        given: tuple[str, ...] = (say("given"),)
        if report.how == "kv_bytes":
            given += (say("given_bytes", held=exact_bytes(report.kv_bytes)),)
        elif report.how == "num_blocks":
            given += (f"{report.num_blocks:,}",)
        size = "size_for_blocks" if report.how == "num_blocks" else "size_for_bytes"
        cache = say("cache", held=exact_bytes(report.kv_bytes), tokens=report.max_tokens)
        return [
            (Box("CacheSpec.from_config", (block,)),),
            (Box("warmup", (warm,), peak is not None),),
            (Box("MemoryStats.read", read),),
            (
                Box("MeasuredTerms.available", formula, terms is not None),
                Box("kv_bytes, num_blocks", given, terms is None),
            ),
            (Box(size, (f"num_blocks = {report.own_blocks:,}",)),),
            (Box("_least_of_ranks", (say("ranks", ranks=report.ranks, blocks=report.num_blocks),)),),
            (Box("PagedKVCache", (cache,)),),
        ]
