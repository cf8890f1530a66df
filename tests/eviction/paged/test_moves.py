"""Filling holes: the first places hold the survivors, whoever stood there stays, and nothing is moved for nothing."""

import pytest
import torch

from minikv.eviction.paged.runner import fill_holes, in_order, slots_of


def drawn(generator, batch, heads, length, keep):
    rows = [torch.randperm(length, generator=generator)[:keep] for _ in range(batch * heads)]
    return torch.stack(rows).view(batch, heads, keep)


def apply(moves, content):
    """All reads before all writes, as ``move_slots`` does it."""
    after = content.clone()
    return after.scatter(-1, moves.dst, content.gather(-1, moves.src))


@pytest.mark.parametrize("seed", range(40))
def test_the_first_places_hold_the_survivors_and_nobody_else_moves(seed):
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(1, 40, (1,), generator=generator))
    keep = int(torch.randint(1, length + 1, (1,), generator=generator))
    kept = drawn(generator, 2, 3, length, keep)
    moves = fill_holes(kept, length)
    content = torch.arange(length).expand(2, 3, length)
    after = apply(moves, content)[..., :keep]
    assert torch.equal(after.sort(-1).values, kept.sort(-1).values)
    assert torch.equal(after, moves.origin)
    stays = (kept.unsqueeze(-1) == torch.arange(keep)).any(-2)  # [B, H, keep]: a survivor stood there before
    assert torch.equal(after[stays], torch.arange(keep).expand_as(after)[stays])
    assert torch.equal((after != torch.arange(keep)).sum(-1), (kept >= keep).sum(-1))


def test_no_place_is_written_twice_even_by_those_who_move_onto_themselves():
    kept = drawn(torch.Generator().manual_seed(1), 5, 4, 50, 20)
    dst = fill_holes(kept, 50).dst.sort(-1).values
    assert (dst[..., 1:] > dst[..., :-1]).all()


def test_one_new_token_over_the_capacity_moves_one_token():
    kept = torch.tensor([[[0, 1, 2, 4, 5]]])
    moves = fill_holes(kept, 6)
    assert (moves.src.tolist(), moves.dst.tolist()) == ([[[5]]], [[[3]]])
    assert moves.origin.tolist() == [[[0, 1, 2, 5, 4]]]


def test_where_everything_stays_nothing_moves():
    assert fill_holes(torch.arange(4).view(1, 1, 4), 4).src.shape == (1, 1, 0)
    moves = fill_holes(torch.arange(4).view(1, 1, 4), 7)
    assert torch.equal(moves.src, moves.dst)


def test_in_order_keeps_the_order():
    kept = torch.tensor([[[0, 3, 4], [1, 2, 4]]])
    after = apply(in_order(kept, 5), torch.arange(5).expand(1, 2, 5))
    assert torch.equal(after[..., :3], kept)


def test_slots_follow_from_the_tables():
    tables = torch.tensor([[7, 2], [0, 5]])
    places = torch.tensor([[[0, 3], [4, 7]], [[1, 4], [2, 5]]])
    assert slots_of(tables, places, 4).tolist() == [[[28, 31], [8, 11]], [[1, 20], [2, 21]]]
