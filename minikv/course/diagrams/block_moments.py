"""What a few calls do to one sequence's blocks: a row after each, with the tokens that came and those that went."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from minikv.blocks import BlockManager
from minikv.blocks.pool import NULL_BLOCK
from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

TOP, ROW = 8, 84
CELL, GAP, WIDEST = 28, 16, 36.0  # a token's height, between two blocks, and the most of a token's width
KEPT, CAME = look(0), look("shared")


@dataclass(frozen=True)
class Moment:
    """A sequence's blocks after ``call``: ``found`` of ``asked`` tokens would be found in the prefix cache."""

    call: str
    table: Sequence[int]
    tokens: Sequence[int]
    free: int
    block_size: int
    published: frozenset[int] = frozenset()
    found: int = 0
    asked: int = 0


def moment(manager: BlockManager, seq_id: Hashable, call: str, asked: Iterable[int] = ()) -> Moment:
    """Return what ``manager`` holds for ``seq_id`` now, in its first group; ``asked`` is another request's prompt.

    Raises ``UnknownNameError`` for an unknown sequence.
    """
    pool, wanted = manager.pools[0], list(asked)
    table = tuple(manager.block_table(seq_id))
    published = frozenset(block for block in table if block != NULL_BLOCK and pool.is_published(block))
    found = manager.match([*wanted, -1]).num_tokens if wanted else 0  # the last token is never looked up
    tokens = tuple(manager.tokens(seq_id).tolist())
    return Moment(call, table, tokens, pool.num_free, manager.block_size, published, found, len(wanted))


def block_moments(moments: Sequence[Moment], lang: str = "en") -> Diagram:
    """Draw ``moments`` below each other: what stayed, what came since the one before, what went."""
    lang = pick_language(lang)
    size = moments[0].block_size
    left = max(width_of(one.call, 14) for one in moments) + 16
    most = max(len(one.table) for one in moments) + 1
    wide = min(WIDEST, (WIDTH - left - GAP * most) / (most * size))
    picture, lines = Picture(), []
    before: Sequence[int] = moments[0].tokens
    for place, now in enumerate(moments):
        lines.append(_draw(picture, now, before, left, TOP + place * ROW, wide, lang))
        before = now.tokens
    below, x = TOP + len(moments) * ROW + 8, float(left)
    for key, fill, dashed in (("stayed", KEPT, False), ("came", CAME, False), ("went", None, True)):
        said = text(f"diagrams_steps.moments_{key}", lang)
        picture.box(x, below, 16, 16, fill, edge=1, dashed=dashed)
        picture.words(x + 22, below + 13, said, size=12)
        x += 22 + width_of(said, 12) + 24
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=below + 24)


def _draw(
    picture: Picture, now: Moment, before: Sequence[int], left: float, y: float, wide: float, lang: str
) -> str:
    """Draw one moment; return it as a line of text."""
    size, count = now.block_size, len(now.tokens)
    picture.words(0, y + 19, now.call, bold=True)
    for place in range(max(len(now.table) * size, len(before))):
        entry, slot = divmod(place, size)
        x = left + entry * (size * wide + GAP) + slot * wide
        here, there = place < count, place < len(before)
        stayed = here and there and now.tokens[place] == before[place]
        fill = KEPT if stayed else CAME if here else None
        went = there and not here
        if here or went or entry < len(now.table):
            picture.box(x, y, wide, CELL, fill, edge=1, dashed=went)
        token = now.tokens[place] if here else before[place] if went else None
        if token is not None and width_of(str(token), 12) < wide - 2:
            picture.words(x + wide / 2, y + 19, str(token), anchor="middle", size=12, on=fill)
    for entry, block in enumerate(now.table):
        x = left + entry * (size * wide + GAP) + size * wide / 2
        key = "published" if block in now.published else "block"
        said = "-" if block == NULL_BLOCK else text(f"diagrams_steps.moments_{key}", lang, block=block)
        picture.words(x, y + 44, said, anchor="middle", size=12)
    line = text("diagrams_steps.moments_free", lang, tokens=count, blocks=len(now.table), free=now.free)
    if now.asked:
        line += text("diagrams_steps.moments_found", lang, found=now.found, asked=now.asked)
    picture.words(left, y + 62, line, size=12)
    table = text("diagrams.comma", lang).join(
        "-"
        if block == NULL_BLOCK
        else text(
            f"diagrams_steps.moments_{'published' if block in now.published else 'block'}", lang, block=block
        )
        for block in now.table
    )
    tokens = " ".join(map(str, now.tokens))
    return text("diagrams_steps.moments_line", lang, call=now.call, line=line, table=table, tokens=tokens)
