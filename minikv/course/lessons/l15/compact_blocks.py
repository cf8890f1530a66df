"""Exercise 15.2: a sequence on blocks of latents keeps some of its tokens and frees the other blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from minikv.course.exercise import Exercise, Misconception


@dataclass
class Blocks:
    """One layer's blocks, and one sequence on them. An eviction changes it.

    latent     [slots, 3] float64, a row a slot: block b has the slots from b * block_size on
    rope       [slots, 2] float64: the rope key of the same token
    table      the sequence's blocks, in the order of its tokens
    positions  the position in the text of each of its tokens, in the same order
    holders    for each block, how many sequences hold it
    empty      the blocks that no sequence holds
    """

    block_size: int
    latent: torch.Tensor
    rope: torch.Tensor
    table: list[int]
    positions: list[int]
    holders: list[int]
    empty: list[int]

    def slot(self, place: int, table: Sequence[int] | None = None) -> int:
        """Return the slot of the token at ``place``."""
        blocks = self.table if table is None else table
        return blocks[place // self.block_size] * self.block_size + place % self.block_size


def compact(blocks: Blocks, kept: list[int]) -> None:
    _compact(blocks, kept)


def _copied(blocks: Blocks, place: int) -> None:
    """Replace the block at ``place`` by a new one of the sequence's own if another sequence holds it too."""
    block = blocks.table[place]
    if blocks.holders[block] > 1:
        blocks.holders[block] -= 1
        blocks.table[place] = blocks.empty.pop()
        blocks.holders[blocks.table[place]] = 1


def _release(blocks: Blocks, block: int) -> None:
    blocks.holders[block] -= 1
    if blocks.holders[block] == 0:
        blocks.empty.append(block)


def _compact(
    blocks,
    kept,
    *,
    order=None,
    parts=("latent", "rope"),
    own=_copied,
    release=_release,
    round_up=True,
    positions=None,
):
    """Evict. Each keyword argument, changed, gives one wrong answer."""
    size, old = blocks.block_size, list(blocks.table)
    count = -(-len(kept) // size) if round_up else len(kept) // size
    for place in range(count):
        own(blocks, place)
    tail, blocks.table[count:] = old[count:], []
    table = blocks.table if round_up else old  # a table cut too short is still written to through the old one
    moves = [(blocks.slot(place, old), blocks.slot(i, table)) for i, place in enumerate(kept)]
    for src, dst in moves if order is None else order(moves):
        for name in parts:
            rows = getattr(blocks, name)
            rows[dst] = rows[src]
    for block in tail:
        release(blocks, block)
    blocks.positions = (positions or _follow)(blocks.positions, kept)


def _follow(positions, kept):
    return [positions[place] for place in kept]


def _backwards(moves):
    return moves[::-1]


def _in_place(blocks, place):
    """Writes to a block that another sequence holds too."""


def _copied_but_held(blocks, place):
    """Takes a block of its own, but keeps its reference to the old one."""
    if blocks.holders[blocks.table[place]] > 1:
        blocks.table[place] = blocks.empty.pop()
        blocks.holders[blocks.table[place]] = 1


def _always_copied(blocks, place):
    """Takes a new block for every block that stays, shared or not."""
    old = blocks.table[place]
    blocks.table[place] = blocks.empty.pop(0)
    blocks.holders[blocks.table[place]] = 1
    blocks.holders[old] -= 1  # even at 0 the block does not go back to ``empty``


def _freed_though_held(blocks, block):
    """Puts a block among the empty ones even if another sequence holds it."""
    blocks.holders[block] -= 1
    blocks.empty.append(block)


def _never(blocks, block):
    """Cuts the table without releasing the blocks."""


def _counted_anew(positions, kept):
    """Counts positions 0, 1, 2, ..., as if the survivors were the whole text."""
    return list(range(len(kept)))


def compact_filling_holes(blocks, kept):
    """Fills the holes in front with tokens from behind, but sorts the positions into text order."""
    keep = len(kept)
    stay = [place for place in kept if place < keep]
    holes = [place for place in range(keep) if place not in set(stay)]
    movers = [place for place in kept if place >= keep][::-1]
    origin = {place: place for place in stay} | dict(zip(holes, movers, strict=True))
    _compact(blocks, [origin[place] for place in range(keep)])
    blocks.positions = sorted(blocks.positions)


def compact_newest(blocks, kept):
    """Keeps the last tokens, as many as were chosen."""
    length = len(blocks.positions)
    _compact(blocks, list(range(length - len(kept), length)))


def run_compact(fn: Callable, block_size: int, length: int, shared: int, evicted: int, kept: list) -> dict:
    """Return where everything lies afterwards. The first ``shared`` blocks belong to another sequence as well.

    ``evicted`` tokens were evicted before, so the positions have a gap already.
    """
    blocks, other = _filled(block_size, length, shared, evicted)
    fn(blocks, list(kept))
    return _observed(blocks, other, len(kept))


def _filled(size: int, length: int, shared: int, evicted: int) -> tuple[Blocks, list[int]]:
    """Return two sequences; the numbers of each row name its token: 1000 * sequence + place."""
    count = -(-length // size)
    total = 2 * count + 3 + count
    table = [(7 * place + 3) % total for place in range(count)] if total % 7 else list(range(count))
    unused = [block for block in range(total) if block not in set(table)]
    other = [*table[:shared], *unused[:2]]
    empty = unused[2:]
    latent, rope = torch.zeros(total * size, 3).double(), torch.zeros(total * size, 2).double()
    holders = [(block in table) + (block in other) for block in range(total)]
    positions = [place if place < 2 else place + evicted for place in range(length)]
    blocks = Blocks(size, latent, rope, table, positions, holders, empty)
    for name, owned, tokens in (("other", other, len(other) * size), ("own", table, length)):
        for place in range(tokens):
            row = (1000 if name == "own" or place < shared * size else 2000) + place
            latent[blocks.slot(place, owned)], rope[blocks.slot(place, owned)] = row, row
    return blocks, other


def _observed(blocks: Blocks, other: list[int], keep: int) -> dict:
    """Describe the result: ``tokens``, ``rope_keys`` and ``other`` name the token in each slot.

    ``lost`` counts blocks that no sequence holds and that are not among the empty ones.
    """
    slots = [blocks.slot(place) for place in range(min(keep, len(blocks.table) * blocks.block_size))]
    others = [blocks.slot(place, other) for place in range(len(other) * blocks.block_size)]
    held = set(blocks.table) | set(other)
    return {
        "tokens": blocks.latent[slots, 0].int().tolist(),
        "rope_keys": blocks.rope[slots, 0].int().tolist(),
        "positions": list(blocks.positions),
        "num_blocks": len(blocks.table),
        "other": blocks.latent[others, 0].int().tolist(),
        "other_rope_keys": blocks.rope[others, 0].int().tolist(),
        "empty_but_held": len(held & set(blocks.empty)),
        "lost": len(blocks.holders) - len(held | set(blocks.empty)),
        "holders": sum(blocks.holders),
    }


def draw_evictions(rng) -> list[dict]:
    """Draw nothing shared, one block, all; survivors at the front, behind, everywhere; last blocks full or not."""
    cases = []
    for i in range(36):
        size = rng.choice([2, 4, 3])
        count = rng.randint(4, 6 + i // 9)
        length = size * count - rng.choice([0, 1, size - 1])
        keep = rng.randint(size + 1, length - size)
        places = sorted(rng.sample(range(length), keep))
        if i % 6 == 4:  # the newest tokens, so that a move from behind overwrites
            places = list(range(length - keep, length))
        cases.append(
            {
                "block_size": size,
                "length": length,
                "shared": (0, 2, 1, count - 1, 3)[i % 5],
                "evicted": rng.choice([0, 9]),
                "kept": places,
            }
        )
    return cases


COMPACT = Exercise(
    id="15.2",
    minutes=11,
    name="compact",
    signature=("block_size", "length", "shared", "evicted", "kept"),
    cases=draw_evictions,
    reference=compact,
    drive=run_compact,
    misconceptions=(
        Misconception("backwards", partial(_compact, order=_backwards)),
        Misconception("rope_left", partial(_compact, parts=("latent",))),
        Misconception("latent_left", partial(_compact, parts=("rope",))),
        Misconception("in_place", partial(_compact, own=_in_place)),
        Misconception("copied_but_held", partial(_compact, own=_copied_but_held)),
        Misconception("always_copied", partial(_compact, own=_always_copied)),
        Misconception("freed_though_held", partial(_compact, release=_freed_though_held)),
        Misconception("tail_kept", partial(_compact, release=_never)),
        Misconception("rounded_down", partial(_compact, round_up=False)),
        Misconception(
            "positions_left", partial(_compact, positions=lambda positions, kept: positions[: len(kept)])
        ),
        Misconception("counted_anew", partial(_compact, positions=_counted_anew)),
        Misconception("filled_holes", compact_filling_holes),
        Misconception("newest", compact_newest),
    ),
    limit_s=10.0,
)
