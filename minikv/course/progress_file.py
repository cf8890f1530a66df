"""The file of progress on this machine: its path, and the record of an attempt."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from minikv.course.kept_file import KeptFile, kept_path
from minikv.course.progress import Progress, parse_progress
from minikv.course.say import say
from minikv.errors import MiniKVError
from minikv.i18n import text

VARIABLE = "MINIKV_PROGRESS"  # another file, or "off": builds and tests of notebooks record nothing


def progress_path(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path | None:
    """The path of the progress: MINIKV_PROGRESS, or in the user's data directory; None where that is "off".

    Raises ``ConfigError`` where the user has no home.
    """
    return kept_path(VARIABLE, "progress.json", "progress_no_home", environment, platform)


def record_attempt(task: str, passed: bool, seed: object, lang: str) -> None:
    """Record an attempt at ``task``. An error is printed, once, and never raised."""

    def write(path: Path) -> None:
        aside = ProgressFile(path).change(lambda progress: progress.after(task, passed, seed))[1]
        if aside is not None:
            say(text("progress.set_aside", lang, path=path, aside=aside), lang)

    write_or_say(progress_path, write, "progress.not_recorded", lang)


class ProgressFile(KeptFile[Progress]):
    """The progress at ``path``. ``wait_s``: how long to wait for another process that writes it."""

    damaged, busy = "progress_damaged", "progress_busy"

    def parse(self, content: bytes) -> Progress:
        return parse_progress(content, str(self.path))

    def nothing(self) -> Progress:
        return Progress()

    def written(self, value: Progress) -> str:
        return value.as_json()


def write_or_say(find: Callable[[], Path | None], write: Callable[[Path], None], key: str, lang: str) -> None:
    """``write(find())``, unless that is None. An error is printed as ``key``, once a file, and never raised."""
    where = ""
    try:
        path = find()
        if path is not None:
            where = str(path)
            write(path)
    except Exception as error:  # a check that has passed must not end in a traceback about its record
        reason = error.text(lang) if isinstance(error, MiniKVError) else f"{type(error).__name__}: {error}"
        if not _told(where):
            _told(where).append(reason)
            say(text(key, lang, reason=reason, variable=VARIABLE), lang)


@cache
def _told(where: str) -> list[str]:
    """The messages of this process about the file ``where``."""
    return []
