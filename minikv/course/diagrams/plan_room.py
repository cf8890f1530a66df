"""A budget of bytes to scale: how many requests of the longest each plan holds at once, block by block."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, alt_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.shown import columns

if TYPE_CHECKING:
    from minikv.course.capstone import Plan, Task  # they import torch

LEFT, TOP = 176, 56
HIGH, ROW = 40, 76


def plan_room(task: "Task", plans: Sequence["Plan"], lang: str = "en") -> Diagram:
    """Draw the budget of ``task`` once for each plan, filled with requests as long as the longest."""
    lang = pick_language(lang)
    longest = task.max_model_len - 1  # the last token that is generated is never stored
    picture = Picture()
    title = text("diagrams_room.title", lang, budget=task.kv_bytes, longest=longest)
    picture.words(0, 16, title, bold=True)
    scale = (WIDTH - LEFT - 4) / task.kv_bytes
    table = [
        tuple(text(f"diagrams_room.{name}", lang) for name in ("plan", "token", "blocks", "request", "most"))
    ]
    for number, plan in enumerate(plans):
        y = TOP + number * ROW
        blocks, token = plan.num_blocks_for(task), task.spec(plan.kv_dtype).slope()
        needed = -(-longest // plan.block_size)
        most = blocks // needed
        name = text("diagrams_room.row", lang, dtype=plan.kv_dtype or "fp32", size=plan.block_size)
        picture.words(0, y + 17, name, bold=True)
        picture.words(0, y + 34, text("diagrams_room.bytes", lang, token=token), size=12)
        block = token * plan.block_size * scale
        for request in range(most):
            x = LEFT + request * needed * block
            picture.box(x, y, needed * block - 2, HIGH, look(request), edge=1)
            middle = x + needed * block / 2
            picture.words(middle, y + 25, str(request + 1), anchor="middle", on=look(request), halo=8)
        used = most * needed * block
        picture.frames([(LEFT + used, y, blocks * block - used, HIGH)])
        said = text(
            "diagrams_room.below", lang, blocks=blocks, needed=needed, most=most, rest=blocks - most * needed
        )
        picture.words(LEFT, y + HIGH + 16, said, size=12)
        table.append((name, f"{token:,}", f"{blocks:,}", str(needed), str(most)))
    y = TOP + len(plans) * ROW
    picture.words(0, y + 4, text("diagrams_room.legend", lang), size=12)
    return Diagram(
        picture,
        alt_of(title, table, lang),
        [title, columns(table, range(1, 5))],
        lang,
        width=WIDTH,
        height=y + 12,
    )
