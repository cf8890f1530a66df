"""LinearPages: the same bytes as the linear cache's, by row and position, behind the tables of any block manager."""

import random

import numpy as np
import pytest
import torch

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache import LinearKVCache, LinearPages, PagedKVCache
from minikv.kernels import latent_decode, latent_prefill, paged_decode, paged_prefill, store_kv
from minikv.memory.arena import ArenaInUseError
from minikv.plan import CacheSpec
from tests.cache.test_linear import DTYPES, MODELS, spec_of, stored_layers, tokens_for
from tests.cache.test_paged_architectures import REFUSED, small_spec
from tests.in_turn import in_turn
from tests.plan.small_models import DECODERS

BATCH, MAX_SEQ = 4, 9


def pages_of(model="mixed", dtype="fp32", batch=BATCH, max_seq=MAX_SEQ) -> LinearPages:
    return LinearPages(LinearKVCache(spec_of(model, dtype), batch, max_seq))


def filled(pages: LinearPages, seed: int = 0) -> LinearPages:
    """The same pages with random numbers in every place."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in pages.linear.tensors:
        tensor.normal_(generator=generator)
    return pages


def contents(pages: LinearPages) -> dict[tuple[int, int], torch.Tensor]:
    """A copy of K (0) and V (1) of each layer, [rows, kv_heads, max_seq, dim]."""
    layers = stored_layers(pages.spec)
    return {
        (layer, half): part.clone() for layer in layers for half, part in enumerate(pages.linear.layer(layer))
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_lies_at_its_row_and_position_for_both_caches(model, dtype):
    """Written by row and read by table, and the other way round: one storage."""
    pages, generator = pages_of(model, dtype), torch.Generator().manual_seed(0)
    for layer in stored_layers(pages.spec):
        k, v = tokens_for(pages.spec.layers[layer], BATCH, MAX_SEQ, generator)
        pages.linear.write(layer, k, v)
        held = pages.layer(layer)
        assert held.k.shape == (BATCH, MAX_SEQ, *k.shape[1::2])
        for half, linear, new in zip((held.k, held.v), pages.linear.layer(layer), (k, v), strict=True):
            assert half.data_ptr() == linear.data_ptr(), "a view, not a copy"
            assert torch.equal(half, new.transpose(1, 2).to(DTYPES[dtype]))
        for row, length, start in ((0, MAX_SEQ, 0), (2, 5, 3), (3, 1, 1)):
            for got, new in zip(pages.gather(layer, [row], length, start), (k, v), strict=True):
                assert torch.equal(got, new[row, :, start:length].transpose(0, 1).to(DTYPES[dtype]))
        slots = torch.randperm(BATCH * MAX_SEQ, generator=generator)[:7]
        new = [torch.randn(7, *half.shape[2:], generator=generator) for half in (held.k, held.v)]
        store_kv(*new, held.k, held.v, slots)
        for linear, written in zip(pages.linear.layer(layer), new, strict=True):
            assert torch.equal(linear[slots // MAX_SEQ, :, slots % MAX_SEQ], written.to(DTYPES[dtype]))


@pytest.mark.parametrize("model", MODELS)
def test_a_sequence_may_pass_from_row_to_row(model):
    pages = filled(pages_of(model))
    choice = random.Random(0)
    for layer in range(len(pages.spec.layers)):
        if pages.spec.layers[layer].kind == "none":
            continue
        for _ in range(10):
            table = choice.sample(range(BATCH), choice.randint(1, BATCH))
            length = choice.randint(0, len(table) * MAX_SEQ)
            start = choice.randint(0, length)
            for got, linear in zip(
                pages.gather(layer, table, length, start), pages.linear.layer(layer), strict=True
            ):
                assert torch.equal(got, linear[table].transpose(1, 2).flatten(0, 1)[start:length])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "float16"])
@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3"])
def test_bytes_are_the_linear_cache_s_and_the_plan_s(name, dtype):
    spec = CacheSpec.from_config(name, kv_dtype=dtype)
    pages = LinearPages(LinearKVCache(spec, 2, 3))
    assert pages.nbytes == pages.linear.nbytes == spec.bytes_for(3, batch=2)
    assert pages.codec.dtype == pages.linear.dtype == pages.layer(0).k.dtype


@in_turn("model_type", [name for name in DECODERS if name not in REFUSED])
def test_an_architecture_has_the_kinds_of_a_paged_cache_and_the_bytes_of_every_token(model_type):
    spec = small_spec(model_type, kv_dtype="bf16")
    pages, paged = LinearPages(LinearKVCache(spec, 2, 40)), PagedKVCache(spec, 1, 4)
    assert pages.kv_cache_groups == paged.kv_cache_groups
    assert pages.num_blocks == (2,) * len(pages.kv_cache_groups)
    assert pages.block_size == 40
    for number, layer in enumerate(spec.layers):
        if layer.token_bytes or layer.reads_layer is not None:
            assert pages.kv_cache_group_of(number) == paged.kv_cache_group_of(number)
    blocks = sum(
        group.block_bytes(40) * count
        for group, count in zip(pages.kv_cache_groups, pages.num_blocks, strict=True)
    )
    assert pages.nbytes == pages.linear.nbytes == blocks
    if spec.window is None:
        assert pages.nbytes == spec.bytes_for(40, batch=2)
    else:
        assert pages.nbytes > spec.bytes_for(40, batch=2), "a window saves nothing here"


@in_turn("dtype", DTYPES)
@in_turn("model", MODELS)
@in_turn(
    "src, dst",
    [([], []), ([0], [3]), ([0, 1, 2], [1, 2, 0]), ([3, 3, 3], [0, 1, 2]), ([2, 0], [0, 2]), ([1], [1])],
)
def test_rows_are_copied_whole_all_read_before_any_is_written(model, dtype, src, dst):
    pages = filled(pages_of(model, dtype))
    for group in range(len(pages.kv_cache_groups)):
        before = contents(pages)
        pages.copy_blocks(group, np.array(src, np.int64), dst)
        for (layer, half), now in contents(pages).items():
            expected = before[layer, half]
            if pages.kv_cache_group_of(layer) == group:
                expected[dst] = expected[src]
            assert torch.equal(now, expected), "and the layers of the other groups stay as they are"
        assert pages.linear.host_lengths == (0,) * BATCH


def through_every_kernel(model: str) -> list[torch.Tensor]:
    """What each operation gives on pages that are NaN wherever nothing was stored: rows 2 and 0, 9 and 4 tokens."""
    pages, generator = pages_of(model), torch.Generator().manual_seed(0)
    for tensor in pages.linear.tensors:
        tensor.fill_(torch.nan)
    held, results = pages.layer(0), []
    slots = torch.tensor([*range(2 * MAX_SEQ, 3 * MAX_SEQ), -1, *range(4)])
    shapes = [(len(slots), *part.shape[2:]) for part in (held.k, held.v)]
    store_kv(*(torch.randn(shape, generator=generator) for shape in shapes), held.k, held.v, slots)
    pages.copy_blocks(0, [2], [3])
    results += pages.gather(0, [3], 8, 2)
    tables, lengths = torch.tensor([[3], [0]], dtype=torch.int32), torch.tensor([9, 4], dtype=torch.int32)
    starts, (heads, dim), value_dim = torch.tensor([0, 5, 7]), held.k.shape[2:], held.v.shape[3]
    query = torch.randn(7, 2 * heads, dim, generator=generator)
    for window in (None, 3):
        options = {"scale": 0.3, "window": window}
        kv = held.paged(tables, lengths)
        if model == "mla":
            rope = torch.randn(7, 2, value_dim, generator=generator)
            results.append(latent_decode(query[:2], rope[:2], kv, **options).out)
            results.append(latent_prefill(query, rope, kv, starts, max_queries=5, **options).out)
        else:
            results.append(paged_decode(query[:2], kv, **options).out)
            results.append(paged_prefill(query, kv, starts, max_queries=5, **options).out)
    return results


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize("model", ["gqa", "mla", "wide_k"])
def test_the_triton_kernels_take_the_strided_views(model, monkeypatch):
    expected = through_every_kernel(model)
    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    for got, want in zip(through_every_kernel(model), expected, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_fork_of_three_copies_a_row_for_each_but_the_last_that_writes():
    pages = filled(pages_of("mixed"))
    windows = [group.layer.window for group in pages.kv_cache_groups]
    manager = BlockManager(
        [KVCacheGroup(*pool) for pool in zip(pages.num_blocks, windows, strict=True)], MAX_SEQ
    )
    manager.allocate("a", [1, 2, 3, 4, 5])
    manager.commit("a")
    manager.fork("a", "b")
    manager.fork("a", "c")
    before = contents(pages)
    for name, copied in (("a", True), ("b", True), ("c", False)):
        copies = manager.append_tokens(name, [6])
        assert [copy.kv_cache_group for copy in copies] == (
            list(range(len(pages.kv_cache_groups))) if copied else []
        )
        for copy in copies:
            pages.copy_blocks(copy.kv_cache_group, [copy.src], [copy.dst])
    rows = {name: manager.block_table(name)[0] for name in "abc"}
    assert len(set(rows.values())) == 3
    for layer, half in before:
        now = pages.linear.layer(layer)[half]
        assert all(torch.equal(now[row], before[layer, half][rows["c"]]) for row in rows.values())


def test_a_prefix_is_found_only_where_it_fills_a_row():
    manager = BlockManager(BATCH, MAX_SEQ)
    full = list(range(MAX_SEQ))
    manager.allocate("short", full[:-1])
    manager.commit("short")
    assert manager.match(full).num_tokens == 0
    manager.free("short")
    manager.allocate("full", full)
    manager.commit("full")
    assert manager.match(full).num_tokens == 0, "one token has to be computed, and it is in the row's block"
    assert manager.match([*full, 7]).num_tokens == MAX_SEQ
    manager.free("full")
    assert manager.allocate("again", full).num_cached == 0
    assert manager.allocate("longer", [*full, 7]).num_cached == MAX_SEQ
    manager.check_invariants()


@pytest.mark.parametrize("close", [LinearPages.close, lambda pages: pages.linear.close()])
def test_closing_names_what_is_still_read_and_changes_nothing(close):
    pages = filled(pages_of("mixed"))
    pages.linear.commit([3, 0, 2, 9])
    before, address = contents(pages), pages.layer(0).k.data_ptr()
    held, lengths = pages.layer(1), pages.linear.lengths
    for _ in range(3):
        with pytest.raises(ArenaInUseError) as caught:
            close(pages)
        assert caught.value.values["names"] == "lengths, k, layers as 1, v, layers as 1"
    assert all(torch.equal(now, before[key]) for key, now in contents(pages).items())
    assert pages.layer(0).k.data_ptr() == address
    assert pages.linear.lengths.tolist() == [3, 0, 2, 9]
    pages.linear.commit([1, 1, 1, 0])
    assert lengths.tolist() == [4, 1, 3, 9], "the same memory"
    del held, lengths
    close(pages)
    close(pages)
    assert pages.linear.arena.closed


def test_closing_lets_go_of_a_step_that_was_written_and_not_committed():
    pages = pages_of("gqa")
    k, v = tokens_for(pages.spec.layers[0], BATCH, 2, torch.Generator())
    pages.linear.write(0, k, v, [1, 2, 0, 1])
    gathered = pages.gather(0, [1], 2)
    pages.close()
    assert torch.equal(gathered[0], k[1].transpose(0, 1)), "a copy outlives the cache"
