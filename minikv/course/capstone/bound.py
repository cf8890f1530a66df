"""The bound that no plan can beat on the task's clock, and its proof. Lesson 18.

Take the requests that arrive at second t or later. No step before t can have any of them, so the makespan is at least t
plus the time of the steps that do. A step takes max(FLOPs / FLOP rate, bytes / byte rate) + overhead, and a sum of
maxima is at least the maximum of the sums:

    seconds >= t + max(FLOPs of these requests / FLOP rate, their bytes / byte rate) + steps * overhead

- tokens: in the best case a prefix of an earlier prompt is not computed again. Each other prompt token is computed
  once, however many prompts share it. The last token of every prompt is always computed. An output of m tokens takes
  m - 1 computed tokens, and m rows of logits.
- attention: a token attends to itself. A plan may evict all others, so no more is certain.
- steps: at least those of the longest output: a prompt's last step yields its first token, and each further step at
  most 1 + ``MOST_DRAFTS``.
- bytes: the weights once a step, and one cached token for each computed one, in the smallest dtype that there is.

The floor is the largest of these bounds over all arrivals t.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minikv.course.capstone.plan import MOST_DRAFTS
from minikv.plan.dtypes import KV_DTYPES
from minikv.plan.step_work import AttentionCost
from minikv.shown import Shown, html_of, one_line, text_of

if TYPE_CHECKING:
    from minikv.course.capstone.task import Task, TaskRequest


@dataclass(frozen=True)
class Floor:
    """The bound from second ``since`` on: ``requests`` arrive then or later.

    ``tokens`` have to be computed, ``prompt_tokens`` of them of prompts, and ``rows`` of logits, in at least ``steps``
    steps. ``compute``, ``bandwidth`` and ``overhead`` are their seconds; of the first two the longer counts.
    """

    since: float
    requests: int
    prompt_tokens: int
    tokens: int
    rows: int
    steps: int
    compute: float
    bandwidth: float
    overhead: float

    @property
    def seconds(self) -> float:
        return self.since + max(self.compute, self.bandwidth) + self.overhead

    def shown(self, lang: str = "en") -> Shown:
        """The bound in words, with its terms."""
        from minikv.course.capstone.words import explain_floor  # the sentences are needed only here

        title, *lines = explain_floor(self, lang).splitlines()
        return Shown(title, lines=lines)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        least = f"at least {self.seconds:.3f} s from second {self.since:.3f}"
        return one_line("Floor", "", least, f"{self.requests:,} requests", f"{self.steps:,} steps")


def floor(task: "Task") -> Floor:
    """The largest bound over all arrivals."""
    starts = [
        place
        for place, request in enumerate(task.requests)
        if place == 0 or request.arrival_s > task.requests[place - 1].arrival_s
    ]
    return max((_bound(task, place) for place in starts), key=lambda bound: bound.seconds)


def fewest_steps(max_tokens: int, drafts: int = MOST_DRAFTS) -> int:
    """The fewest steps of a request for so many tokens: one token first, then at most 1 + ``drafts`` a step."""
    return 1 + -(-(max_tokens - 1) // (1 + drafts))


def new_prompt_tokens(requests: Sequence["TaskRequest"], place: int = 0) -> int:
    """Tokens of the prompts from the ``place``-th on that have to be computed, if everything before them is cached.

    The last token of a prompt is computed even if it is cached, since its logits are needed. Where a prompt continues
    the whole prompt of another, its further tokens may be cached from the other's output, and are not counted.
    """
    paths = _paths(requests)
    fresh = {node for path in paths[place:] for node in path}
    fresh -= {node for path in paths[:place] for node in path}
    ends: dict[int, int] = {}
    for path, request in zip(paths, requests, strict=True):
        ends[path[-1]] = max(ends.get(path[-1], 1), request.max_tokens)
    for path in paths[place:]:
        for index, node in enumerate(path):
            fresh.difference_update(path[index + 1 : index + ends.get(node, 1)])
    last = Counter(path[-1] for path in paths[place:])
    return len(fresh) + sum(count - (node in fresh) for node, count in last.items())


def _bound(task: "Task", place: int) -> Floor:
    clock = task.step_time(None)
    requests = task.requests[place:]
    prompt = new_prompt_tokens(task.requests, place)
    rows = sum(request.max_tokens for request in requests)
    tokens = prompt + rows - len(requests)
    steps = max(fewest_steps(request.max_tokens) for request in requests)
    cost = replace(clock.cost, attention=tuple(_cheapest(task)))
    work = cost.counted(tokens, rows, *2 * [[tokens] * len(cost.attention)])
    weights = steps * cost.weight_bytes(1)
    parts = clock.parts(replace(work, weight_bytes=weights))
    return Floor(
        since=requests[0].arrival_s,
        requests=len(requests),
        prompt_tokens=prompt,
        tokens=tokens,
        rows=rows,
        steps=steps,
        compute=parts.compute,
        bandwidth=parts.bandwidth,
        overhead=steps * parts.overhead,
    )


def _cheapest(task: "Task") -> Iterable[AttentionCost]:
    """The fewest FLOPs a pair and bytes a token of each kind of attention, over all plans."""
    dtypes = [task.step_time(name).cost.attention for name in KV_DTYPES]
    for kinds in zip(*dtypes, strict=True):
        flops = [each.pair_flops for each in kinds] + [
            each.expanded_flops or each.pair_flops for each in kinds
        ]
        yield replace(kinds[0], pair_flops=min(flops), token_bytes=min(each.token_bytes for each in kinds))


def _paths(requests: Iterable["TaskRequest"]) -> list[list[int]]:
    """For each prompt a number for each of its prefixes; equal prefixes have equal numbers."""
    names: dict[tuple[int, int], int] = {}
    paths = []
    for request in requests:
        path, node = [], -1
        for token in request.tokens:
            node = names.setdefault((node, token), len(names))
            path.append(node)
        paths.append(path)
    return paths
