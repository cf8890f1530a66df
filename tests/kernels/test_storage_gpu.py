"""``store_kv`` as a Triton kernel against the reference, byte for byte, and all the operations in a paged cache."""

import itertools
import math

import pytest
import torch

from minikv.kernels import gpu
from minikv.kernels.gpu import moving
from minikv.kernels.gpu.encode import INTEGERS
from tests.cache.paged_cases import cache_for, fill, storing
from tests.kernels.agreement import (
    DEVICE,
    DTYPES,
    E4M3,
    E5M2,
    assert_agree,
    assert_same,
    permutation,
    pool,
    store,
)
from tests.longer import every_value

pytestmark = [
    *([pytest.mark.gpu] if DEVICE == "cuda" else []),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, about NaN, in the interpreter
]
NEW = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def every_number(dtype, *, heads=2, dim=800):
    """New tokens [T, heads, dim] of all numbers that 16 bits make, or of random and delicate ones."""
    if dtype.itemsize == 2:
        numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    else:
        generator = torch.Generator().manual_seed(1)
        numbers = (
            torch.randint(-(2**31), 2**31, (8000,), generator=generator).to(torch.int32).view(torch.float32)
        )
        # Numbers of each narrow format, the middle between neighbours, and the next float32 on both sides.
        for narrow in (E4M3, E5M2, torch.float16, torch.bfloat16):
            exact = (
                torch.arange(2 ** (8 * narrow.itemsize)).to(INTEGERS[narrow.itemsize]).view(narrow).float()
            )
            exact = exact[exact.isfinite()].sort().values
            first = torch.randint(0, len(exact) - 1, (500,), generator=generator)
            exact = torch.cat([exact[first], (exact[first] + exact[first + 1]) / 2])
            around = (exact.nextafter(torch.full_like(exact, side)) for side in (math.inf, -math.inf))
            numbers = torch.cat([numbers, exact, *around])
        largest = torch.finfo(torch.float32).max
        numbers = torch.cat(
            [numbers, torch.tensor([math.inf, -math.inf, math.nan, largest, -largest, 0.0, -0.0])]
        )
        numbers = numbers.to(dtype)
        if dtype == torch.float64:  # between two float32: a cast by way of float32 would round twice
            numbers = torch.cat([numbers, numbers * (1 + 2.0**-30), numbers * (1 - 2.0**-30)])
    tokens = -(-len(numbers) // (heads * dim))
    padded = torch.zeros(tokens * heads * dim, dtype=dtype)
    padded[: len(numbers)] = numbers
    return padded.view(tokens, heads, dim)


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("new", NEW)
def test_every_number_is_stored_as_the_reference_stores_it(new, dtype):
    key = every_number(new)
    tokens, heads, dim = key.shape
    slots = permutation(tokens + 8, tokens, torch.Generator().manual_seed(2))
    cache = [pool(-(-(tokens + 8) // 16), 16, heads, width, dtype=dtype) for width in (dim, 2)]
    assert_agree(store, key, key[..., :2], *cache, slots)


@pytest.mark.parametrize("dtype", [E4M3, E5M2, torch.int8])
@pytest.mark.parametrize("new", NEW)
def test_rows_are_quantized_by_their_largest_number_alone(new, dtype):
    """Rows of ordinary numbers, of which a few are delicate: subnormal, huge, infinite, NaN, and rows of zeros."""
    generator = torch.Generator().manual_seed(5)
    key = torch.randn(120, 3, 20, generator=generator) * 10.0 ** torch.randint(
        -44, 38, (120, 3, 1), generator=generator
    )
    edges = torch.tensor([0.0, 2.0**-149, 2.0**-126, 1e-38, 3e38, math.inf, -math.inf, math.nan, 1.0])
    which = torch.rand(key.shape, generator=generator) < 0.02
    key[which] = edges[torch.randint(0, len(edges), (int(which.sum()),), generator=generator)]
    key[:9] = edges[:, None, None]
    key = key.to(new)
    cache = [pool(9, 16, 3, 20, dtype=dtype, seed=seed) for seed in (6, 7)]
    scales = [pool(9, 16, 3, dtype=torch.float32, seed=seed) for seed in (6, 7)]
    assert_agree(
        store, key, key.flip(0) * -0.3, *cache, permutation(140, 120, generator, torch.int32), *scales
    )


@pytest.mark.parametrize(
    ("shape", "dtype"),
    every_value(
        [(1, (512, 64)), (3, (6, 2)), (8, (128, 128)), (5, (1, 1)), (2, (80, 192))],
        [torch.float32, torch.bfloat16, E4M3],
    ),
    ids=str,
)
def test_a_token_is_skipped_where_its_slot_is_negative(shape, dtype):
    heads, dims = shape
    generator = torch.Generator().manual_seed(8)
    key, value = (torch.randn(13, heads, dim, generator=generator, dtype=torch.bfloat16) for dim in dims)
    cache = [pool(3, 8, heads, dim, dtype=dtype) for dim in dims]
    for index in (torch.int32, torch.int64):
        # The first and the last of the pool, both sides of a block's end, and skipped ones among them.
        slots = torch.tensor([-1, 0, 23, 7, 8, -(2**31), 5, 15, 16, -7, 2, 20, -1], dtype=index)
        assert_agree(store, key, value, *cache, slots)
    assert_agree(store, key, value, *cache, torch.full((13,), -1))
    assert_agree(store, key[:0], value[:0], *cache, torch.zeros(0, dtype=torch.int64))


def test_new_tokens_and_caches_may_be_views():
    """Keys and values from one product, transposed, repeated by stride 0; a latent and its rope in one tensor."""
    fused = torch.randn(7, 2 * 3 * 20, generator=torch.Generator().manual_seed(9))
    slots = torch.tensor([3, 0, 15, -1, 9, 4, 7])
    views = {
        "one product": lambda new: (new[:, :60].view(7, 3, 20), new[:, 60:].view(7, 3, 20)),
        "transposed": lambda new: (new[:, :60].view(7, 20, 3).mT, new[:, 60:].view(7, 3, 20).flip(1)),
        "steps": lambda new: (new.view(7, 3, 40)[..., ::2], new.view(7, 3, 40)[..., 1::2]),
        "repeated": lambda new: (
            new[:, None, :20].expand(7, 3, 20),
            new[:1, :60].view(1, 3, 20).expand(7, 3, 20),
        ),
    }
    for name, dtype in itertools.product(views, (torch.float32, torch.float16, E5M2)):

        def call(on, new, whole, slots, name=name):
            key, value = views[name](new)
            store(on, key, value, whole[..., :20], whole[..., 20:40], slots)

        assert_agree(call, fused, pool(2, 8, 3, 41, dtype=dtype), slots)


def test_keys_and_values_of_two_dtypes():
    key, value = torch.randn(4, 2, 8), torch.randn(4, 2, 8, dtype=torch.float64)
    cache = [pool(2, 4, 2, 8, dtype=torch.bfloat16, seed=seed) for seed in (1, 2)]
    assert_agree(store, key.bfloat16(), value, *cache, torch.arange(4))
    assert_agree(store, key, value.half(), *cache, torch.arange(4))


def test_storing_takes_part_in_no_graph():
    key = torch.ones(1, 1, 8, requires_grad=True, device=DEVICE)
    cache = [torch.zeros(2, 4, 1, 8, device=DEVICE) for _ in range(2)]
    store(gpu, key * 2, key, *cache, torch.tensor([0], device=DEVICE))
    assert not cache[0].requires_grad
    assert cache[0][0, 0].eq(2).all()


def test_a_pool_of_more_than_2_31_elements_is_addressed_with_64_bits(monkeypatch):
    """int32 slots whose offsets pass 2**31; the pages of the pool that nobody touches take no memory."""
    elements = 1 << 15
    blocks = 2**31 // elements // 16 + 4
    cache = torch.empty(blocks, 16, 1, elements, dtype=torch.int8, device=DEVICE).view(E5M2)
    last = blocks * 16 - 1
    assert (last - 20) * elements > 2**31

    def numbers(*values):
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    def all_are(value, block):
        return gpu.gather(part, numbers(block), 16, 15).float().eq(value).all()

    # In words of 16 bytes the offsets are smaller: the view from 1 on is moved by single bytes.
    for value, held, part in (
        (3.0, moving.HELD, cache),
        (5.0, {}, cache),
        (6.0, moving.HELD, cache[..., 1:65]),
    ):
        monkeypatch.setattr(moving, "HELD", held)
        token = torch.full((1, 1, part.shape[3]), value, device=DEVICE)
        store(gpu, token, token, part, part, numbers(last))
        assert all_are(value, blocks - 1)
        gpu.move_slots(part, numbers(last), numbers(last - 16))
        assert all_are(value, blocks - 2)
        gpu.copy_blocks(part, numbers(blocks - 2), numbers(blocks - 3))
        assert all_are(value, blocks - 3)


@pytest.mark.parametrize(("layers", "codec"), every_value(["gqa", "mla", "mixed"], ["bf16", "fp8", "int8"]))
def test_a_paged_cache_runs_on_the_kernels(layers, codec, monkeypatch):
    """Through the public operations and their checks: the same bytes, and the same answers."""
    caches = {"reference": cache_for(layers, codec), "triton": cache_for(layers, codec, device=DEVICE)}
    answers = {}
    for name, cache in caches.items():
        monkeypatch.setenv("MINIKV_KERNELS", name)
        fill(cache)
        generator = torch.Generator().manual_seed(17)
        answers[name] = []
        for layer in storing(cache):
            views = cache.layer(layer)
            new = [
                torch.randn(6, *half.shape[2:], generator=generator).to(cache.device)
                for half in (views.k, views.v)
            ]
            cache.write(layer, *new, [3, 0, -1, 19, 8, 4])
            cache.move(layer, [0, 3, 4, 19], [3, 4, 0, 1])
            heads = views.k.shape[2]
            cache.move(
                layer, *(permutation(20, 7, generator).expand(heads, 7).contiguous() for _ in range(2))
            )
            del views
            answers[name] += cache.gather(layer, [4, 2, 0], 11, 2)
        for group in range(len(cache.kv_cache_groups)):
            cache.copy_blocks(group, [0, 1, 4], [1, 2, 0])
            answers[name] += [part.tensor for part in cache.parts(group)]
    for got, expected in zip(answers["triton"], answers["reference"], strict=True):
        assert_same(got, expected)
