"""``minikv watch``: shows a run of ``minikv generate --events FILE`` in a second terminal while it goes on."""

import sys
from contextlib import suppress
from typing import Annotated

import typer

from minikv.cli.options import Lang
from minikv.errors import ArgumentError, ConfigError, user_path
from minikv.i18n import pick_language

LONGEST_INTERVAL = 60.0  # seconds


def watch(
    file: Annotated[str, typer.Argument()],
    once: Annotated[bool, typer.Option("--once")] = False,
    interval: float = 0.2,
    lang: Lang = "en",
) -> None:
    """Show sequences, blocks, tokens a second and memory of a run, until it is over or Ctrl+C."""
    from rich.live import Live

    from minikv.cli.terminal import can_print, make_console
    from minikv.cli.watch_run import Waiting, Watched, follow
    from minikv.cli.watch_view import FINE, PLAIN, Devices, picture

    lang = pick_language(lang)
    if not 0 < interval <= LONGEST_INTERVAL:
        raise ArgumentError("out_of_range", what="--interval", value=interval, low=0, high=LONGEST_INTERVAL)
    watched, devices = Watched(user_path(file)), Devices()
    console = make_console()
    letters = FINE if can_print(FINE, console) else PLAIN
    if once:
        watched.read()
        if not watched.there:
            raise ConfigError("watch_no_file", path=file)
        console.print(picture(watched, devices, letters, lang))
        return
    waiting = Waiting(lambda sentence: print(sentence, file=sys.stderr, flush=True), lang)
    with Live(console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):  # the usual end

        def show(now: Watched) -> None:
            waiting.look(now)
            live.update(picture(now, devices, letters, lang), refresh=True)

        follow(watched, show, interval)
    if not console.is_terminal:
        console.line()  # rich ends the last picture without a line end in files and pipes
