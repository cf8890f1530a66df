"""Files that a command writes while it runs: a place that cannot be written is one sentence, at the start."""

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from minikv.errors import ConfigError

if TYPE_CHECKING:
    from minikv.engine.events import AnyEvent


class EventFile:
    """Writes every event as a line of JSON the moment it is emitted: ``LLM(..., emit=file)``. A context manager.

    A reader that follows the file sees whole lines only. Raises ``ConfigError`` where the file cannot be written.
    """

    def __init__(self, path: str):
        self._path = path
        self._file = _open(path, "w")

    def __call__(self, event: "AnyEvent") -> None:
        from minikv.engine.events import to_json

        try:
            self._file.write(to_json(event) + "\n")
            self._file.flush()
        except OSError as error:
            raise unwritable(self._path, error) from error

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *exception: object) -> None:
        _close(self._file)


class ReportFile:
    """Takes a report at the end of a run; that it can be written is known at the start. A context manager.

    What the file held before stays until there is a report. Raises ``ConfigError`` where it cannot be written.
    """

    def __init__(self, path: str):
        self._path = path
        self._file = _open(path, "a")

    def write(self, report: dict[str, Any]) -> None:
        """The report as JSON, in place of what was there."""
        try:
            if self._file.seekable():
                self._file.truncate(0)
            self._file.write(json.dumps(report, indent=2) + "\n")
            self._file.flush()
        except OSError as error:
            raise unwritable(self._path, error) from error

    def __enter__(self) -> "ReportFile":
        return self

    def __exit__(self, *exception: object) -> None:
        _close(self._file)


def _open(path: str, mode: Literal["w", "a"]) -> TextIO:
    try:
        return Path(path).expanduser().open(mode, encoding="utf-8")
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        raise unwritable(path, error) from error


def _close(file: TextIO) -> None:
    """Close it, also where a full disk took no more: whoever wrote was told."""
    with suppress(OSError):
        file.close()


def unwritable(path: str, error: Exception) -> ConfigError:
    """The error of a file that cannot be written, for the caller to raise."""
    return ConfigError("unwritable_file", path=path, reason=getattr(error, "strerror", None) or str(error))
