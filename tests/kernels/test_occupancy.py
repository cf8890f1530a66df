"""The arithmetic of occupancy, Little's law and schedules, by figures worked out by hand or published."""

import random

import pytest

from minikv.kernels.occupancy import LIMITS, little, makespan, most_parts, occupancy, split_tiles, splits_of

LLAMA_8B = {"kv_heads": 8, "group": 4}


@pytest.mark.parametrize(
    ("capability", "registers", "num_warps", "shared_bytes", "expected"),
    [
        (90, 108, 4, 38928, 4),  # by registers: 16 warps of 112 each
        (90, 112, 4, 71680, 3),  # by shared memory: 3 * 71 KiB of 228
        (90, 32, 4, 1024, 16),  # by warps
        (90, 16, 1, 0, 32),  # by programs
        (90, 255, 8, 147456, 1),
        (90, 255, 4, 0, 2),
        (75, 64, 4, 65536, 1),
        (80, 255, 16, 0, 0),  # 512 threads of 255 registers
    ],
)
def test_the_scarcest_of_four_decides(capability, registers, num_warps, shared_bytes, expected):
    assert occupancy(capability, registers, num_warps, shared_bytes) == expected


def test_more_of_anything_never_lets_more_programs_in():
    for capability in LIMITS:
        for num_warps in (1, 4, 8):
            counts = [occupancy(capability, registers, num_warps, 4096) for registers in range(16, 256)]
            assert counts == sorted(counts, reverse=True)
            counts = [
                occupancy(capability, 64, num_warps, kib * 1024)
                for kib in range(LIMITS[capability].shared_kib)
            ]
            assert counts == sorted(counts, reverse=True)


def test_littles_law_for_an_h200():
    """4.8 TB/s, 132 multiprocessors, 0.8 to 1.0 us: 29 to 36 KB."""
    assert 29e3 < little(4.8e12, 132, 0.8e-6) < little(4.8e12, 132) < little(4.8e12, 132, 1e-6) < 36.4e3


@pytest.mark.parametrize(
    ("prompt", "ascending", "descending"), [(2048, 1.25, 1.02), (4096, 1.13, 1.0), (8192, 1.06, 1.0)]
)
def test_a_causal_prefill_ends_earlier_when_its_longest_tiles_begin(prompt, ascending, descending):
    for order, expected in ((False, ascending), (True, descending)):
        found = makespan([prompt], prompt, block_m=128, block_n=64, slots=132, descending=order, **LLAMA_8B)
        assert 1 / found.efficiency == pytest.approx(expected, abs=0.005)
        assert found.empty == 0


def test_splits_cover_every_tile_once():
    """As one program an SM and no end: the time of all is what they walk, whatever the splits."""
    for lengths, queries in (([1, 64, 65, 1000], 1), ([300, 17], [300, 5])):
        for splits in (1, 2, 7):
            one = makespan(lengths, queries, block_m=16, block_n=64, slots=1, splits=splits, **LLAMA_8B)
            assert one.efficiency == 1.0
            wide = makespan(lengths, queries, block_m=16, block_n=64, slots=10**5, splits=splits, **LLAMA_8B)
            longest = -(-max(-(-length // 64) for length in lengths) // splits)
            whole = makespan(lengths, queries, block_m=16, block_n=64, slots=10**5, **LLAMA_8B)
            tiles = round(whole.efficiency * max(-(-length // 64) for length in lengths) * 1e5)
            assert round(wide.efficiency * longest * 1e5) == tiles


def test_splits_of_each_sequence_leave_none_empty_and_parts_are_counted():
    lengths = [4096, 64]
    same = makespan(lengths, 1, block_m=16, block_n=64, slots=16, splits=8, **LLAMA_8B)
    own = makespan(lengths, 1, block_m=16, block_n=64, slots=16, splits=[8, 1], **LLAMA_8B)
    assert (same.programs, same.empty, own.programs, own.empty) == (128, 56, 72, 0)
    assert same.part_bytes == 2 * 8 * 32 * 128 * 4
    assert own.part_bytes == 8 * 32 * 128 * 4


def test_a_batch_of_one_length_is_split_alike_and_never_more_than_it_may():
    for total, own, splits, wave, least in [
        (64, 64, 16, 33, 4),
        (2048, 2048, 29, 33, 4),
        (128, 16, 29, 33, 4),
    ]:
        share = split_tiles(total, own, splits, wave, least)
        assert 1 <= share <= own
        assert -(-own // share) <= splits
    assert split_tiles(0, 0, 8, 33, 4) == 1
    assert split_tiles(16, 16, 29, 33, 4) == 1, "a GPU that is not full takes shorter splits"
    assert split_tiles(4096, 64, 29, 33, 4) == 32


def test_no_lengths_make_more_parts_than_are_reserved():
    """One query a sequence or many, short beside long, and none; and some come within one wave of it."""
    draw = random.Random(0)
    closest = 0.0
    for _ in range(2000):
        splits, wave, least = draw.randint(2, 64), draw.randint(1, 264), draw.randint(1, 16)
        tiles = [
            draw.choice([0, 1, draw.randint(0, 40), draw.randint(0, 4000)])
            for _ in range(draw.randint(1, 80))
        ]
        queries = [draw.randint(0, draw.choice([1, 9])) for _ in tiles]
        found = splits_of(tiles, splits, wave, least)
        assert 1 <= min(found) <= max(found) <= splits
        assert sum(found) <= most_parts(len(tiles), splits, wave)
        parts = sum(count * each for count, each in zip(queries, found, strict=True))
        assert parts <= most_parts(sum(queries), splits, wave, max(queries))
        closest = max(closest, sum(found) / most_parts(len(tiles), splits, wave))
    assert closest > 0.9


def test_programs_without_work_take_time_where_no_slot_is_left_over():
    sizes = dict(block_m=16, block_n=64, slots=8, **LLAMA_8B)
    whole = makespan([128], 1, **sizes)
    assert (whole.efficiency, whole.empty) == (1.0, 0)
    found = makespan([128], 1, spare=16, **sizes)
    assert (found.efficiency, found.programs, found.empty) == (0.5, 24, 16)
    assert makespan([128], 1, spare=16, **(sizes | {"slots": 16})).efficiency == 0.5


def test_nothing_to_do_is_done_at_once():
    found = makespan([0], [0], block_m=16, block_n=64, slots=8, **LLAMA_8B)
    assert (found.efficiency, found.programs, found.part_bytes) == (1.0, 0, 0)
