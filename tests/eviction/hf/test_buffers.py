"""TokenBuffers against lists: random appends, compactions, drops and changes of the batch."""

import random

import pytest
import torch

from minikv.eviction.hf.buffers import TokenBuffers, take


class Lists:
    """[row][head] -> the tokens held, as numbers. What the buffers must say."""

    def __init__(self, batch, heads):
        self.rows = [[[] for _ in range(heads)] for _ in range(batch)]

    def same(self, buffers):
        big, small = buffers["big"], buffers["small"]
        for row, heads in enumerate(self.rows):
            for head, tokens in enumerate(heads):
                assert small[row, head].tolist() == tokens
                assert big[row, head, :, 0].tolist() == tokens
                assert big[row, head, :, 1].tolist() == [-token for token in tokens]


def distinct(rng, batch, heads, length, count):
    """[batch, heads, count] int64: different slots for every row and head."""
    return torch.tensor([[rng.sample(range(length), count) for _ in range(heads)] for _ in range(batch)])


@pytest.mark.parametrize("seed", range(6))
def test_a_random_walk(seed):
    rng, heads, limit = random.Random(seed), 2, 12
    buffers = TokenBuffers({"big": torch.empty(3, heads, 0, 2), "small": torch.empty(3, heads, 0)})
    lists, token = Lists(3, heads), 0
    for _ in range(120):
        batch, length = len(lists.rows), buffers.length
        action = rng.choice(["append", "append", "compact", "drop", "drop", "rows"])
        if action == "append":
            count = rng.choice([1, 1, 1, 4, 20])
            new = torch.arange(token, token + batch * heads * count).view(batch, heads, count).float()
            token += batch * heads * count
            before = buffers.room
            buffers.append({"big": torch.stack((new, -new), -1), "small": new}, limit)
            assert buffers.room == before or buffers.room <= max(limit, length + count)
            for row in range(batch):
                for head in range(heads):
                    lists.rows[row][head] += new[row, head].tolist()
        elif action == "compact" and length:
            index = distinct(rng, batch, heads, length, rng.randint(1, length)).sort(-1).values
            buffers.compact(index, limit)
            assert buffers.room == max(limit, index.shape[2])
            lists.rows = [
                [[tokens[i] for i in index[row, head].tolist()] for head, tokens in enumerate(own)]
                for row, own in enumerate(lists.rows)
            ]
        elif action == "drop" and length > 5:
            dropped = distinct(rng, batch, heads, length, rng.randint(1, 5))
            where = [buffers["big"].untyped_storage().data_ptr()]
            buffers.drop(dropped)
            assert where == [buffers["big"].untyped_storage().data_ptr()], "no tensor was made anew"
            for row, own in enumerate(lists.rows):
                for head, tokens in enumerate(own):
                    gone = set(dropped[row, head].tolist())
                    left = [t for i, t in enumerate(tokens) if i not in gone]
                    now = buffers["small"][row, head].tolist()
                    assert sorted(now) == sorted(left)
                    stayed = [i for i in range(len(left)) if i not in gone]
                    assert all(now[i] == tokens[i] for i in stayed), "no other token moved"
                    lists.rows[row][head] = now
        elif action == "rows":
            index = torch.tensor([rng.randrange(batch) for _ in range(rng.choice([2, 3, 4]))])
            buffers.for_rows(lambda tensor, index=index: tensor[index])
            lists.rows = [[list(tokens) for tokens in lists.rows[i]] for i in index.tolist()]
        lists.same(buffers)


def test_one_head_beside_several_stands_for_all():
    buffers = TokenBuffers(
        {"keys": torch.empty(2, 3, 0, 4), "places": torch.empty(2, 1, 0, dtype=torch.int64)}
    )
    keys = torch.randn(2, 3, 6, 4)
    buffers.append({"keys": keys, "places": torch.arange(6).expand(2, 1, 6)}, 8)
    index = torch.tensor([[[0, 3, 5]], [[1, 2, 4]]]).expand(2, 3, 3)
    buffers.compact(index, 4)
    assert buffers["places"].tolist() == [[[0, 3, 5]], [[1, 2, 4]]]
    assert torch.equal(buffers["keys"], take(keys, index))
    buffers.drop(torch.tensor([[[0]], [[2]]]).expand(2, 3, 1))
    assert buffers["places"].tolist() == [[[5, 3]], [[1, 2]]]


def test_compaction_frees_the_storage_and_a_slice_would_not():
    keys = torch.empty(1, 1, 0, 64)
    buffers = TokenBuffers({"keys": keys})
    buffers.append({"keys": torch.zeros(1, 1, 1000, 64)}, 10)
    assert buffers.nbytes == 1000 * 64 * 4
    whole = buffers["keys"]
    assert whole[:, :, :100].untyped_storage().nbytes() == buffers.nbytes
    buffers.compact(torch.arange(100).view(1, 1, -1), 101)
    assert buffers.nbytes == 101 * 64 * 4


def test_what_is_not_given_is_zero():
    buffers = TokenBuffers({"keys": torch.empty(1, 1, 0, 2), "state": torch.empty(1, 1, 0)})
    buffers.append({"keys": torch.ones(1, 1, 3, 2)}, 8)
    buffers["state"].fill_(7)
    buffers.drop(torch.tensor([[[1]]]))
    buffers.append({"keys": torch.ones(1, 1, 2, 2)}, 8)
    assert buffers["state"].tolist() == [[[7, 7, 0, 0]]]
