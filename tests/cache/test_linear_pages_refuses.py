"""What LinearPages refuses, with nothing changed."""

import pytest
import torch

from minikv.cache import LinearPages, PagedKVCache
from tests.cache.paged_cases import refused
from tests.cache.test_linear import spec_of
from tests.cache.test_linear_pages import BATCH, MAX_SEQ, contents, filled, pages_of


def test_a_closed_cache_says_so():
    pages = pages_of("mixed")
    linear, nbytes = pages.linear, pages.nbytes
    pages.close()
    token = torch.zeros(BATCH, 2, 1, 8)
    for call, arguments in (
        (pages.layer, (0,)),
        (pages.kv_cache_group_of, (0,)),
        (pages.gather, (0, [0], 1)),
        (pages.copy_blocks, (0, [0], [1])),
        (linear.layer, (0,)),
        (linear.write, (0, token, token)),
        (linear.commit, ([0] * BATCH,)),
        (linear.reset, ()),
        (linear.use, ()),
        (lambda: linear.lengths, ()),
    ):
        refused("paged_closed", call, *arguments)
    assert pages.nbytes == linear.nbytes == nbytes


@pytest.mark.parametrize("bad", [None, "linear", torch.zeros(2)])
def test_only_a_linear_cache_is_shown_as_pages(bad):
    refused("linear_pages", LinearPages, bad)
    refused("linear_pages", LinearPages, PagedKVCache(spec_of("gqa"), 2, 4))


@pytest.mark.parametrize(
    ("table", "length", "start", "code"),
    [
        ([BATCH], 1, 0, "cache_index"),
        ([-2], 1, 0, "cache_index"),
        ([-1], 1, 0, "paged_null_block"),
        ([0], MAX_SEQ + 1, 0, "paged_table_short"),
        ([], 1, 0, "paged_table_short"),
        ([0], 3, 4, "out_of_range"),
        ([0], -1, 0, "bad_count"),
        ([[0]], 1, 0, "cache_not_whole"),
        ([0.0], 1, 0, "cache_not_whole"),
    ],
)
def test_tables_that_cannot_be_read(table, length, start, code):
    refused(code, pages_of().gather, 0, table, length, start)


@pytest.mark.parametrize(
    ("group", "src", "dst", "code"),
    [
        (4, [0], [1], "out_of_range"),
        (-1, [0], [1], "bad_count"),
        (0, [0], [BATCH], "cache_index"),
        (0, [-1], [0], "cache_index"),
        (0, [0, 1], [2, 2], "cache_twice"),
        (0, [0, 1], [2], "cache_pairs"),
    ],
)
def test_rows_that_cannot_be_copied_change_nothing(group, src, dst, code):
    pages = filled(pages_of("mixed"))
    before = contents(pages)
    refused(code, pages.copy_blocks, group, src, dst)
    assert all(torch.equal(now, before[key]) for key, now in contents(pages).items())


def test_layers_that_are_not_there():
    pages = pages_of("mixed")
    for layer, code in ((8, "out_of_range"), (-1, "bad_count"), (4, "cache_no_kv")):
        for call in (pages.layer, pages.kv_cache_group_of):
            refused(code, call, layer)
        refused(code, pages.gather, layer, [0], 1)
