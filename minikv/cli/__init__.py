"""The command line: ``minikv plan | generate | watch | bench | simulate | check-log | lab | doctor | progress``.

One file a command, with a few parts that are named after it; nothing imports this room.

A ``MiniKVError`` becomes one line on standard error and exit code 2, in the language of ``--lang`` (or
``MINIKV_LANG``), never a traceback.
"""

import io
import os
import sys

import typer

from minikv.errors import ArgumentError, MiniKVError
from minikv.extras import engine_needed
from minikv.i18n import pick_language

app = typer.Typer(
    name="minikv",
    help="The KV-cache course that runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _register() -> None:
    from minikv.cli.bench import bench
    from minikv.cli.check_log import check_log
    from minikv.cli.doctor import doctor
    from minikv.cli.generate import generate
    from minikv.cli.lab import lab
    from minikv.cli.plan import plan
    from minikv.cli.progress import progress
    from minikv.cli.simulate import simulate
    from minikv.cli.watch import watch

    app.command("plan")(plan)
    app.command("generate")(generate)
    app.command("watch")(watch)
    app.command("bench")(bench)
    app.command("simulate")(simulate)
    app.command("check-log")(check_log)
    app.command("lab")(lab)
    app.command("doctor")(doctor)
    app.command("progress")(progress)


_register()


def main() -> None:
    """The entry point of the ``minikv`` script."""
    _never_fail_to_print()
    try:
        with engine_needed():
            app()
    except MiniKVError as error:
        print(f"minikv: {error.text(_language(sys.argv))}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # `minikv plan … | head` closes our output early; that is no failure of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _never_fail_to_print() -> None:
    """A terminal that lacks a letter gets a question mark for it: no encoding is worth a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _language(arguments: list[str]) -> str:
    """The language for an error: ``--lang`` may stand after the argument that is wrong, so look at all of them."""
    wanted = os.environ.get("MINIKV_LANG", "en")
    for index, argument in enumerate(arguments):
        if argument == "--lang" and index + 1 < len(arguments):
            wanted = arguments[index + 1]
        elif argument.startswith("--lang="):
            wanted = argument.removeprefix("--lang=")
    try:
        return pick_language(wanted)
    except ArgumentError:
        return "en"
