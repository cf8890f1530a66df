"""``gather``, ``copy_blocks`` and ``move_slots`` as a Triton kernel against the reference, byte for byte."""

import dataclasses
import itertools

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.kernels import gpu, reference
from minikv.kernels.gpu import moving
from minikv.kernels.gpu.moving import copy_launches, gather_launch, move_launches
from tests.kernels.agreement import DEVICE, DTYPES, assert_agree, assert_same, permutation, pool

pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_gives_the_tokens_of_a_table_in_order(dtype):
    generator = torch.Generator().manual_seed(10)
    whole = pool(9, 4, 3, 41, dtype=dtype)
    views = [
        lambda x: x,
        lambda x: x[..., :20],
        lambda x: x[..., 21:40],
        lambda x: x[:, :, 1:],
        lambda x: x[..., None],
    ]
    for turn in range(20):
        view = views[turn % len(views)]
        table = permutation(9, 6, generator, (torch.int32, torch.int64)[turn % 2])
        length = int(torch.randint(0, 25, (1,), generator=generator))
        start = int(torch.randint(0, length + 1, (1,), generator=generator))
        table[: start // 4] = -(2**31)  # behind a window
        table[-(-length // 4) :] = 2**31 - 1
        assert_agree(lambda on, x, t: on.gather(view(x), t, length, start), whole, table)  # noqa: B023


def chains(count, blocks, generator):
    """Pairs that are each other's sources: in a row, against it, a ring, swaps, and any order."""
    here = torch.arange(count)
    yield here, here + 1
    yield here + 1, here
    yield here.flip(0), here.flip(0) + 1
    yield here, here.roll(1)
    yield here, here ^ 1 if count % 2 == 0 else here
    yield permutation(blocks, count, generator), permutation(blocks, count, generator)
    yield torch.randint(0, blocks, (count,), generator=generator), permutation(blocks, count, generator)


@pytest.fixture(params=["held", "aside", "in pieces"])
def way(request, monkeypatch):
    """One program for all pairs; or copied aside, at once and in pieces of a few columns."""
    if request.param != "held":
        monkeypatch.setattr(moving, "HELD", {})
    if request.param == "in pieces":
        monkeypatch.setattr(moving, "STAGED_BYTES", 1000)
        monkeypatch.setattr(moving, "LEAST_WORDS", 4)
    return request.param


def taking_turns(calls, counts, blocks, generator):
    """(call, src, dst, dtype): every chain with every count, and with each of ``calls`` under some of them."""
    for number, count in enumerate(counts):
        for turn, (src, dst) in enumerate(chains(count, blocks, generator)):
            yield calls[(turn + number) % len(calls)], src, dst, DTYPES[turn % len(DTYPES)]


def test_a_copy_of_blocks_reads_all_before_it_writes(way):
    calls = (
        lambda on, x, a, b: on.copy_blocks(x, a, b.int(), 2),
        lambda on, x, a, b: on.copy_blocks(x[1, 2, ..., 1:4], a.int(), b),
    )
    for call, src, dst, dtype in taking_turns(calls, (0, 1, 2, 17), 19, torch.Generator().manual_seed(11)):
        assert_agree(call, pool(2, 3, 19, 4, 2, 6, dtype=dtype), src, dst)


@pytest.mark.parametrize("count", [300, 1100])
def test_a_copy_of_many_blocks(count):
    generator = torch.Generator().manual_seed(12)
    for src, dst in itertools.islice(chains(count, 1200, generator), 1, None, 2):
        assert_agree(lambda on, *x: on.copy_blocks(*x), pool(1200, 2, 2, 10, dtype=torch.float16), src, dst)


def test_a_move_of_slots_reads_all_before_it_writes(way):
    calls = (
        lambda on, x, a, b: on.move_slots(x, a, b),
        lambda on, x, a, b: on.move_slots(x[..., 1:7], a.int(), b.int()),
        lambda on, x, a, b: on.move_slots(
            x.view(-1)[:126].view(6, 7, 3), a, b
        ),  # as scales are: one for each head
    )
    for call, src, dst, dtype in taking_turns(calls, (0, 1, 16, 40), 41, torch.Generator().manual_seed(13)):
        assert_agree(call, pool(6, 7, 3, 10, dtype=dtype), src, dst)


def test_a_cache_of_too_many_strides_is_refused_with_the_way_out():
    """K and V, layers, tokens and heads of which none lies right behind the other."""
    whole = pool(2, 4, 5, 6, 4, 10, dtype=torch.float16).to(DEVICE)
    views = whole[:, ::3, :, ::2, 1:, :4]
    before = whole.clone()
    blocks = torch.tensor([0, 1], device=DEVICE)
    with pytest.raises(ArgumentError) as caught:
        gpu.copy_blocks(views, blocks, blocks + 1, 2)
    assert caught.value.code == "kernel_runs"
    assert torch.equal(whole.view(torch.int16), before.view(torch.int16))
    for half in views:
        gpu.copy_blocks(half, blocks, blocks + 1, 1)
    before[:, ::3, 1:3, ::2, 1:, :4] = before[:, ::3, 0:2, ::2, 1:, :4].clone()
    assert torch.equal(whole.view(torch.int16), before.view(torch.int16))


def test_each_head_moves_by_its_own_list(way):
    generator = torch.Generator().manual_seed(14)
    calls = (
        lambda on, x, a, b: on.move_slots(x, a, b),
        lambda on, x, a, b: on.move_slots(x[..., :4], a.int(), b.int()),
        lambda on, x, a, b: on.move_slots(
            x.view(-1)[:126].view(6, 7, 3), a, b
        ),  # as scales are: one for each head
        lambda on, x, a, b: on.move_slots(x, a[:, 1:], b[:, 1:]),
    )
    for number, count in enumerate((1, 16, 40)):
        for turn, dtype in enumerate(DTYPES):
            lists = [torch.stack([permutation(42, count, generator) for _ in range(3)]) for _ in range(2)]
            assert_agree(calls[(turn + number) % len(calls)], pool(6, 7, 3, 10, dtype=dtype), *lists)


def test_a_compaction_to_lower_slots():
    """What eviction asks for: the tokens that stay, in their order, to the first slots, of each head by itself."""
    generator = torch.Generator().manual_seed(15)
    kept = torch.stack([torch.randperm(64, generator=generator)[:30].sort().values for _ in range(4)])
    assert_agree(
        lambda on, *x: on.move_slots(*x),
        pool(4, 16, 4, 16, dtype=torch.bfloat16),
        kept,
        torch.arange(30).expand(4, 30),
    )


def test_no_launch_writes_what_another_of_its_programs_reads():
    """Programs run in any order. A launch within one tensor holds all pairs; any other has two tensors."""
    cache = pool(2, 1500, 2, 3, 50, dtype=torch.bfloat16)
    for count in (1, 2, 16, 17, 256, 257, 1024, 1025, 1500):
        index = torch.arange(count)
        for launch in (*copy_launches(cache, index, index, 1), *move_launches(cache[0], index, index)):
            source, target = launch.arguments[:2]
            if source.data_ptr() == target.data_ptr():
                assert launch.constants["PAIRS"] >= count
            else:
                disjoint = {source.untyped_storage().data_ptr(), target.untyped_storage().data_ptr()}
                assert len(disjoint) == 2


def test_the_columns_of_a_move_may_run_in_any_order():
    generator = torch.Generator().manual_seed(16)
    cache = pool(3, 40, 4, 3, 50, dtype=torch.float16)
    src, dst = permutation(40, 33, generator), permutation(40, 33, generator)
    theirs = cache.to(DEVICE, copy=True)
    (launch,) = copy_launches(theirs, src.to(DEVICE), dst.to(DEVICE), 1)
    names = launch.kernel.arg_names
    columns = launch.arguments[names.index("columns")]
    assert columns > 10
    for column in torch.randperm(columns, generator=generator).tolist():
        arguments = list(launch.arguments)
        arguments[names.index("first")], arguments[names.index("columns")] = column, 1
        dataclasses.replace(launch, grid=(1,), arguments=tuple(arguments)).run()
    reference.copy_blocks(cache, src, dst, 1)
    assert_same(theirs, cache)


def test_all_layers_and_both_halves_are_copied_in_one_launch():
    blocks = torch.arange(1000)
    assert len(copy_launches(torch.empty(2, 32, 2000, 16, 8, 128, device="meta"), blocks, blocks, 2)) == 1


def test_what_is_copied_aside_has_a_limit():
    """A pool takes what memory there is: little is left for copies."""
    slots = torch.arange(100_000, device="meta")
    launches = move_launches(torch.empty(10_000, 16, 8, 128, device="meta"), slots, slots)
    assert len(launches) > 2
    assert all(launch.arguments[1].nbytes <= moving.STAGED_BYTES for launch in launches[::2])


@pytest.mark.parametrize(
    ("first", "width", "num_bytes"),
    [(0, 32, 16), (8, 24, 8), (4, 24, 4), (0, 20, 4), (2, 16, 2), (0, 5, 1), (3, 16, 1)],
)
def test_the_words_are_as_wide_as_address_and_width_allow(first, width, num_bytes):
    """Rows of 32 bytes, of which a part is moved. A wider word would reach past it, or lie across a boundary."""
    cache = pool(3, 4, 2, 32, dtype=torch.int8)
    assert_agree(
        lambda on, x, t: on.gather(x[..., first : first + width], t, 10, 2), cache, torch.tensor([2, 0, 1])
    )
    lists = torch.tensor([1, 5, 11]), torch.tensor([5, 1, 0])
    assert_agree(lambda on, x, a, b: on.move_slots(x[..., first : first + width], a, b), cache, *lists)
    part = torch.zeros(3, 4, 2, 32, dtype=torch.int8, device=DEVICE)[..., first : first + width]
    table = torch.tensor([0], device=DEVICE)
    for launch in (gather_launch(part, table, 4, 0)[0], *move_launches(part, table, table)):
        word = launch.constants["WORD"].primitive_bitwidth // 8
        assert word * launch.constants["VECTOR"] == num_bytes
        assert word == min(num_bytes, 4)
