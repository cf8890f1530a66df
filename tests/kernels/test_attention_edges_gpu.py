"""What the Triton attention kernels must not get wrong at the edges: strides, scales, dtypes, grids, empty calls."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.kernels import PagedKV, gpu, reference
from minikv.kernels.gpu.common import Device, Launch
from minikv.kernels.gpu.configs import Config, attention_config, choose_splits
from minikv.kernels.gpu.launches import attention_launches
from tests.kernels.dense import dense, make_case
from tests.kernels.test_attention import absorbed, latent_case
from tests.kernels.test_attention_gpu import DEVICE, HOPPER, SMALL, agree, run

pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def tensors(case):
    return case.query, case.kv


@pytest.mark.parametrize("which", ["k_scale", "v_scale"])
def test_the_scales_of_k_and_of_v_have_strides_of_their_own(which):
    case = make_case([20, 33], stored=torch.int8, scaled=True, device=DEVICE)
    scale = getattr(case, which)
    wide = torch.full((*scale.shape[:2], 3 * scale.shape[2]), float("nan"), device=DEVICE)
    wide[..., : scale.shape[2]] = scale
    setattr(case, which, wide[..., : scale.shape[2]])
    agree(run(case, splits=1, config=SMALL).out, dense(case)[0], torch.float32)


@pytest.mark.parametrize("which", ["k_scale", "v_scale"])
@pytest.mark.parametrize("stored", [E5M2, torch.int8])
def test_one_half_alone_may_have_scales(which, stored):
    """The other half is of the query's dtype, or 8 bits read as they are."""
    scaled = make_case([20, 33], stored=stored, scaled=True, device=DEVICE)
    plain = make_case([20, 33], stored=E5M2 if stored == E5M2 else torch.float32, device=DEVICE)
    own, other = ("k_cache", "v_cache") if which == "k_scale" else ("v_cache", "k_cache")
    held = {"k_cache": "keys", "v_cache": "values"}
    setattr(plain, own, getattr(scaled, own))
    setattr(plain, held[own], getattr(scaled, held[own]))
    setattr(plain, which, getattr(scaled, which))
    out = run(plain, splits=2, config=SMALL).out
    agree(out, dense(plain)[0], torch.float32)
    assert not torch.equal(getattr(scaled, other), getattr(plain, other))


def test_small_values_survive_float16():
    """A weight times the scale of such a value is less than float16 holds; the value itself is not."""
    case = make_case([40], dtype=torch.float16, stored=torch.int8, scaled=True, device=DEVICE, sharpness=3.0)
    want = dense(case)[0]
    case.v_scale *= 2.0**-11
    got = run(case, splits=1, config=SMALL).out.double().cpu() * 2.0**11
    torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-3 * float(want.abs().max()))


def test_a_scale_of_zero_is_zero():
    case = make_case([40], dtype=torch.float16, stored=torch.int8, scaled=True, device=DEVICE)
    case.v_scale = torch.zeros_like(case.v_scale)
    assert not run(case, splits=1, config=SMALL).out.any()


def test_a_float16_query_reads_a_bfloat16_cache_whole():
    """Numbers that float16 does not hold: the sum of two of them cancels to one that it does."""
    case = make_case([2], dtype=torch.bfloat16, device=DEVICE)
    case.query = torch.zeros_like(case.query, dtype=torch.float16)
    block = int(case.block_tables[0, 0])
    case.v_cache[block, 0], case.v_cache[block, 1] = 2.0**17, -(2.0**17) + 1024
    launches, result = attention_launches(HOPPER, *tensors(case), **case.options)
    for launch in launches:
        launch.run()
    assert result.out.dtype == torch.float16
    assert result.out.eq(512).all()


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sinks_of_any_dtype_and_switched_off(dtype, splits):
    case = make_case([0, 20, 33], queries=[1, 1, 1], sinks=True, device=DEVICE)
    sinks = case.options["sinks"].to(dtype)
    sinks[::3] = -torch.inf
    case.options["sinks"] = sinks
    got = run(case, splits=splits, config=SMALL)
    want = reference.paged_decode(*tensors(case), **case.options, return_lse=True)
    torch.testing.assert_close(got.out, want.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.lse, want.lse, rtol=1e-5, atol=1e-6)


def test_a_prefill_of_128_heads_and_a_long_prompt_fits_the_grid():
    """16,384 queries of a latent cache are 65,536 tiles of rows."""
    for tokens in (2**14 - 64, 2**14, 2**17):
        whole = torch.empty(9000, 16, 1, 576, dtype=torch.bfloat16, device="meta")
        query = torch.empty(tokens, 128, 576, dtype=torch.bfloat16, device="meta")
        index = [torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((1, 9000), (1,), (2,))]
        kv = PagedKV(whole[..., :512], whole[..., 512:], *index[:2])
        (launch,), _ = attention_launches(
            Device(90, 132), query[..., :512], kv, q_rope=query[..., 512:], query_starts=index[2], max_queries=tokens,
            scale=1.0,
        )  # fmt: skip
        assert launch.grid[1:] == (), "only the first axis takes more than 65,535"
        assert launch.grid[0] == tokens * 128 // launch.constants["BLOCK_M"]


def test_heads_that_lie_far_apart_are_addressed_with_64_bits():
    """Heads in the first dimension, of queries and of the cache: an offset passes 2**31. Only touched pages exist."""
    case = make_case([20], kv_heads=3, group=1, dtype=torch.float16, device=DEVICE)
    want = run(case, splits=1, config=SMALL).out
    apart = 2**30 + 2**12
    memory = torch.empty(2 * apart + 2**18, dtype=torch.int8, device=DEVICE).view(E5M2)
    stored = make_case([20], kv_heads=3, group=1, dtype=torch.float16, stored=E5M2, device=DEVICE)
    cache = memory.as_strided(stored.k_cache.shape, (16 * 64, 64, apart, 1))
    cache.copy_(stored.k_cache)
    want = run(stored, splits=1, config=SMALL).out
    stored.k_cache = cache
    assert torch.equal(run(stored, splits=1, config=SMALL).out, want)
    del cache, memory
    memory = torch.empty(2 * apart + 2**12, dtype=torch.float16, device=DEVICE)
    query = memory.as_strided(case.query.shape, (64, apart, 1))
    query.copy_(case.query)
    want = run(case, splits=1, config=SMALL).out
    assert torch.equal(run(case, query=query, splits=1, config=SMALL).out, want)


def test_a_query_of_any_strides():
    """Heads before tokens, as a projection may leave them, and a slice of a wider tensor; latents too."""
    case = make_case([20, 33], queries=[5, 9], device=DEVICE)
    rows = dict(query_starts=case.query_starts, max_queries=9, splits=1, config=SMALL)
    want = run(case, **rows).out
    by_head = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    sliced = torch.cat([case.query, case.query + 1], -1)[..., :64]
    for query in (by_head, sliced):
        assert not query.is_contiguous()
        assert torch.equal(run(case, query=query, **rows).out, want)
    case, rank = latent_case([20, 33], device=DEVICE)
    q_latent, q_rope, as_dense, case.options = absorbed(case, rank)
    by_head = q_rope.transpose(0, 1).contiguous().transpose(0, 1).to(DEVICE)
    agree(
        run(case, query=q_latent.to(DEVICE), q_rope=by_head, splits=1, config=SMALL).out,
        dense(as_dense)[0],
        torch.float32,
    )


@pytest.mark.parametrize("capability", [75, 80, 90])
def test_no_sequence_and_no_query(capability):
    case = make_case([400], device=DEVICE)
    query, kv = tensors(case)
    none = replace(kv, block_tables=kv.block_tables[:0], lengths=kv.lengths[:0])
    for launch in attention_launches(Device(capability, 8), query[:0], none, scale=1.0)[0]:
        launch.run()
    got = gpu.paged_decode(query[:0], none, scale=1.0, return_scores=True, return_lse=True)
    assert got.out.shape == (0, 8, 64)
    assert got.scores.shape == (0, 2, kv.block_tables.shape[1] * 16)
    starts = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    for most, splits in ((0, None), (5, 2)):
        launches, result = attention_launches(
            Device(capability, 8),
            query[:0],
            kv,
            query_starts=starts,
            max_queries=most,
            splits=splits,
            scale=1.0,
        )
        for launch in launches:
            launch.run()
        assert result.out.shape == (0, 8, 64)


def test_a_table_without_columns():
    case = make_case([0], queries=[1], device=DEVICE)
    empty = replace(case.kv, block_tables=case.block_tables[:, :0])
    got = gpu.paged_decode(case.query, empty, scale=1.0, return_lse=True, return_scores=True)
    assert not got.out.any()
    assert got.lse.eq(-torch.inf).all()
    assert got.scores.shape == (1, 2, 0)


def test_a_window_past_the_table_hides_nothing_and_compiles_for_nothing():
    case = make_case([20, 64], device=DEVICE)
    want = run(case, splits=2, config=SMALL)
    for window in (80, 2**40):
        launches, _ = attention_launches(HOPPER, *tensors(case), scale=1.0, window=window)
        assert launches[0].constants["WINDOW"] == 0
        case.options["window"] = window
        assert torch.equal(run(case, splits=2, config=SMALL).out, want.out)
    assert attention_launches(HOPPER, *tensors(case), scale=1.0, window=79)[0][0].constants["WINDOW"] == 79


@pytest.mark.parametrize("half", ["k", "v"])
def test_float8_e4m3_is_refused_where_it_does_not_compile(half):
    case = make_case([20], device=DEVICE)
    kv = replace(case.kv, **{half: getattr(case.kv, half).to(E4M3)})
    for capability in (75, 80, 86, 87):
        with pytest.raises(ArgumentError) as caught:
            attention_launches(Device(capability, 8), case.query, kv, scale=1.0)
        assert (caught.value.code, caught.value.values["what"]) == ("kernel_fp8", f"kv.{half}")
        assert str(capability / 10) in caught.value.text("zh")
    attention_launches(Device(89, 8), case.query, kv, scale=1.0)


def test_a_kernel_starts_on_the_gpu_of_its_tensors(monkeypatch):
    """Triton starts it on the current one, whose memory may be another's."""
    events = []

    @contextmanager
    def device_of(tensor):
        events.append(("enter", tensor))
        yield
        events.append("leave")

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **constants: events.append(grid)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    x = torch.zeros(1)
    Launch(Kernel(), (2, 1), (None, 3, x)).run()
    Launch(Kernel(), (2, 0), (x,)).run()
    assert events == [("enter", x), (2, 1), "leave"]


def test_few_splits_leave_no_multiprocessor_without_work():
    """Of all numbers of splits: the fewest whose waves are 85 % full; never more than there are tiles, or 64."""
    for programs in range(0, 300, 7):
        for tiles in (0, 1, 2, 9, 500):
            for count in (8, 84, 132):
                splits = choose_splits(programs, tiles, count)
                assert 1 <= splits <= max(1, min(tiles, 64))
                if splits > 1:
                    assert programs < 0.8 * count
                    full = [programs * n / count / -(-programs * n // count) for n in range(1, splits + 1)]
                    assert all(share < 0.85 for share in full[:-1])
                    assert full[-1] >= 0.85 or full[-1] == max(full)


@pytest.mark.parametrize("capability", [75, 80, 87, 89, 90, 100, 120])
def test_a_tile_has_a_power_of_two_of_rows_and_keys(capability):
    for dim in (64, 80, 128, 256, 512):
        for queries in (0, 1, 4, 8, 500):
            for group in (1, 3, 7, 8):
                for itemsize in (2, 4):
                    for latent in (False, True):
                        got = attention_config(capability, dim, dim, itemsize, queries, group, latent=latent)
                        assert isinstance(got, Config)
                        for size in (got.block_m, got.block_n, got.num_warps):
                            assert size >= 1
                            assert size & (size - 1) == 0
                        assert got.block_m >= 16 or capability < 80 or itemsize == 4


def test_rows_are_called_aligned_only_where_they_are():
    """What Triton is told it believes: a load of 16 bytes from another address is an error, or wrong."""
    case = make_case([20], dtype=torch.float16, device=DEVICE)
    k, v = case.k_cache, case.v_cache
    wide = torch.zeros(*k.shape[:3], 72, dtype=torch.float16, device=DEVICE)
    late = torch.zeros(k.numel() + 1, dtype=torch.float16, device=DEVICE)[1:].view(k.shape)
    for other, aligned in ((v, True), (wide[..., :64], False), (late, False)):
        for halves in ({"v": other}, {"k": other}):
            launch = attention_launches(HOPPER, case.query, replace(case.kv, **halves), scale=1.0)[0][0]
            assert launch.constants["ALIGNED"] == aligned
