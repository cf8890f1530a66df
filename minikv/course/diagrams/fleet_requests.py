"""Where a fleet's requests went: the router, each replica's queue, and its prompts' tokens, found and computed."""

from typing import TYPE_CHECKING

import numpy as np

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, alt_of, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.shown import columns

if TYPE_CHECKING:
    from minikv.simulate import Outcome

TOP, ROW, HIGH = 40, 96, 82
ROUTER, QUEUE, LEFT = 168, 392, 520  # of the drawing's left: router, queues, replicas
BOX = 120  # the width of the router
ACROSS, DOWN, APART = 12, 6, 9  # dots in a row and rows of a queue, and pixels from dot to dot
COLUMNS = ("replica", "requests", "prompts", "found", "waiting", "ttft", "busy")


def fleet_requests(outcome: "Outcome", lang: str = "en") -> Diagram:
    """Draw a simulated fleet: a row for each replica, its bar to the same scale as the others'.

    A dot is a request that waits where the queue is longest. A queue of more than 72 is cut; its number is not.
    """
    lang = pick_language(lang)
    picture, fleet = Picture(), outcome.fleet
    prompts = np.bincount(outcome.replica, outcome.prompt_tokens, fleet.replicas)
    found = np.bincount(outcome.replica, outcome.cached_tokens + outcome.host_tokens, fleet.replicas)
    scale = (WIDTH - LEFT - 20) / prompts.max()
    gpu, span = fleet.step_time.roof.name, float(outcome.arrival.max() - outcome.arrival.min())
    values = {"gpus": fleet.gpus, "gpu": gpu, "p99": outcome.answers().ttft.p99}
    title = text("diagrams_fleet.title", lang, **values)
    picture.words(0, 16, title, bold=True)

    middle = TOP + ROW * fleet.replicas / 2 - (ROW - HIGH) / 2
    source = text("diagrams_fleet.source", lang, count=len(outcome.arrival), span=span)
    for line, said in enumerate(source.splitlines()):
        picture.words(0, middle - 5 + 18 * line, said, bold=not line)
    picture.curve((104, middle), (ROUTER - 3, middle))
    picture.box(ROUTER, middle - 27, BOX, 54, edge=1.5, radius=6)
    name = fleet.router if isinstance(fleet.router, str) else type(fleet.router).__name__
    router = text("diagrams_fleet.router", lang), name
    for line, said in enumerate(router):
        picture.words(ROUTER + BOX / 2, middle - 5 + 18 * line, said, anchor="middle", bold=not line)

    table = [tuple(text(f"diagrams_fleet.{column}", lang) for column in COLUMNS)]
    for replica in range(fleet.replicas):
        y, mine = TOP + ROW * replica, outcome.replica == replica
        count, waiting = int(mine.sum()), _longest_queue(outcome.arrival[mine], outcome.admitted[mine])
        y_in = y + HIGH / 2
        if count:
            picture.curve((ROUTER + BOX, middle), (QUEUE - 12, y_in))
        beside = y_in + 18 if y_in > middle + 1 else y_in - 8  # not on the arrow
        picture.words(QUEUE - 12, beside, f"{count:,}", anchor="end", bold=True)
        centres = [
            (QUEUE + 4 + APART * (place % ACROSS), y + HIGH - 28 - APART * (place // ACROSS))
            for place in range(min(waiting, ACROSS * DOWN))
        ]
        picture.dots(centres, 3)
        picture.words(
            QUEUE, y + HIGH - 8, text("diagrams_fleet.queue", lang, waiting=f"{waiting:,}"), size=12
        )
        picture.box(LEFT, y, WIDTH - LEFT - 1, HIGH, edge=1, radius=4)
        p99 = f"{np.percentile(outcome.ttft[mine], 99):.2f} s" if count else ""
        busy = f"{outcome.replicas[replica].busy_seconds / outcome.seconds:.0%}"
        share = f"{found[replica] / prompts[replica]:.0%}" if count else ""
        x = float(LEFT + 10)
        picture.words(x, y + 20, text("diagrams_fleet.name", lang, replica=replica, tp=fleet.tp), bold=True)
        if count:
            picture.words(WIDTH - 10, y + 20, f"p99 {p99}", anchor="end", size=12)
        for kind, tokens in (("cached", found[replica]), ("activations", prompts[replica] - found[replica])):
            if tokens:
                picture.box(x, y + 30, tokens * scale, 20, look(kind), edge=1)
                x += tokens * scale
        said = text("diagrams_fleet.below", lang, busy=busy, found=share) if count else ""
        picture.words(LEFT + 10, y + 70, said or text("diagrams_fleet.idle", lang), size=12)
        table.append((str(replica), f"{count:,}", f"{prompts[replica]:,.0f}", share, str(waiting), p99, busy))

    y, left = TOP + ROW * fleet.replicas + 14, 0.0
    for kind in ("cached", "activations"):
        said = text(f"diagrams_fleet.{kind}", lang)
        picture.box(left, y - 13, 16, 16, look(kind), edge=1)
        picture.words(left + 22, y, said, size=12)
        left += 22 + width_of(said, 12) + 24
    picture.dots([(left + 5, y - 5)], 3)
    picture.words(left + 16, y, text("diagrams_fleet.dot", lang), size=12)
    lines = [title, f"{source} -> {' '.join(router)}".replace("\n", " "), columns(table, range(1, 7))]
    return Diagram(picture, alt_of(title, table, lang), lines, lang, width=WIDTH, height=y + 12)


def _longest_queue(arrival: np.ndarray, admitted: np.ndarray) -> int:
    """The most requests that had arrived and were in no step yet, at any one time."""
    moments = [(time, 1) for time in arrival] + [(time, -1) for time in admitted]
    waiting = np.cumsum([change for _, change in sorted(moments)])  # at one time those that leave come first
    return int(waiting.max()) if len(waiting) else 0
