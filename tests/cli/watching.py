"""The events of a run and of its rest, and a file of them: what the tests of ``minikv watch`` look at."""

import os
import time
from pathlib import Path

from minikv.cli.watch_view import FINE, Devices, picture
from minikv.engine.ext.events import Event, StepEvent, to_json


def step(number, now, prefill=0, decode=0, used=(3,), cached=(1,), total=(8,), running=2, waiting=1):
    return StepEvent(
        now, number, 0.1, prefill, decode, running, waiting, used, cached, total, (0,) * len(used), 16
    )


RUN = [
    *(Event("arrive", 10.0, name, 0, 20) for name in "abc"),
    Event("hit", 10.1, "b", 0, 16, (1,), 64),
    Event("allocate", 10.1, "a", 0, 20, (2,), 128),
    Event("first", 10.5, "a", 0, 1),
    step(0, 10.5, prefill=24),
    Event("preempt", 10.6, "b", 0, 18),
    step(1, 11.0, decode=2),
    step(2, 14.0, prefill=8, decode=1),
    Event("finish", 14.0, "a", 0, 4),
]
REST = [
    Event("fail", 14.5, "b", 0, 0),
    step(3, 14.5, decode=1, used=(1,), cached=(2,), running=1, waiting=0),
    Event("abort", 14.6, "c", 0, 0),
]


def lines(events):
    return "".join(to_json(event) + "\n" for event in events)


def age(path: Path, seconds: float) -> None:
    """The file was written so long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def text_of(watched, letters=FINE, lang="en", width=100):
    """What stands on a terminal of that width."""
    from rich.console import Console

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(picture(watched, Devices(), letters, lang))
    return console.export_text()
