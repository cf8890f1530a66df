"""Finding: the first fault of a part, as plain data, and in words. No torch."""

from dataclasses import dataclass

from minikv.course.your_engine.parts import PART_OF
from minikv.i18n import escape_controls, text


@dataclass(frozen=True)
class Finding:
    """The fault in call ``call`` of the part ``task``, in step ``step`` of the load ``load``.

    kind is one of:
      "result"     it returned ``got``, and ``due`` is right
      "inside"     its result is ``got`` at ``what``, and ``due`` is right
      "state"      afterwards ``what`` is ``got``, and should be ``due``
      "changed"    it changed ``what``, which it may only read, from ``due`` to ``got``
      "raised"     ``got`` is the exception; ``line`` and ``source`` are the learner's own line
      "files"      it made, changed or removed ``what`` in the folder in which it ran
      "same"       a digest: two different blocks have the same one, ``got``
      "another"    a digest: the same block has another one than before
      "no_bytes"   a digest: ``got``, which is no bytes
      "not_loaded" its source does not run on its own: ``got`` is the exception
      "exercise"   it fails its exercise now, in cases that the engine has not met
      "never"      it was never called
      "hung"       it did not return within ``due`` seconds
      "ended"      the process ended while it ran, with the exit code ``got``

    ``request`` is the id of the sequence that the call was for; None where there is none.
    """

    task: str
    kind: str
    load: str = ""
    step: int = 0
    call: int = 0
    request: int | None = None
    what: str = ""
    due: str = ""
    got: str = ""
    line: int = 0
    source: str = ""

    def text(self, lang: str = "en") -> str:
        """One sentence, or two."""
        part = PART_OF[self.task]
        where = ""
        if self.step or self.load:
            key = "where" if self.request is None else "where_request"
            values = {"call": self.call, "step": self.step, "load": self.load, "request": self.request}
            where = text(f"my_engine.{key}", lang, **values)
        line = text("my_engine.line", lang, line=self.line, source=self.source) if self.line else ""
        said = {name: cut(getattr(self, name)) for name in ("what", "due", "got")}
        return text(
            f"my_engine.{self.kind}",
            lang,
            part=part.name,
            task=self.task,
            where=where,
            line=line,
            call=self.call,
            **said,
        )


def cut(value: str, most: int = 160) -> str:
    """``value`` in one line, its middle left out where it is long."""
    flat = escape_controls(" ".join(value.split()))
    half = most // 2
    return flat if len(flat) <= most else f"{flat[:half]} … {flat[-half:]}"
