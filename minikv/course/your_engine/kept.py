"""Kept: sources of parts of nano that have passed their checks, in a file on this machine. None of them runs here."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import minikv
from minikv.course.kept_file import KeptFile
from minikv.course.progress_file import progress_path, write_or_say
from minikv.course.say import say
from minikv.course.your_engine.parts import PART_OF
from minikv.course.your_engine.source import NotKeptError, source_of
from minikv.errors import ConfigError
from minikv.i18n import text

FORMAT = 1


@dataclass(frozen=True)
class KeptPart:
    """A part as text: ``source`` defines the function ``name``, and ``needs`` (imports, constants, helpers) goes first.

    ``since`` is when it passed, in UTC ("2026-11-23T10:15:00Z"), and ``version`` the minikv that judged it.
    """

    name: str
    source: str
    needs: str
    since: str
    version: str


@dataclass(frozen=True)
class KeptParts:
    """``parts``: the id of an exercise ("09.2") -> its kept part."""

    parts: Mapping[str, KeptPart] = field(default_factory=dict)

    def after(self, task: str, part: KeptPart) -> "KeptParts":
        """The parts with ``part`` in place of the old one; ``self`` where the text is the same."""
        before = self.parts.get(task)
        if before and (before.name, before.source, before.needs) == (part.name, part.source, part.needs):
            return self
        return KeptParts({**self.parts, task: part})


def kept_parts() -> KeptParts:
    """All parts that are kept on this machine; none where MINIKV_PROGRESS is "off".

    Raises ``ConfigError`` for a file that cannot be read, is damaged or was written by a newer minikv.
    """
    path = parts_path()
    return KeptParts() if path is None else PartsFile(path).read()


def parts_path() -> Path | None:
    """The file beside the progress: ``progress.json`` -> ``progress.engine.json``; None where that is "off"."""
    path = progress_path()
    return None if path is None else path.with_name(f"{path.stem}.engine.json")


def keep_part(task: str, fn: object, lang: str) -> None:
    """Keep the source of ``fn``, which has passed ``task``, if that is a part of nano, and say so in ``lang``.

    An error is printed and never raised: the pass counts anyway.
    """
    if task not in PART_OF:
        return

    def write(path: Path) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            source = source_of(fn)
        except NotKeptError as error:
            say(text("my_engine.not_kept", lang, part=PART_OF[task].name, reason=error.text(lang)), lang)
            return
        part = KeptPart(source.name, source.text, source.needs, now, minikv.__version__)
        before = KeptParts()

        def step(kept: KeptParts) -> KeptParts:
            nonlocal before
            before = kept
            return kept.after(task, part)

        after, aside = PartsFile(path).change(step)
        if aside is not None:
            say(text("my_engine.set_aside", lang, path=path, aside=aside), lang)
        if after != before:
            say(text("my_engine.kept", lang, part=PART_OF[task].name, task=task), lang)

    write_or_say(parts_path, write, "my_engine.not_written", lang)


class PartsFile(KeptFile[KeptParts]):
    """The sources at ``path``."""

    damaged, busy = "parts_damaged", "progress_busy"

    def parse(self, content: bytes) -> KeptParts:
        return parse_parts(content, str(self.path))

    def nothing(self) -> KeptParts:
        return KeptParts()

    def written(self, value: KeptParts) -> str:
        parts = {task: asdict(value.parts[task]) for task in sorted(value.parts)}
        return json.dumps({"format": FORMAT, "parts": parts}, indent=1) + "\n"


def parse_parts(content: bytes, path: str) -> KeptParts:
    """The parts that ``PartsFile`` wrote, those that this minikv does not have included.

    Raises ``ConfigError``: "progress_newer" for the format of a newer minikv, "parts_damaged" for any other content.
    """
    try:
        data: Any = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ConfigError("parts_damaged", path=path, where="JSON") from None
    if not isinstance(data, dict) or type(data.get("format")) is not int or data["format"] < 1:
        raise ConfigError("parts_damaged", path=path, where="format")
    if data["format"] > FORMAT:
        raise ConfigError("progress_newer", path=path, found=data["format"], known=FORMAT)
    parts = data.get("parts")
    if not isinstance(parts, dict):
        raise ConfigError("parts_damaged", path=path, where="parts")
    return KeptParts({task: _part(task, value, path) for task, value in parts.items()})


def _part(task: str, value: Any, path: str) -> KeptPart:
    names = list(KeptPart.__dataclass_fields__)
    wrong = next(
        (name for name in names if not isinstance(value, dict) or not isinstance(value.get(name), str)), None
    )
    if wrong is None and not value["name"].isidentifier():
        wrong = "name"
    if wrong is not None:
        raise ConfigError("parts_damaged", path=path, where=f"parts[{task[:20]!a}].{wrong}")
    return KeptPart(**{name: value[name] for name in names})
