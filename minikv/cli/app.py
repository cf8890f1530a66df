"""The commands of the command line, and their help in one language, with its sentences in messages/help.toml.

The sentence of an option is ``COMMAND_OPTION`` there ("plan_gpu"), or ``OPTION`` where several commands share it.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Annotated, Any

import typer

import minikv
from minikv.cli import stop
from minikv.cli.ask import ask
from minikv.cli.bench import bench
from minikv.cli.check_log import check_log
from minikv.cli.doctor import doctor
from minikv.cli.evaluate import evaluate
from minikv.cli.generate import generate
from minikv.cli.lab import lab
from minikv.cli.my_engine import my_engine
from minikv.cli.plan import plan
from minikv.cli.progress import progress
from minikv.cli.simulate import simulate
from minikv.cli.watch import watch
from minikv.i18n import text

NAME = "minikv"
COMMANDS: dict[str, Callable[..., None]] = {
    "plan": plan,
    "generate": generate,
    "watch": watch,
    "bench": bench,
    "evaluate": evaluate,
    "simulate": simulate,
    "check-log": check_log,
    "lab": lab,
    "doctor": doctor,
    "ask": ask,
    "progress": progress,
    "my-engine": my_engine,
}
# The words that typer prints between the sentences of an option, by their names in typer.
TYPER_WORDS = {
    "ARGUMENTS_PANEL_TITLE": "arguments",
    "OPTIONS_PANEL_TITLE": "options",
    "COMMANDS_PANEL_TITLE": "commands",
    "ERRORS_PANEL_TITLE": "error",
    "DEFAULT_STRING": "default",
    "ENVVAR_STRING": "environment",
    "REQUIRED_LONG_STRING": "required",
    "RICH_HELP": "try",
}


def build(lang: str) -> Any:
    """The command ``minikv``, to be called. Its help is in ``lang``, and so are commands without --lang."""
    app = typer.Typer(
        name=NAME,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, function in COMMANDS.items():
        app.command(name)(function)
    root: Any = typer.main.get_command(app)
    for command in root.commands.values():
        command.callback = _interruptible(command.callback, lang)
    for command in (root, *root.commands.values()):
        _speak_when_asked(command, root, lang)
    return root


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{NAME} {minikv.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """The KV-cache course that runs."""


def _interruptible(callback: Callable[..., None], lang: str) -> Callable[..., None]:
    """``callback`` with a KeyboardInterrupt that no release of typer converts."""

    @wraps(callback)
    def run(**options: Any) -> None:
        try:
            callback(**options)
        except KeyboardInterrupt:
            stop(lang)

    return run


def _speak_when_asked(command: Any, root: Any, lang: str) -> None:
    """Let the help of ``command`` be in ``lang``. Most runs show no help, so its sentences are read on first use."""
    usage, help_option = command.get_usage, command.get_help_option

    def get_usage(context: Any) -> str:
        _speak(command, root, lang)
        return usage(context).replace("Usage: ", text("help.usage", lang))

    def get_help_option(context: Any) -> Any:
        option = help_option(context)
        option.help, option.metavar = text("help.help", lang), ""
        return option

    command.get_usage, command.get_help_option = get_usage, get_help_option
    for param in command.params:
        if param.name == "lang":
            param.default = lang


def _speak(command: Any, root: Any, lang: str) -> None:
    """Put the sentences of ``lang`` into the help of ``command``."""
    from typer import rich_utils

    _fold()
    for name, key in TYPER_WORDS.items():
        setattr(rich_utils, name, text(f"help.{key}", lang))
    for each in (root, *root.commands.values()):
        each.help = text(f"help.command_{_key(each)}", lang)
    command.options_metavar = text("help.options_metavar", lang)
    root.subcommand_metavar = text("help.command_metavar", lang)
    for param in command.params:
        param.help = _option_help(command, param, lang)
        panel = getattr(param, "rich_help_panel", None)
        if panel is not None:
            param.rich_help_panel = text(f"help.panel_{panel}", lang)
        if getattr(param, "is_flag", False):
            param.metavar = ""


@cache
def _fold() -> None:
    """Let rich break lines of Chinese, which has no spaces, instead of cutting them off."""
    from typer import rich_utils

    # typer 0.12 has the second spelling.
    name = "_make_rich_text" if hasattr(rich_utils, "_make_rich_text") else "_make_rich_rext"
    made: Any = getattr(rich_utils, name)

    def folded(**given: Any) -> Any:
        words = made(**given)
        words.overflow = "fold"
        return words

    setattr(rich_utils, name, folded)


def _option_help(command: Any, param: Any, lang: str) -> str:
    """The sentence of this command's option, else the one that several commands share."""
    try:
        return text(f"help.{_key(command)}_{_key(param)}", lang)
    except KeyError:
        return text(f"help.{_key(param)}", lang)


def _key(named: Any) -> str:
    return named.name.replace("-", "_").strip("_")
