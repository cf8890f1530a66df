"""Lesson 15: two sequences with one beginning are read and evict, each step drawn in the block widget."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minikv.course.lessons.l15.paged_model import OnBlocks
from minikv.course.widgets import BlocksWidget
from minikv.eviction import Budget
from minikv.eviction.policies.choices import Unit
from minikv.i18n import LANGUAGES, text

BLOCKS, SIZE = 24, 8
KEPT = Budget(n_sink=4, budget=24, n_recent=12)


def evicting_story(
    model: Any, texts: Mapping[str, Sequence[int]], names: Iterable[str], lang: str, *, unit: Unit = "token"
) -> tuple[BlocksWidget, list[tuple], list[int]]:
    """Read ``texts``, then let the sequences ``names`` evict by KeyDiff.

    Return the widget; for each step the sequence and whether it evicted, the blocks in use, how many tokens of the
    first text can be found, and the block tables; and the positions that the first sequence has at the end.
    """
    first = next(iter(texts))
    blocks = OnBlocks(model, "keydiff", KEPT, num_blocks=BLOCKS, unit=unit)
    drawn, rows = BlocksWidget(lang, num_blocks=BLOCKS, block_size=SIZE), []
    for name in (*texts, *names):
        evicts = name in blocks.manager.sequences()
        if evicts:
            blocks.eviction.evict([name])
        else:
            blocks.read(name, texts[name])
        key = f"lesson_15.note_{'evicts' if evicts else 'reads'}"
        note = {each: text(key, each, name=name) for each in LANGUAGES}
        drawn.add_step(blocks.tables(), note, cached=blocks.found(texts.values()))
        found = blocks.manager.match([*texts[first], 0]).num_tokens
        tables = "  ".join(f"{each.name} {list(each.blocks)}" for each in blocks.tables())
        rows.append((name, evicts, blocks.manager.pools[0].num_used, found, tables))
    positions = blocks.eviction.positions(first, 0)[0].tolist()
    blocks.close()
    return drawn, rows, positions
