"""Files that a command writes: an unwritable path raises at the start, and a full disk damages no file."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from minikv.errors import ConfigError, user_path

if TYPE_CHECKING:
    from minikv.engine.ext.events import AnyEvent


class EventFile:
    """Writes every event as a line of JSON the moment it is emitted: ``LLM(..., emit=file)``. A context manager.

    A line that a full disk has cut is removed: the file ends with its last whole line. Raises ``ConfigError`` where the
    file cannot be written.
    """

    def __init__(self, path: str):
        self._path = path
        self._file = _open(path)
        self._whole = 0  # bytes of whole lines

    def __call__(self, event: "AnyEvent") -> None:
        from minikv.engine.ext.events import to_json

        line = to_json(event).encode() + b"\n"
        try:
            _write_all(self._file, line)
        except OSError as error:
            with suppress(OSError):  # a pipe cannot be cut
                self._file.truncate(self._whole)
            raise unwritable(self._path, error) from error
        self._whole += len(line)

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *exception: object) -> None:
        _close(self._file)


class ReportFile:
    """Takes a report at the end of a run, and checks at the start that it can be written. A context manager.

    The report is written to a file beside, which replaces the old one when it is whole. So the old content stays until
    then, and a run without a report leaves no file. A device or this process's own output is written directly. Raises
    ``ConfigError`` where it cannot be written.
    """

    def __init__(self, path: str):
        self._path, place = path, user_path(path)
        try:
            self._place = Path(os.path.realpath(place))  # a link stays a link
            self._half = None if _is_written_as_it_is(place) else self._place.with_name(_half_name(self))
            if self._half is not None and place.exists():
                os.close(os.open(place, os.O_WRONLY))
        except (OSError, ValueError) as error:  # a path with a null character is a ValueError
            raise unwritable(path, error) from error
        self._file = _open(path, self._half)

    def write(self, report: str) -> None:
        """Replace the content by ``report``."""
        try:
            _write_all(self._file, report.encode())
            if self._half is not None:
                self._file.close()
                with suppress(FileNotFoundError):
                    shutil.copymode(self._place, self._half)
                os.replace(self._half, self._place)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def __enter__(self) -> "ReportFile":
        return self

    def __exit__(self, *exception: object) -> None:
        _close(self._file)
        if self._half is not None:
            self._half.unlink(missing_ok=True)


def _half_name(file: ReportFile) -> str:
    return f".minikv-{os.getpid()}-{id(file):x}.tmp"


def _is_written_as_it_is(place: Path) -> bool:
    """Whether a new file cannot replace ``place``: a device, a pipe, a folder, or this process's own output."""
    if not place.exists():
        return False
    if not place.is_file():
        return True
    there = place.stat()
    for descriptor in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(there, os.fstat(descriptor)):
                return True
    return False


def _open(path: str, half: Path | None = None) -> IO[bytes]:
    """Open and empty the file, or ``half`` for it. No buffer: it would hide the error of a full disk."""
    place = half or user_path(path)
    try:
        return place.open("wb", buffering=0)
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error


def _write_all(file: Any, content: bytes) -> None:
    """Write all of ``content``: a raw ``write`` may take only a part, and a full disk raises at the next one."""
    while content:
        content = content[file.write(content) :]


def _close(file: IO[bytes]) -> None:
    """Close the file, on a full disk too: ``write`` has raised that error already."""
    with suppress(OSError):
        file.close()


def unwritable(path: str, error: Exception) -> ConfigError:
    """The error of a file that cannot be written, for the caller to raise."""
    return ConfigError("unwritable_file", path=path, reason=getattr(error, "strerror", None) or str(error))
