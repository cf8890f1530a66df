"""The objects that the options of ``minikv simulate`` make: a trace, a fleet, the fleets of a sweep."""

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from minikv.cli.options import size
from minikv.engine.serve.progress import Progress
from minikv.errors import ArgumentError, check_count
from minikv.i18n import text
from minikv.simulate import Assumptions, Fleet, Load, SweepRow, Target, Trace, read_trace, sweep
from minikv.simulate.parallel import check_jobs
from minikv.simulate.sweep import combinations

ASSUMED = tuple(field.name for field in fields(Assumptions))
COUNTS = ("tp", "replicas", "block_size", "max_num_seqs", "max_batched_tokens")
NUMBERS = ("utilization", *ASSUMED)
WORDS = ("model", "gpu", "router", "kv_dtype", "host_kv")


def options_given(command: Callable[..., None], values: Mapping[str, Any]) -> dict[str, str | None]:
    """The panel of each option that differs from its default."""
    given = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if values[name] != parameter.default:
            option = next(iter(getattr(parameter.annotation, "__metadata__", ())), None)
            given[name] = getattr(option, "rich_help_panel", None)
    return given


def refuse_unused(
    given: Mapping[str, str | None], swept: Mapping[str, list[Any]], *, has_fleet: bool
) -> None:
    """Raise ``ArgumentError`` for an option that changes nothing: the answer would look as if it did."""
    alone = {"model", "gpu"} | ({"block_size"} if "hit_rate" in given else set())
    for name, panel in given.items():
        needed = None
        if panel == "load" and "synthetic" not in given:
            needed = "--synthetic"
        elif panel in ("fleet", "clock") and name not in alone and not has_fleet:
            needed = "--model, --gpu"
        elif name in ("p99_ttft", "p99_tpot") and "fewest" not in given:
            needed = "--fewest"
        elif name in ("jobs", "backend", "scheduler") and not (swept and has_fleet):
            needed = "--sweep, --model, --gpu"
        if needed is not None:
            raise ArgumentError("simulate_unused", option=_option(name), needed=needed)
        if name in swept:
            raise ArgumentError("simulate_twice", option=_option(name))
    if "fewest" in given and "replicas" in given:
        raise ArgumentError("simulate_fewest_replicas")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def find_trace(
    path: str | None,
    hash_block: int | None,
    synthetic: int | None,
    load: Mapping[str, Any],
    limit: int | None,
) -> Trace:
    """The trace in ``path``, or a made-up one of ``synthetic`` requests; the first ``limit`` of them.

    ``hash_block``: None without the option.

    Raises ``ArgumentError`` for both or neither, and what reading and making raise.
    """
    if (path is None) == (synthetic is None):
        raise ArgumentError("simulate_no_trace" if path is None else "simulate_two_traces")
    if limit is not None:
        check_count("--limit", limit)
    made = None if synthetic is None else Load(num_requests=synthetic, **load).trace()
    trace = made or read_trace(str(path), hash_block)
    return trace if limit is None else trace.head(limit)


@dataclass(frozen=True)
class Setup:
    """The options of a fleet by name, and for a sweep the ``values`` of some of them.

    Raises ``ArgumentError`` where no model or no GPU is named.
    """

    options: dict[str, Any]
    values: dict[str, list[Any]]

    def __post_init__(self):
        for name in ("model", "gpu"):
            if self.options[name] is None and name not in self.values:
                raise ArgumentError("simulate_no_fleet", what=f"--{name}")

    def check(self, where: Mapping[str, Any]) -> None:
        """Raise errors that no trace can mend before a long one is read: an impossible fleet, a sweep of too many."""
        if self.values:
            combinations(self.values)
            check_jobs(**where)
        else:
            self.make()

    def make(self, **changes: Any) -> Fleet:
        """The fleet of the options, with ``changes`` to some of them."""
        given = self.options | changes
        assumed = {name: given.pop(name) for name in ASSUMED}
        return Fleet.plan(
            given.pop("model"),
            given.pop("gpu"),
            host_kv_bytes=size("--host-kv", given.pop("host_kv")) or 0,
            weight_bytes=size("--weight-bytes", given.pop("weight_bytes")),
            assumptions=Assumptions(**{name: value for name, value in assumed.items() if value is not None}),
            **given,
        )


def parse_sweep(asked: list[str], *, hit_rate: bool, fewest: bool) -> dict[str, list[Any]]:
    """{"block_size": [8, 16]} from ``["block_size=8,16"]``.

    Raises ``ArgumentError`` for text of another form, for a name that is unknown here or comes twice, and for a value
    that is no number where one is needed.
    """
    if hit_rate:
        known = ["num_blocks"]
    else:
        known = [name for name in (*COUNTS, *NUMBERS, *WORDS) if not (fewest and name == "replicas")]
    found: dict[str, list[Any]] = {}
    for words in asked:
        name, sign, listed = words.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not listed.strip():
            raise ArgumentError("simulate_sweep", value=words)
        if name not in known or name in found:
            raise ArgumentError("simulate_sweep_name", name=name, known=", ".join(known))
        found[name] = [_value(name, each.strip()) for each in listed.split(",")]
    return found


def _value(name: str, words: str) -> Any:
    kind: Any = int if name in (*COUNTS, "num_blocks") else float if name in NUMBERS else str
    try:
        if not words:
            raise ValueError
        return kind(words)
    except ValueError:
        raise ArgumentError("simulate_sweep_value", name=name, value=words) from None


def run_sweep(
    trace: Trace,
    setup: Setup,
    where: Mapping[str, Any],
    target: Target | None,
    on_row: Callable[[SweepRow], object],
    lang: str,
    quiet: bool,
) -> list[SweepRow]:
    """The rows of a sweep, computed as ``where`` says (jobs, backend, scheduler), with what a terminal shows of it."""
    if where["jobs"] == 1 and where["scheduler"] is None:
        with Watcher(len(trace), lang, quiet) as watcher:
            shown: dict[str, Any] = {"watch": watcher.begin, "progress": watcher.update, **setup.values}
            return sweep(trace, setup.make, target=target, on_row=on_row, **shown)
    count = itertools.count(1)
    with Watcher(math.prod(map(len, setup.values.values())), lang, quiet) as watcher:
        watcher.update(0)

        def hear(row: SweepRow) -> None:
            on_row(row)
            watcher.update(next(count))

        return sweep(trace, setup.make, target=target, on_row=hear, **{**where, **setup.values})


class Watcher:
    """Shows on standard error which settings run, and how many of ``total`` requests, or runs at once, have ended.

    Prints nothing where standard error is no terminal, or if ``quiet``. A context manager: it ends the bar.
    """

    def __init__(self, total: int, lang: str, quiet: bool):
        self._total, self._lang, self._shown = total, lang, not quiet and sys.stderr.isatty()
        self._every = max(1, total // 1000)  # a bar needs no more
        self._bar: Progress | None = None

    def __enter__(self) -> "Watcher":
        return self

    def begin(self, settings: Mapping[str, Any]) -> None:
        """A run of a sweep begins."""
        self._end()
        if self._shown:
            print(text("simulate.running", self._lang, settings=spelled(settings)), file=sys.stderr)

    def update(self, done: int) -> None:
        """``done`` requests of the run, or of the runs at once, have ended."""
        if self._shown and self._bar is None:
            self._bar = Progress(self._total, True).__enter__()
        if self._bar is not None and (done % self._every == 0 or done == self._total):
            self._bar.update(done)

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None


def spelled(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())
