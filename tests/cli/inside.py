"""The command line without a process of its own: what ``minikv ARGUMENTS`` prints, and its exit code.

A process imports torch and transformers anew, which takes seconds; where nothing but the answer is looked at, this is
the same ``main``.
"""

import io
import sys
from dataclasses import dataclass

import pytest

from minikv.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Screen(io.TextIOWrapper):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """Calls ``main`` as the script does: ``terminal("plan", "--list", COLUMNS="20")``.

    ``stdin`` is what stands on standard input, ``encoding`` that of both outputs; ``is_terminal``: standard error is a
    terminal. Other keywords are variables of the environment.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._monkeypatch = monkeypatch
        for name, value in {"COLUMNS": "100", "MINIKV_LANG": "en", "HF_HUB_OFFLINE": "1"}.items():
            monkeypatch.setenv(name, value)

    def __call__(
        self,
        *arguments: str,
        stdin: bytes = b"",
        encoding: str = "utf-8",
        is_terminal: bool = False,
        **environment: str,
    ) -> Done:
        kind = Screen if is_terminal else io.TextIOWrapper
        streams = [kind(io.BytesIO(), encoding, write_through=True) for kind in (io.TextIOWrapper, kind)]
        with self._monkeypatch.context() as here:
            for name, value in environment.items():
                here.setenv(name, value)
            here.setattr(sys, "argv", ["minikv", *arguments])
            here.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            here.setattr(sys, "stdout", streams[0])
            here.setattr(sys, "stderr", streams[1])
            with pytest.raises(SystemExit) as ended:
                main()
            out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)
        return Done(ended.value.code or 0, out, err)


def is_one_sentence(done: Done) -> bool:
    """Exit code 2, one line on standard error, nothing else."""
    whole = done.err.startswith("minikv: ") and done.err.count("\n") == 1
    return done.code == 2 and whole and not done.out and "Traceback" not in done.err
