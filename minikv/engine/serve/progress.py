"""A bar for ``generate`` and ``simulate``: requests that have ended, and tokens a second where they are counted."""

import sys
import time
from typing import Any


class Progress:
    """A context manager. ``shown`` None: only on a terminal, so that files and notebooks stay free of control codes."""

    def __init__(self, total: int, shown: bool | None = None):
        self._total, self._tokens, self._began = total, 0, time.monotonic()
        self._shown = (sys.stderr.isatty() if shown is None else shown) and total > 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}"),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, speed="")
        return self

    def update(self, done: int, new_tokens: int = 0) -> None:
        """``done`` requests have ended; ``new_tokens`` came since the last call."""
        self._tokens += new_tokens
        if self._bar is not None:
            seconds = time.monotonic() - self._began
            speed = f"{self._tokens / seconds:,.0f} tokens/s" if seconds > 0 and self._tokens else ""
            self._bar.update(self._task, completed=done, speed=speed)

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
