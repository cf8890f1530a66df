"""The command line.

    minikv plan | generate | watch | bench | evaluate | simulate | check-log | lab | doctor | progress | my-engine

Each command is one file, with a few parts named after it; no other room imports this one.

A ``MiniKVError`` becomes one line on standard error and exit code 2, never a traceback; Ctrl+C gives one line and exit
code 130. The language is that of ``--lang``, else of ``MINIKV_LANG``, else of the shell's locale.
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
        # `minikv plan … | head` closes the output early; that is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run() -> None:
    """Import the command line and run it. The import takes seconds, so Ctrl+C must be caught around it as well."""
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
    """The language of this run, from all arguments: ``--lang`` may stand behind a wrong one."""
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
    """Print a question mark for a letter that the terminal's encoding lacks, instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
