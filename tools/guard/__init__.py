"""The guard of a change of structure: what minikv answers to a fixed corpus, recorded before and compared after.

    python -m tools.guard record before.json             at the commit before the change
    python -m tools.guard compare before.json            after it: exit code 1, and the first line that differs a case
    python -m tools.guard compare before.json --only llm a part of it: the cases whose names begin so

A case is a function without arguments that returns a list of lines: tokens, events, errors with their code and their
sentences in both languages, or what a command prints. No line has a time of this machine, a path, an address or the
name of a private part, so two runs of one commit are equal. Compare runs of one machine and one torch: another release
of torch may round otherwise, and draw other tokens.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from minikv.errors import MiniKVError

Case = Callable[[], list[Any]]


def cases() -> dict[str, Case]:
    """All cases by name."""
    from tools.guard import commands, models, paper

    return {**paper.CASES, **models.CASES, **commands.CASES}


def record(only: Iterable[str] = ("",), told: Callable[[str], object] = str) -> dict[str, list[Any]]:
    """The lines of every case whose name begins with one of ``only``; ``told`` is called with each name before it."""
    starts, found = tuple(only), {}
    for name, case in cases().items():
        if name.startswith(starts):
            told(name)
            found[name] = json.loads(json.dumps(case()))
    return found


def differences(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> list[str]:
    """For each case that differs: its name, how many lines do, and the first of them before and after."""
    said = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            said.append(f"{name}: only {'after' if old is None else 'before'}")
            continue
        pairs = [
            (number, *pair) for number, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]
        ]
        if pairs:
            number, was, now = pairs[0]
            said.append(
                f"{name}: {len(pairs)} lines, the first is line {number}\n  before {was}\n  after  {now}"
            )
        if len(old) != len(new):
            said.append(f"{name}: {len(old)} lines before, {len(new)} after")
    return said


def refusal(call: Callable[[], object]) -> list[Any]:
    """The code and the sentences of the error that ``call`` raises; ["ok"] where it raises none."""
    try:
        call()
    except MiniKVError as error:
        return [error.code, error.text("en"), error.text("zh")]
    except Exception as error:  # what is not ours has a type and a text
        return [type(error).__name__, str(error)]
    return ["ok"]
