"""Many fleets under one trace: every combination of some settings, and the fewest replicas that meet a target.

make = partial(Fleet.plan, "Llama-3.1-70B", "H200", tp=8)
sweep(trace, make, block_size=[16, 64], router=["round-robin", "prefix"])     four runs, a row each
sweep(trace, make, jobs=-1, block_size=[16, 64])                              a run on each core
fewest(trace, make, Target(p99_ttft=2.0)).gpus                                the smallest fleet that is fast enough
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from minikv.errors import ArgumentError, MiniKVError, check_count
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.simulate.figures import shown_fewest
from minikv.simulate.fleet import MOST_BOOK_BYTES, Fleet, simulate
from minikv.simulate.floor import tpot_floor, ttft_floor
from minikv.simulate.outcome import Answers, Progress
from minikv.simulate.parallel import Backend, Ended, check_jobs, on_cluster, on_cores
from minikv.simulate.trace import Trace

MakeFleet = Callable[..., Fleet]
Watch = Callable[[Mapping[str, Any]], object]

MOST_RUNS = 10_000  # of a sweep: each takes at least a tenth of a second
MOST_REPLICAS = 256  # that a search for the fewest tries
REQUEST_BYTES, HASH_ID_BYTES = 450, 40  # this machine's memory for a request of a trace that is being run


@dataclass(frozen=True)
class SweepRow:
    """One fleet of a sweep: its ``settings``, and its ``answers`` or the error of an impossible fleet (``refused``)."""

    settings: dict[str, Any]
    answers: Answers | None = None
    refused: MiniKVError | None = None


def sweep(
    trace: Trace,
    make: MakeFleet,
    *,
    target: "Target | None" = None,
    jobs: int = 1,
    backend: Backend = "processes",
    scheduler: str | None = None,
    on_row: Callable[[SweepRow], object] | None = None,
    watch: Watch | None = None,
    progress: Progress | None = None,
    **values: Iterable[Any],
) -> list[SweepRow]:
    """Run ``trace`` on ``make(name=value, ...)`` for every combination of ``values``, the last name changing fastest.

    A fleet that is impossible, or too small for a request, gives a row with the error; the others still run. With a
    ``target`` a row is the smallest fleet of its settings that meets it, as ``fewest`` finds it; ``replicas`` is among
    its settings.

    ``jobs`` runs are computed at once, each in a process (-1: one a core); fewer where the bookkeeping of as many of
    the largest fleet would take more than 16 GiB. With ``backend="dask"`` a cluster computes them; its scheduler
    listens at ``scheduler``. The figures are those of one run after the other, to the last bit. A router that is an
    object begins each run as ``make`` gave it.

    ``on_row`` is called with each row as soon as it is there. Only of one run after the other: ``watch`` is called
    with the settings of each run before it begins, ``progress`` during a run as by ``simulate``. Raises
    ``ArgumentError`` for a name without values, for more than 10,000 combinations, for ``jobs``, ``backend`` and
    ``scheduler`` that do not go together, and what ``on_cores`` and ``on_cluster`` raise.
    """
    runs = [_Run(make, settings, target) for settings in combinations(values)]
    check_jobs(jobs, backend, scheduler)
    ended: Ended
    if jobs == 1 and scheduler is None:
        ended = ((number, run(trace, watch, progress)) for number, run in enumerate(runs))
    elif watch is not None or progress is not None:
        raise ArgumentError("sweep_watch")
    elif scheduler is not None:
        ended = on_cluster(runs, trace, scheduler)
    else:
        ended = on_cores(runs, trace, jobs, _most_at_once(runs, trace))
    rows = {}
    with closing(ended):
        for number, row in ended:
            rows[number] = row
            if on_row is not None:
                on_row(row)
    return [rows[number] for number in range(len(runs))]


@dataclass(frozen=True)
class _Run:
    """A row that is to be computed."""

    make: MakeFleet
    settings: dict[str, Any]
    target: "Target | None"

    def __call__(
        self, trace: Trace, watch: Watch | None = None, progress: Progress | None = None
    ) -> SweepRow:
        settings = self.settings
        try:
            if self.target is None:
                if watch is not None:
                    watch(settings)
                return SweepRow(settings, _answers(trace, self.make(**settings), progress))
            found = fewest(
                trace,
                partial(self.make, **settings),
                self.target,
                watch=None if watch is None else lambda tried: watch(settings | dict(tried)),
                progress=progress,
            )
            return SweepRow(settings | {"replicas": found.replicas}, found.answers)
        except MiniKVError as error:
            return SweepRow(settings, refused=error)

    def book_bytes(self) -> int:
        """Bytes of this machine's memory for the fleet's bookkeeping; 0 for an impossible one."""
        try:
            if self.target is None:
                fleet = self.make(**self.settings)
                return fleet.replicas * fleet.book_bytes
            most = MOST_REPLICAS * self.make(**self.settings, replicas=1).book_bytes
        except MiniKVError:
            return 0
        return min(MOST_BOOK_BYTES, most)  # a larger fleet is refused


def _most_at_once(runs: list[_Run], trace: Trace) -> int:
    """How many of ``runs`` the limit of the bookkeeping allows at once; each alone is within it, or refused."""
    ids = sum(len(request.hash_ids) for request in trace.requests)
    largest = max(run.book_bytes() for run in runs) + REQUEST_BYTES * len(trace) + HASH_ID_BYTES * ids
    return max(1, MOST_BOOK_BYTES // largest)


def _answers(trace: Trace, fleet: Fleet, progress: Progress | None) -> Answers:
    """One run. A router that is an object is copied, so that no run depends on those before it."""
    fleet = replace(fleet, router=deepcopy(fleet.router))
    return simulate(trace, fleet, progress=progress).answers()


def combinations(values: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of ``values``, the last name changing fastest. Raises ``ArgumentError`` as ``sweep`` does."""
    lists = {name: list(each) for name, each in values.items()}
    empty = [name for name, each in lists.items() if not each]
    if empty or not lists:
        raise ArgumentError("sweep_empty", name=", ".join(empty))
    count = math.prod(len(each) for each in lists.values())
    if count > MOST_RUNS:
        spelled = " * ".join(f"{len(each):,} {name}" for name, each in lists.items())
        raise ArgumentError("sweep_too_many", count=count, product=spelled, most=MOST_RUNS)
    return (dict(zip(lists, each, strict=True)) for each in itertools.product(*lists.values()))


@dataclass(frozen=True)
class Target:
    """Limits for 99 of 100 requests: ``p99_ttft`` seconds to the first token, ``p99_tpot`` for each further one.

    None is no limit. Raises ``ArgumentError`` for times that are none, and where neither is given.
    """

    p99_ttft: float | None = None
    p99_tpot: float | None = None

    def __post_init__(self):
        for what in ("p99_ttft", "p99_tpot"):
            value = getattr(self, what)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < math.inf):
                raise ArgumentError("out_of_range", what=what, value=value, low=0, high=math.inf)
        if self.p99_ttft is None and self.p99_tpot is None:
            raise ArgumentError("sweep_no_target")

    def met(self, answers: Answers) -> bool:
        """Whether a run meets the target. A run without second tokens meets any limit on TPOT."""
        slow = self.p99_ttft is not None and answers.ttft.p99 > self.p99_ttft
        late = self.p99_tpot is not None and answers.tpot is not None and answers.tpot.p99 > self.p99_tpot
        return not slow and not late


@dataclass(frozen=True)
class Fewest:
    """``replicas`` meet ``target``, one less does not. ``tried``: the answers by number of replicas, ascending.

    ``steady``: one more replica meets it as well. Where it does not, the trace is too short or a few requests decide,
    and the number is not reliable.
    """

    target: Target
    replicas: int
    tried: dict[int, Answers]
    steady: bool

    def shown(self, lang: str = "en") -> Shown:
        """The smallest fleet, why one replica less is not enough, and a row for each fleet that was tried."""
        return shown_fewest(self, lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        return one_line("Fewest", "", f"{self.replicas:,} replicas", *self.answers.facts())

    @property
    def answers(self) -> Answers:
        return self.tried[self.replicas]

    @property
    def one_less(self) -> Answers | None:
        """The answers with one replica less; None where there is only one."""
        return self.tried.get(self.replicas - 1)

    @property
    def gpus(self) -> int:
        return self.answers.gpus


def fewest(
    trace: Trace,
    make: MakeFleet,
    target: Target,
    *,
    most: int = MOST_REPLICAS,
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> Fewest:
    """The smallest number of replicas with which ``make(replicas=number)`` meets ``target`` under ``trace``.

    The search assumes that more replicas are faster, so it does not run every number; it runs both neighbours of the
    answer. ``watch`` is called with ``{"replicas": number}`` before each run, ``progress`` during a run as by
    ``simulate``. Raises ``ArgumentError`` if ``most`` are not enough, and at once if a request alone is too slow.
    """
    check_count("most", most)
    one = make(replicas=1)
    one.check(trace)
    _check_floor(trace, one, target)
    tried: dict[int, Answers] = {}

    def run(number: int) -> bool:
        if watch is not None:
            watch({"replicas": number})
        tried[number] = _answers(trace, make(replicas=number), progress)
        return target.met(tried[number])

    fails, holds = 0, None
    number = min(most, _first_guess(trace, one))
    while holds is None or holds - fails > 1:
        if run(number):
            holds = number
        else:
            fails = number
        if fails == most:
            raise _never(target, tried[most], most)
        # So many replicas would do the same work without idle time.
        busy = math.ceil(tried[number].utilisation * number)
        if holds is None:
            number = min(most, max(fails + 1, 2 * fails, busy))
        else:
            middle = (fails + holds) // 2
            number = max(fails + 1, min(holds - 1, busy)) if len(tried) < 3 else middle
    steady = holds == most or (target.met(tried[holds + 1]) if holds + 1 in tried else run(holds + 1))
    return Fewest(target, holds, dict(sorted(tried.items())), steady)


def _first_guess(trace: Trace, fleet: Fleet) -> int:
    """Replicas that compute the prompts as fast as they arrive, if none of their tokens is cached."""
    rate = fleet.step_time.prefill_rate(fleet.max_batched_tokens)
    seconds = trace.prompt_tokens / rate
    return max(1, round(seconds / trace.duration)) if trace.duration else 1


def _check_floor(trace: Trace, fleet: Fleet, target: Target) -> None:
    """Raise ``ArgumentError`` if requests are too slow even alone: more replicas would not help."""
    if target.p99_ttft is not None:
        p99 = float(np.percentile(ttft_floor(trace, fleet), 99))
        if p99 > target.p99_ttft:
            raise ArgumentError("sweep_floor", what="TTFT", floor=p99, target=target.p99_ttft)
    many = any(request.output_tokens > 1 for request in trace.requests)
    if target.p99_tpot is not None and many and tpot_floor(fleet) > target.p99_tpot:
        raise ArgumentError("sweep_floor", what="TPOT", floor=tpot_floor(fleet), target=target.p99_tpot)


def _never(target: Target, answers: Answers, most: int) -> ArgumentError:
    tpot = answers.tpot.p99 if answers.tpot else 0.0
    return ArgumentError("sweep_never", most=most, gpus=answers.gpus, ttft=answers.ttft.p99, tpot=tpot)
