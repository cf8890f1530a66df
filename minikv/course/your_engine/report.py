"""Report of ``my_engine()``: a table of the parts, their faults, and whether the tokens are right."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minikv.course.your_engine.finding import Finding, cut
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.i18n import pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of

_COLUMNS = ("part", "exercise", "whose", "since", "calls", "verdict")


@dataclass(frozen=True, repr=False)
class EngineReport:
    """``kept``: the learner's parts by exercise's id. ``answer``: the child process's results (``run.Examined``)."""

    kept: Mapping[str, KeptPart]
    answer: Mapping[str, Any] = field(default_factory=dict)

    text = text_of
    _repr_html_ = html_of

    @property
    def findings(self) -> dict[str, Finding]:
        """The first fault of each wrong part, by exercise's id."""
        return {task: Finding(**found) for task, found in self.answer["findings"].items()}

    @property
    def passed(self) -> bool:
        """Whether all parts are right and every token is that of ``generate()``."""
        return not self.answer["findings"] and not self.answer["differs"]

    def __repr__(self) -> str:
        count = len(self.kept)
        facts = [f"{count} of {len(PARTS)} parts are yours", f"{self.answer['seen']['requests']} prompts"]
        return one_line("EngineReport", "", *facts, "all right" if self.passed else "not right")

    def shown(self, lang: str = "en") -> Shown:
        """The table and the sentences below it, in ``lang``. Raises ``ArgumentError`` for an unknown language."""
        lang = pick_language(lang)

        def say(key: str, **values: object) -> str:
            return text(f"my_engine.{key}", lang, **values)

        rows = [self._row(part.task, say) for part in PARTS]
        lines = [line for task in self.kept for line in self._lines(task, lang, say)]
        seen, total = self.answer["seen"], self.answer["total"]
        if self.answer["differs"]:
            lines.append(say("differs", effect=_effect(self.answer["differs"], say)))
        elif not self.answer["findings"]:
            lines.append(say("equal", **seen))
        lines.append(say("happened", more=total["requests"] - seen["requests"], **seen))
        if not self.kept:
            lines.append(say("all_ours"))
        return Shown(
            say("title", yours=len(self.kept), all=len(PARTS)),
            head=[say(f"column_{name}") for name in _COLUMNS],
            rows=rows,
            right=(4,),
            lines=lines,
        )

    def _row(self, task: str, say: Any) -> list[str]:
        part, kept, calls = PART_OF[task], self.kept.get(task), self.answer["calls"].get(task, 0)
        if kept is None:
            return [part.qualname, task, say("ours"), "", str(calls or ""), ""]
        verdict = "wrong" if task in self.answer["findings"] else "right" if calls else "left_out"
        return [part.qualname, task, say("yours"), kept.since[:10], str(calls), say(verdict)]

    def _lines(self, task: str, lang: str, say: Any) -> list[str]:
        lines = []
        found, effect = self.findings.get(task), self.answer["effects"].get(task)
        if found is not None:
            lines.append(found.text(lang))
            if found.kind not in ("never", "not_loaded", "hung", "ended"):
                lines.append(say("ours_from_there", part=PART_OF[task].name))
        if effect is not None:
            lines.append(say("alone", part=PART_OF[task].name, effect=_effect(effect, say)))
        if task == "10.6" and found is None and not self.answer["calls"].get(task):
            lines.append(say("no_triton", part=PART_OF[task].name))
        if task in self.answer["printed"]:
            printed = self.answer["printed"][task].splitlines()
            lines.append(say("printed", part=PART_OF[task].name, line=cut(printed[0])))
        return lines


def _effect(effect: Mapping[str, Any], say: Any) -> str:
    values = dict(effect) | {"number": effect["place"] + 1}
    if effect["kind"] == "token" and None in (effect["due"], effect["got"]):
        return say("effect_ends", **values)
    return say(f"effect_{effect['kind']}", **values | {"got": cut(str(effect["got"]))})
