"""The record beside the cache: it follows its sequence through forks, swaps, evictions and other sequences' ends."""

import random

import pytest
import torch

from minikv.errors import ArgumentError, UnknownNameError
from minikv.eviction.paged.records import PLACES, ROWS, TokenRecords

HEADS = {0: 2, 3: 1}
FIELDS = ("state", "recent")


def made():
    return TokenRecords(HEADS, FIELDS, torch.device("cpu"))


def test_a_new_sequence_finds_nothing_of_the_one_that_had_its_row():
    records = made()
    records.add("a")
    for layer, heads in HEADS.items():
        records.write("state", layer, ["a"], torch.ones(1, heads, 9))
        kept = torch.tensor([8, 2]).expand(1, heads, 2)
        records.keep(layer, ["a"], kept, records.positions(layer, ["a"], 9, [0]))
    records.pack("a", 2)
    records.remove("a")
    records.add("b")
    assert not records.read("state", 0, ["b"], 200).any()
    assert records.positions(0, ["b"], 3, [0]).tolist() == [[[0, 1, 2], [0, 1, 2]]]


def test_positions_are_recorded_before_the_last_eviction_and_follow_from_places_after_it():
    records = made()
    records.add("a")
    before = records.positions(0, ["a"], 6, [0])
    records.keep(0, ["a"], torch.tensor([[[5, 1, 2], [0, 4, 3]]]), before)
    records.pack("a", 3)
    # Two tokens came after it: the sequence has 8, holds 5, and has lost 3.
    assert records.positions(0, ["a"], 5, [3]).tolist() == [[[5, 1, 2, 6, 7], [0, 4, 3, 6, 7]]]


def test_scores_are_gathered_as_the_cache_is_and_nothing_is_left_behind():
    records = made()
    records.add("a")
    records.add("b")
    state = torch.rand(2, 2, 6)
    records.write("state", 0, ["a", "b"], state)
    origin = torch.tensor([[[5, 1], [0, 4]], [[2, 3], [1, 0]]])
    records.keep(0, ["a", "b"], origin, records.positions(0, ["a", "b"], 6, [0, 0]))
    got = records.read("state", 0, ["a", "b"], 6)
    assert torch.equal(got[..., :2], state.gather(-1, origin))
    assert not got[..., 2:].any()


@pytest.mark.parametrize("seed", range(4))
def test_it_holds_what_a_dict_of_tensors_would(seed):
    """Random lives of many sequences, more than the rows and places that there are to begin with."""
    draw, records, beside, saved, names = random.Random(seed), made(), {}, {}, iter(range(10**6))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(150):
        thing = draw.choice(["add", "add", "fork", "write", "write", "out", "in", "remove"])
        some = draw.choice([*beside]) if beside else None
        if thing == "add" or some is None:
            name = next(names)
            records.add(name)
            beside[name] = torch.zeros(2, 0)
        elif thing == "fork":
            name = next(names)
            records.fork(some, name)
            beside[name] = beside[some].clone()
        elif thing == "write":
            length = max(beside[some].shape[1], draw.randrange(1, 3 * PLACES))
            beside[some] = torch.rand(2, length, generator=generator)
            records.write("recent", 0, [some], beside[some].unsqueeze(0))
        elif thing == "out":
            saved[some] = (records.save(some), beside.pop(some))
        elif thing == "in" and saved:
            name = draw.choice([*saved])
            record, beside[name] = saved.pop(name)
            records.restore(name, record)
        elif thing == "remove":
            records.remove(some)
            del beside[some]
        for name, rows in beside.items():
            got = records.read("recent", 0, [name], rows.shape[1] + 5)[0]
            assert torch.equal(got[:, : rows.shape[1]], rows)
            assert not got[:, rows.shape[1] :].any()
    assert len(beside) + len(saved) > ROWS, "the walk never needed more rows"


def test_what_it_does_not_know_is_named():
    records = made()
    records.add("a")
    with pytest.raises(ArgumentError, match="'a'"):
        records.add("a")
    for call in (records.remove, records.save, records.check, lambda name: records.fork(name, "c")):
        with pytest.raises(UnknownNameError, match="'b'"):
            call("b")
    assert "a" in records
    assert "c" not in records


def test_its_bytes_are_those_of_its_tensors():
    heads = sum(HEADS.values())
    assert made().nbytes == ROWS * heads * PLACES * (4 * len(FIELDS) + 8)
