"""A file that several notebooks of one user write at once: the progress, and the leaderboard of lesson 18.

A change takes a lock, reads the file, and replaces it by a whole new one. So no change of two notebooks is lost, and a
read never sees half a file. A damaged file is kept under another name.
"""

import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, TypeVar

from minikv.errors import ConfigError
from minikv.units import format_bytes

OFF = "off"
MOST_BYTES = 2**24  # of a file that is read: the whole course solved takes 20 KiB
WAIT_S = 2.0  # for another notebook's lock, which is held for a millisecond
_POLL_S = 0.005

T = TypeVar("T")


def kept_path(
    variable: str, name: str, no_home: str, environment: Mapping[str, str], platform: str
) -> Path | None:
    """The path of a file of this user: from ``variable``, or ``name`` in the data directory; None where it is "off".

    Raises ``ConfigError`` with the code ``no_home`` where the user has no home.
    """
    chosen = environment.get(variable, "")
    if chosen.lower() == OFF:
        return None
    try:
        if chosen:
            return Path(chosen).expanduser()
        return _data_folder(environment, platform) / "minikv" / name
    except RuntimeError:  # from Path.home and expanduser
        raise ConfigError(no_home, variable=variable) from None


class KeptFile(Generic[T]):
    """A value that is kept at ``path``. ``wait_s``: how long to wait for another process that writes it.

    A subclass defines ``parse``, ``nothing`` and ``written``, and names the errors of a damaged file and of one that
    another process has locked: ``parse`` raises ``ConfigError`` with the code ``damaged``.
    """

    damaged: ClassVar[str]
    busy: ClassVar[str]

    def __init__(self, path: Path, wait_s: float = WAIT_S):
        self.path, self._wait_s = path, wait_s

    def parse(self, content: bytes) -> T:
        """The value of a text that ``written`` made."""
        raise NotImplementedError

    def nothing(self) -> T:
        """The value before there is a file."""
        raise NotImplementedError

    def written(self, value: T) -> str:
        """The whole content of the file for ``value``."""
        raise NotImplementedError

    def read(self) -> T:
        """The kept value, or ``nothing()`` where there is no file. Changes nothing.

        Raises ``ConfigError`` for a file that cannot be read, is damaged or was written by a newer minikv.
        """
        content = read_bytes(self.path)
        return self.nothing() if content is None else self.parse(content)

    def change(self, step: Callable[[T], T]) -> tuple[T, Path | None]:
        """Replace the value by ``step(value)``, under the lock, unless that is the same.

        Returns the new value and, where the file was damaged, the path under which that is kept. Raises ``ConfigError``
        where it cannot be read or written, or was written by a newer minikv.
        """
        aside = None
        with self._locked():
            try:
                before = self.read()
            except ConfigError as error:
                if error.code != self.damaged:
                    raise
                aside = self._set_aside()
                before = self.nothing()
            after = step(before)
            if after != before:
                write_whole(self.path, self.written(after))
        return after, aside

    def forget(self) -> None:
        """Remove the file, damaged or not. Raises ``ConfigError`` where that cannot be done."""
        with self._locked(), _refusing(self.path):
            self.path.unlink(missing_ok=True)

    def _set_aside(self) -> Path:
        """Rename the file to the first name beside it that is free."""
        names = (f"{self.path.name}.damaged{'' if n == 1 else n}" for n in count(1))
        aside = next(place for name in names if not (place := self.path.with_name(name)).exists())
        with _refusing(self.path):
            self.path.rename(aside)
        return aside

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with _refusing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The lock file stays: another process may have just opened it, and would lock a removed file.
            file = self.path.with_name(f"{self.path.name}.lock").open("ab")
        with file:
            end = time.monotonic() + self._wait_s
            while not _try_lock(file):
                if time.monotonic() > end:
                    raise ConfigError(self.busy, path=str(self.path), seconds=self._wait_s)
                time.sleep(_POLL_S)
            yield  # closing the file, or the end of the process, gives the lock back


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """All of the file, None where there is none.

    Raises ``ConfigError`` where it cannot be read, is a device or a pipe, or has more than ``most`` bytes.
    """
    content = b""
    try:
        endless = not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
        if not endless:
            with path.open("rb") as file:
                content = file.read(most + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        raise ConfigError("unreadable_file", path=str(path), reason=_reason(error)) from error
    if endless:
        raise ConfigError("no_regular_file", path=str(path))
    if len(content) > most:
        raise ConfigError("file_too_large", path=str(path), most=format_bytes(most))
    return content


def write_whole(path: Path, content: str) -> None:
    """Replace the file at ``path`` by one with ``content``, atomically. Raises ``ConfigError``."""
    with _refusing(path):
        place = Path(os.path.realpath(path))  # a link stays a link
        number, half = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent)
        try:
            with open(number, "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(half, place)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(half)


def _data_folder(environment: Mapping[str, str], platform: str) -> Path:
    """The system's folder for the data of a user's programs."""
    if platform == "win32":
        local = environment.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    shared = environment.get("XDG_DATA_HOME", "")
    # The XDG specification: ignore a path that is not absolute.
    return Path(shared) if os.path.isabs(shared) else Path.home() / ".local" / "share"


def _try_lock(file: IO[bytes]) -> bool:
    """Whether this process has the lock now. A file system without locks goes without."""
    locking: Any
    if sys.platform == "win32":
        import msvcrt as locking

        try:
            locking.locking(file.fileno(), locking.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl as locking

    try:
        locking.flock(file, locking.LOCK_EX | locking.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError("unwritable_file", path=str(path), reason=_reason(error)) from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
