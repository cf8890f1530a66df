"""nano's block manager on its own: what is shared, what is refused, what can be found, and until when."""

import random

import pytest

from minikv.nano.block_manager import BlockManager, block_digest, slot_mapping
from minikv.nano.sequence import SamplingParams, Sequence

PARAMS = SamplingParams()


def sequence(tokens) -> Sequence:
    return Sequence(0, list(tokens), len(tokens), PARAMS)


def computed(blocks: BlockManager, tokens) -> Sequence:
    seq = sequence(tokens)
    assert blocks.allocate(seq)
    blocks.publish(seq, len(seq.tokens))
    return seq


def test_a_digest_stands_for_all_tokens_up_to_its_end():
    one = block_digest(b"", [1, 2])
    assert block_digest(one, [3, 4]) == block_digest(one, [3, 4])
    assert (
        len(
            {
                block_digest(b"", [3, 4]),
                block_digest(one, [3, 4]),
                block_digest(block_digest(b"", [2, 1]), [3, 4]),
            }
        )
        == 3
    )
    assert block_digest(b"", [1, 256]) != block_digest(b"", [257, 0]), "tokens do not run into each other"


def test_slots_follow_the_table():
    assert slot_mapping([7, 2], 0, 6, 4) == [28, 29, 30, 31, 8, 9]
    assert slot_mapping([7, 2], 3, 5, 4) == [31, 8]


def test_equal_beginnings_share_their_full_blocks_and_no_other():
    blocks = BlockManager(10, 4)
    first = computed(blocks, range(10))
    second = computed(blocks, [*range(8), 50, 51])
    assert first.block_table[:2] == second.block_table[:2]
    assert first.block_table[2] != second.block_table[2]
    assert second.num_cached == 8
    assert [blocks.ref_counts[block] for block in second.block_table] == [2, 2, 1]


def test_the_last_token_is_always_computed():
    """A prompt of whole blocks that are all cached still needs one forward: the logits behind it are nowhere."""
    blocks = BlockManager(10, 4)
    computed(blocks, range(8))
    again = sequence(range(8))
    assert blocks.allocate(again)
    assert again.num_cached == 4


def test_an_allocation_that_does_not_fit_changes_nothing():
    blocks = BlockManager(4, 2)
    held = computed(blocks, range(4))
    blocks.free(computed(blocks, [9, 9, 9]))
    before = list(blocks.free_blocks), list(blocks.ref_counts), dict(blocks.cached)
    for tokens, keep_free in ((range(9), 0), ([0, 1, 5, 6, 7], 1), ([9, 9, 1, 2, 3], 0)):
        seq = sequence(tokens)
        assert not blocks.allocate(seq, keep_free)
        assert (list(blocks.free_blocks), blocks.ref_counts, blocks.cached) == before
        assert not seq.block_table
    assert held.block_table


def test_a_table_is_freed_once_and_a_refused_free_changes_nothing():
    blocks = BlockManager(num_blocks=4, block_size=2)
    one, other = computed(blocks, [1, 2, 3, 4]), computed(blocks, [1, 2, 3])
    stale = list(one.block_table)
    blocks.free(one)
    one.block_table, one.num_computed = stale, 4
    before = list(blocks.free_blocks), list(blocks.ref_counts), list(other.block_table)
    with pytest.raises(AssertionError, match="twice"):
        blocks.free(one)
    assert (list(blocks.free_blocks), blocks.ref_counts, other.block_table) == before
    assert (one.block_table, one.num_computed) == (stale, 4)


def test_a_freed_block_is_found_until_it_is_needed_and_the_oldest_goes_first():
    blocks = BlockManager(4, 2)
    old, new = computed(blocks, [1, 2, 3]), computed(blocks, [4, 5, 6])
    blocks.free(old)
    blocks.free(new)
    assert blocks.find_prefix([1, 2, 9])
    assert blocks.find_prefix([4, 5, 9])
    third = computed(blocks, [7, 7, 7])  # takes both blocks of the oldest
    assert set(third.block_table) == {0, 1}
    assert not blocks.find_prefix([1, 2, 9])
    assert blocks.find_prefix([4, 5, 9])


def test_of_a_sequence_the_beginning_stays_longest():
    blocks = BlockManager(3, 2)
    blocks.free(computed(blocks, range(6)))
    computed(blocks, [50])
    assert len(blocks.find_prefix(range(7))) == 2


def test_a_block_that_was_computed_twice_is_found_once_and_lost_with_it():
    blocks = BlockManager(6, 2)
    one, two = sequence([1, 2, 3]), sequence([1, 2, 4])
    assert blocks.allocate(one)
    assert blocks.allocate(two)
    blocks.publish(one, 3)
    blocks.publish(two, 3)
    assert blocks.find_prefix([1, 2, 9]) == one.block_table[:1]
    blocks.free(one)
    for _ in range(2):  # reuses the blocks that nobody holds, `one`'s among them
        computed(blocks, [30, 31])
    blocks.free(two)
    computed(blocks, [40, 41, 42, 43])
    assert sum(blocks.ref_counts) + len(blocks.free_blocks) == 6


def test_blocks_are_published_when_they_are_full_and_computed():
    blocks = BlockManager(6, 4)
    seq = sequence(range(9))
    assert blocks.allocate(seq)
    for end, found in ((3, 0), (6, 1), (7, 1), (9, 2)):  # chunks that end anywhere
        blocks.publish(seq, end)
        assert len(blocks.find_prefix(range(20))) == found


def test_random_life_loses_no_block():
    draw = random.Random(5)
    blocks, live = BlockManager(12, 3), []
    for _ in range(3000):
        if live and draw.random() < 0.45:
            blocks.free(live.pop(draw.randrange(len(live))))
        elif live and draw.random() < 0.5:
            seq = draw.choice(live)
            seq.tokens.append(draw.randrange(2))
            if blocks.append(seq):
                blocks.publish(seq, len(seq.tokens))
            else:
                seq.tokens.pop()
        else:
            seq = sequence(draw.choices((0, 1), k=draw.randrange(1, 15)))
            if blocks.allocate(seq, draw.randrange(3)):
                blocks.publish(seq, len(seq.tokens))
                live.append(seq)
        held = [block for seq in live for block in seq.block_table]
        assert blocks.ref_counts == [held.count(block) for block in range(12)]
        assert set(blocks.free_blocks) == set(range(12)) - set(held)
        assert all(blocks.digests[block] == digest for digest, block in blocks.cached.items())
        for seq in live:  # what is found under a sequence's tokens holds its tokens
            for mine, found in zip(seq.block_table, blocks.find_prefix([*seq.tokens, 0]), strict=False):
                assert blocks.digests[mine] == blocks.digests[found]
