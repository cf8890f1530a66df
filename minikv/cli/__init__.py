"""The command line.

    minikv plan | generate | watch | bench | simulate | check-log | lab | doctor | progress | my-engine

One file a command, with a few parts that are named after it; nothing imports this room.

A ``MiniKVError`` becomes one line on standard error and exit code 2, never a traceback; Ctrl+C one line and exit code
130. The language is that of ``--lang``, else of ``MINIKV_LANG``, else of the shell's locale.
"""

import io
import os
import sys
from typing import NoReturn


def main() -> None:
    """The entry point of the ``minikv`` script."""
    try:
        _never_fail_to_print()
        _run()
    except KeyboardInterrupt:
        stop(language())
    except BrokenPipeError:
        # `minikv plan … | head` closes our output early; that is no failure of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run() -> None:
    """Import and run it: within ``main``, since Ctrl+C may come while that goes on, for seconds."""
    from minikv.cli.app import build
    from minikv.errors import MiniKVError
    from minikv.extras import engine_needed

    lang = language()
    try:
        with engine_needed():
            build(lang)()
    except MiniKVError as error:
        print(f"minikv: {error.text(lang)}", file=sys.stderr)
        raise SystemExit(2) from None


def stop(lang: str) -> NoReturn:
    """End the process as Ctrl+C ends one."""
    from minikv.i18n import text

    print(text("cli.interrupted", lang), file=sys.stderr)
    raise SystemExit(130) from None


def language() -> str:
    """The language of this run: ``--lang`` may stand after the argument that is wrong, so look at all of them."""
    from minikv.errors import ArgumentError
    from minikv.i18n import locale_language, pick_language

    wanted, arguments = os.environ.get("MINIKV_LANG"), sys.argv
    for index, argument in enumerate(arguments):
        if argument == "--lang" and index + 1 < len(arguments):
            wanted = arguments[index + 1]
        elif argument.startswith("--lang="):
            wanted = argument.removeprefix("--lang=")
    try:
        return pick_language(wanted) if wanted else locale_language(os.environ)
    except ArgumentError:
        return locale_language(os.environ)


def _never_fail_to_print() -> None:
    """A terminal that lacks a letter gets a question mark for it: no encoding is worth a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
