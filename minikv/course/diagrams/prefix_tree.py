"""The blocks of several sequences as a tree of prefixes: a block that several share is one node, with its ref count."""

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from minikv.blocks import BlockManager
from minikv.blocks.pool import NULL_BLOCK
from minikv.blocks.prefix import child_digest, root_digest
from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

WIDE, HIGH = 172, 64  # of a node
ACROSS, DOWN = WIDE + 28, HIGH + 16  # from one node to the next
BAND = 16  # of colour, at a node's left
ROOT = 56  # of the drawing's left, for the root


@dataclass
class _Node:
    block: int
    tokens: list[int]
    digest: bytes
    holders: list[Hashable] = field(default_factory=list)
    ends: list[Hashable] = field(default_factory=list)
    children: dict[int, "_Node"] = field(default_factory=dict)


def prefix_tree(
    manager: BlockManager, sequences: Iterable[Hashable] | None = None, lang: str = "en"
) -> Diagram:
    """Draw the blocks of ``sequences`` (None: of all that run), and those that are cached without a holder.

    They are those of ``manager``'s first KV cache group. Raises ``UnknownNameError`` for an unknown sequence.
    """
    lang = pick_language(lang)
    names = manager.sequences() if sequences is None else list(sequences)
    root = _tree(manager, names)
    picture = Picture()
    lines: list[str] = []
    rows = _draw(picture, manager, root, 0, 0, lang, lines)
    y = _middle(root, 0)
    picture.words(0, y + 4, text("diagrams.tree_root", lang), bold=True)
    blocks, tokens = len(lines), sum(manager.num_tokens(name) for name in names)
    title = text(
        "diagrams.tree_title",
        lang,
        size=manager.block_size,
        blocks=blocks,
        tokens=tokens,
        sequences=len(names),
    )
    alt = text("diagrams.joint", lang).join([title, *lines])
    width = max(WIDTH, ROOT + _depth(root) * ACROSS + 72)
    return Diagram(picture, alt, [title, *lines], lang, width=width, height=rows * DOWN)


def _tree(manager: BlockManager, names: Iterable[Hashable]) -> _Node:
    size, root = manager.block_size, _Node(NULL_BLOCK, [], root_digest(""))
    nodes = [root]
    for name in names:
        node, tokens = root, manager.tokens(name).tolist()
        for place, block in enumerate(manager.block_table(name)):
            if block == NULL_BLOCK:  # behind a window
                continue
            if block not in node.children:
                own = tokens[place * size : (place + 1) * size]
                node.children[block] = _Node(block, own, child_digest(node.digest, array("q", own).tobytes()))
                nodes.append(node.children[block])
            node = node.children[block]
            node.holders.append(name)
        node.ends.append(name)
    # A cached block names its parent by its digest alone: a child of the node with the digest that gives its own.
    left = {one.digest: one for one in manager.pools[0].cached()}
    for node in nodes:  # which grows meanwhile
        for one in list(left.values()):
            if child_digest(node.digest, one.tokens) == one.digest:
                own = array("q", one.tokens).tolist()
                node.children[one.block] = _Node(one.block, own, left.pop(one.digest).digest)
                nodes.append(node.children[one.block])
    return root


def _rows(node: _Node) -> int:
    """How many rows a node needs: one for each leaf below it."""
    return sum(map(_rows, node.children.values())) or 1


def _depth(node: _Node) -> int:
    return max((1 + _depth(child) for child in node.children.values()), default=0)


def _middle(node: _Node, row: int) -> float:
    """The height of a node's middle: the first of the rows that it needs."""
    return row * DOWN + DOWN / 2


def _draw(
    picture: Picture, manager: BlockManager, node: _Node, depth: int, row: int, lang: str, lines: list[str]
) -> int:
    """Draw the children of ``node`` and what is below them, from ``row`` on; return the first row that is left."""
    from_x = ROOT - 8 if depth == 0 else ROOT + (depth - 1) * ACROSS + WIDE + 2
    from_y = _middle(node, row)
    for child in node.children.values():
        y, x = _middle(child, row), ROOT + depth * ACROSS
        picture.curve((from_x, from_y), (x - 3, y))
        lines.append(_draw_node(picture, manager, child, x, y - HIGH / 2, lang))
        row = _draw(picture, manager, child, depth + 1, row, lang, lines)
    return row if node.children else row + 1


def _draw_node(picture: Picture, manager: BlockManager, node: _Node, x: float, y: float, lang: str) -> str:
    """Draw one block; return it as a line of text."""
    pool = manager.pools[0]
    count, held = pool.ref_count(node.block), bool(node.holders)
    running = manager.sequences()
    meant = "shared" if count > 1 else running.index(node.holders[0]) if held else "cached"
    picture.box(x, y, BAND, HIGH, look(meant))
    picture.box(x, y, WIDE, HIGH, edge=1, dashed=not held)
    key = "tree_found" if pool.is_published(node.block) else "tree_refs"
    refs, tokens = text(f"diagrams.{key}", lang, count=count), " ".join(map(str, node.tokens))
    inside = x + BAND + 8
    picture.words(inside, y + 18, text("diagrams.slots_block", lang, block=node.block), bold=True)
    picture.words(inside, y + 37, _cut(tokens, WIDE - BAND - 12), size=12)
    picture.words(inside, y + 55, refs, size=12)
    if node.ends:
        picture.words(
            x + WIDE + 8,
            y + HIGH / 2 + (-8 if node.children else 5),
            ", ".join(map(str, node.ends)),
            bold=True,
        )
    line = "tree_line" if held else "tree_cached_line"
    holders = ", ".join(map(str, node.holders))
    return text(f"diagrams.{line}", lang, block=node.block, tokens=tokens, refs=refs, holders=holders)


def _cut(said: str, width: float) -> str:
    """``said``, or so many of its first words as fit."""
    while width_of(said, 12) > width and " " in said:
        said = said.removesuffix(" ...").rpartition(" ")[0] + " ..."
    return said
