"""Token to slot to memory: a sequence's tokens, its block table, and an arrow from each entry to its physical block."""

from collections.abc import Hashable

from minikv.blocks import BlockManager
from minikv.blocks.pool import NULL_BLOCK
from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look

LEFT = 112  # of the drawing: what stands before it are the names of its rows
GAP = 14  # between the tokens of two blocks
TOKENS, TABLE, MEMORY = 26, 100, 200  # top of each row
CELL = 28
A_ROW, ROW_HEIGHT = 12, 76  # blocks of the memory, and of a row the height
EDGE = 3  # of the token that is followed


def slots(manager: BlockManager, seq_id: Hashable, lang: str = "en", *, token: int | None = None) -> Diagram:
    """Draw where ``manager`` has the tokens of ``seq_id``, in its first KV cache group.

    ``token`` is the position of the one that is followed to its slot, None: the last. Raises ``UnknownNameError`` for
    an unknown sequence, ``ArgumentError`` for a position outside it.
    """
    lang = pick_language(lang)
    size, table = manager.block_size, manager.block_table(seq_id)
    ids, count = manager.tokens(seq_id).tolist(), manager.num_tokens(seq_id)
    followed = count - 1 if token is None else token
    slot = int(manager.slot_mapping(seq_id, followed, followed + 1)[0])
    placed = manager.slot_mapping(seq_id, 0, count).tolist()
    picture, own = Picture(), _look_of(manager, seq_id)
    # Rows are named on the left.
    picture.words(0, TOKENS + 18, text("diagrams.slots_tokens", lang, name=seq_id))
    picture.words(0, TABLE + 20, text("diagrams.slots_table", lang))
    picture.words(0, MEMORY + 18, text("diagrams.slots_memory", lang))
    picture.words(
        0, MEMORY + 34, text("diagrams.slots_blocks", lang, num=manager.pools[0].num_blocks), size=12
    )

    wide = min(36.0, (WIDTH - LEFT - GAP * (len(table) - 1)) / max(1, count))
    block_wide = (WIDTH - LEFT) / min(A_ROW, manager.pools[0].num_blocks)
    centres = []
    for entry, block in enumerate(table):
        first, last = entry * size, min(count, (entry + 1) * size)
        x = LEFT + first * wide + entry * GAP
        for place in range(first, last):
            at = x + (place - first) * wide
            picture.box(at, TOKENS, wide, CELL, own, edge=EDGE if place == followed else 1)
            if wide >= 20:
                picture.words(at + wide / 2, TOKENS - 8, str(place), anchor="middle", size=12)
            if width_of(str(ids[place]), 12) < wide - 8:
                picture.words(at + wide / 2, TOKENS + 19, str(ids[place]), anchor="middle", size=12, on=own)
        centre = x + max((last - first) * wide, 32) / 2
        centres.append(centre)
        middle = x + (last - first) * wide / 2
        picture.curve((middle, TOKENS + CELL + 4), (centre, TABLE - 4), down=True)
        picture.box(centre - 22, TABLE, 44, CELL, radius=6, edge=EDGE if entry == followed // size else 1)
        said = "-" if block == NULL_BLOCK else str(block)
        picture.words(centre, TABLE + 19, said, anchor="middle", bold=True)
        picture.words(centre + 28, TABLE + 19, f"[{entry}]", size=12)
    owners = _owners(manager)
    position = {number: place for place, number in enumerate(placed)}
    for block in range(manager.pools[0].num_blocks):
        _draw_block(picture, manager, block, owners, position, slot, block_wide, lang)
    for centre, block in zip(centres, table, strict=True):
        if block != NULL_BLOCK:
            x, y = _corner(block, block_wide)
            picture.curve((centre, TABLE + CELL + 4), (x + block_wide / 2 - 3, y - 4), down=True)
    rows = -(-manager.pools[0].num_blocks // A_ROW)
    below = MEMORY + rows * ROW_HEIGHT
    _legend(picture, manager, owners, below, lang)
    key = "slots_formula" if slot >= 0 else "slots_behind"
    formula = text(
        f"diagrams.{key}",
        lang,
        name=seq_id,
        place=followed,
        size=size,
        entry=followed // size,
        block=slot // size,
        slot=slot,
    )
    picture.words(0, below + 46, formula, bold=True)
    title = text("diagrams.slots_title", lang, name=seq_id, tokens=count, blocks=len(table), size=size)
    lines = [_line(entry, block, count, size, lang) for entry, block in enumerate(table)]
    others = [
        text("diagrams.slots_other", lang, block=block, owner=", ".join(map(str, owners[block])))
        for block in sorted(owners)
        if block not in table
    ]
    alt = text("diagrams.joint", lang).join([title, *lines, formula])
    return Diagram(picture, alt, [title, *lines, *others, formula], lang, width=WIDTH, height=below + 56)


def _corner(block: int, wide: float) -> tuple[float, float]:
    row, column = divmod(block, A_ROW)
    return LEFT + column * wide, MEMORY + row * ROW_HEIGHT


def _draw_block(
    picture: Picture,
    manager: BlockManager,
    block: int,
    owners: dict[int, list[Hashable]],
    position: dict[int, int],
    followed: int,
    wide: float,
    lang: str,
) -> None:
    """Draw the slots of a physical block, filled as far as they hold tokens."""
    size, (x, y) = manager.block_size, _corner(block, wide)
    slot_wide = (wide - 6) / size
    held, filled = owners.get(block, []), _filled(manager, block, owners)
    fill = look("shared") if len(held) > 1 else _look_of(manager, held[0]) if held else look("cached")
    for place in range(size):
        number = block * size + place
        used = place < filled
        at = x + place * slot_wide
        edge = EDGE if number == followed else 1
        picture.box(at, y, slot_wide, CELL, fill if used else None, edge=edge, dashed=not held)
        if number in position and width_of(str(position[number]), 12) <= slot_wide - 1:
            picture.words(
                at + slot_wide / 2, y + 19, str(position[number]), anchor="middle", size=12, on=fill
            )
    picture.words(
        x + (wide - 6) / 2, y + 44, text("diagrams.slots_block", lang, block=block), anchor="middle", size=12
    )
    first = block * size
    picture.words(x + (wide - 6) / 2, y + 60, f"{first}-{first + size - 1}", anchor="middle", size=12)


def _owners(manager: BlockManager) -> dict[int, list[Hashable]]:
    """The sequences that hold each used block."""
    owners: dict[int, list[Hashable]] = {}
    for name in manager.sequences():
        for block in manager.block_table(name):
            if block != NULL_BLOCK:
                owners.setdefault(block, []).append(name)
    return owners


def _filled(manager: BlockManager, block: int, owners: dict[int, list[Hashable]]) -> int:
    """How many slots of ``block`` hold a token."""
    size, pool = manager.block_size, manager.pools[0]
    if block not in owners:
        return size if pool.is_published(block) else 0
    ends = (manager.length(name) - manager.block_table(name).index(block) * size for name in owners[block])
    return min(size, max(ends))


def _look_of(manager: BlockManager, seq_id: Hashable) -> Look:
    return look(manager.sequences().index(seq_id))


def _legend(
    picture: Picture, manager: BlockManager, owners: dict[int, list[Hashable]], y: float, lang: str
) -> None:
    entries: list[tuple[str, Look | None, bool]]
    entries = [(str(name), _look_of(manager, name), False) for name in manager.sequences()]
    if any(len(held) > 1 for held in owners.values()):
        entries.append((text("diagrams.slots_shared", lang), look("shared"), False))
    if manager.pools[0].num_cached:
        entries.append((text("diagrams.slots_cached", lang), look("cached"), True))
    x = float(LEFT)
    entries.append((text("diagrams.slots_empty", lang), None, False))
    if len(owners) < manager.pools[0].num_blocks:
        entries.append((text("diagrams.slots_free", lang), None, True))
    for said, fill, free in entries:
        picture.box(x, y + 4, 16, 16, fill, edge=1, dashed=free)
        picture.words(x + 22, y + 17, said, size=12)
        x += 22 + width_of(said, 12) + 24


def _line(entry: int, block: int, count: int, size: int, lang: str) -> str:
    first, last = entry * size, min(count, (entry + 1) * size) - 1
    if block == NULL_BLOCK:
        return text("diagrams.slots_gone", lang, first=first, last=last)
    start = block * size
    return text(
        "diagrams.slots_line",
        lang,
        first=first,
        last=last,
        block=block,
        from_slot=start,
        to_slot=start + last - first,
    )
