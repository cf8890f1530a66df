"""Codecs against float64: the error bound holds, and is tight enough to catch a codec that is wrong."""

import pytest
import torch

from minikv.cache.codec import CODECS, Codec, find_codec
from minikv.errors import ArgumentError
from minikv.kernels.quantize import largest
from minikv.plan.dtypes import KV_DTYPES, find_kv_dtype
from tests.in_turn import in_turn

LOSSY = [name for name in CODECS if name != "fp32"]
EIGHT_BITS = ("fp8", "fp8_e5m2", "fp8_scaled", "int8")
SOURCES = (torch.float32, torch.bfloat16, torch.float16)


def adversarial(dtype=torch.float32):
    """Rows of 16: ordinary, of very different sizes, ties, neighbours of powers of two, zeros, subnormal, huge."""
    generator = torch.Generator().manual_seed(11)
    info = torch.finfo(torch.float32 if dtype == torch.float64 else dtype)
    normal = torch.randn(200, 16, generator=generator, dtype=torch.float64)
    sizes = torch.randint(-20, 20, (200, 1), generator=generator).double()
    outlier = normal.clone()
    outlier[:, 3] *= 1000
    halves = torch.arange(-128, 128, dtype=torch.float64).view(-1, 16) + 0.5
    powers = 2.0 ** torch.arange(-12, 4, dtype=torch.float64)
    around = torch.stack([powers * (1 + step * info.eps) for step in (-1, 0, 1)])
    ties = torch.stack([powers * (1 + step / 32) for step in (1, 2, 3, 5, 7)])
    small = torch.rand(20, 16, generator=generator, dtype=torch.float64) * info.tiny * 2
    huge = normal[:20].clamp(-1, 1) * info.max
    zeros = torch.zeros(1, 16, dtype=torch.float64)
    rows = [normal, normal * 2.0**sizes, outlier, halves, around, ties, small, huge, zeros]
    return torch.cat(rows).clamp(-info.max, info.max).to(dtype)


def excess(codec, encoded, x):
    """By how much the worst element passes the bound (at most 0 where it holds)."""
    error = (codec.decode(*encoded).double() - x.double()).abs()
    return float((error - codec.error_bound(x)).max())


@in_turn("dtype", [torch.float64, *SOURCES])
@in_turn("name", CODECS)
def test_the_error_never_passes_the_bound(name, dtype):
    x = adversarial(dtype)
    codec = find_codec(name)
    data, scale = codec.encode(x)
    assert data.dtype == codec.dtype
    assert data.shape == x.shape
    assert (scale is not None) == codec.scaled
    assert excess(codec, (data, scale), x) <= 0


@pytest.mark.parametrize("name", LOSSY)
def test_the_bound_is_reached(name):
    """Somewhere in a million ordinary numbers the error comes within 5 % of the bound, so the bound is not slack."""
    x = torch.randn(10_000, 100, generator=torch.Generator().manual_seed(3))
    codec = find_codec(name)
    error = (codec.decode(*codec.encode(x)).double() - x.double()).abs()
    bound = codec.error_bound(x)
    assert float((error / bound).max()) > 0.95
    assert float((error / bound).max()) <= 1


def truncated(codec, x):
    """Towards zero instead of to the nearest: drop the last bits."""
    if codec.dtype == torch.int8:
        _, scale = codec.encode(x)
        return (x / scale[..., None]).trunc().clamp(-127, 127).to(torch.int8), scale
    data, scale = codec.encode(x)
    sizes = data.float().abs() * (scale[..., None] if codec.scaled else 1)
    bits = {1: torch.uint8, 2: torch.int16}[codec.itemsize]
    lower = (data.view(bits) - 1).view(codec.dtype)
    return torch.where(sizes > x.abs(), lower.float(), data.float()).to(codec.dtype), scale


def wrong_scale(codec, x):
    """The scale that is stored is 1 % off the one that was divided by."""
    data, scale = codec.encode(x)
    return data, scale * 1.01


def one_scale(codec, x):
    """One scale for the whole tensor: small rows lose their bits."""
    whole = x.abs().amax() / largest(codec.dtype)
    limit = largest(codec.dtype)
    scaled = (x / whole).clamp(-limit, limit)
    scaled = scaled.round() if codec.dtype == torch.int8 else scaled
    return scaled.to(codec.dtype), whole.expand(x.shape[:-1])


def transposed(codec, x):
    """Each row gets its neighbour's scale."""
    data, scale = codec.encode(x)
    return data, scale.roll(1, 0)


def fewer_bits(codec, x):
    """Stored with one bit less."""
    data, scale = codec.encode(x)
    if codec.dtype == torch.int8:
        return (data // 2) * 2, scale
    bits = {1: torch.uint8, 2: torch.int16}[codec.itemsize]
    return (data.view(bits) & ~1).view(codec.dtype), scale


BROKEN = [(name, mutant) for name in LOSSY for mutant in (truncated, fewer_bits)]
BROKEN += [
    (name, mutant) for name in ("fp8_scaled", "int8") for mutant in (wrong_scale, one_scale, transposed)
]


@pytest.mark.parametrize(("name", "mutant"), BROKEN)
def test_a_broken_codec_passes_the_bound(name, mutant):
    codec = find_codec(name)
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(5))
    x *= 2.0 ** torch.randint(-4, 5, (300, 1), generator=torch.Generator().manual_seed(6))
    assert excess(codec, codec.encode(x), x) <= 0
    assert excess(codec, mutant(codec, x), x) > 0


@pytest.mark.parametrize(("name", "other"), [("fp8", "fp8_e5m2"), ("bf16", "fp8"), ("fp16", "bf16")])
def test_the_bound_tells_codecs_apart(name, other):
    x = torch.randn(100, 16, generator=torch.Generator().manual_seed(7))
    worse = find_codec(other)
    assert excess(find_codec(name), (worse.decode(*worse.encode(x)).to(find_codec(name).dtype), None), x) > 0


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_eight_bits_read_as_float32_unless_told_otherwise(name):
    codec = find_codec(name)
    encoded = codec.encode(torch.ones(2, 4))
    assert codec.decode(*encoded).dtype == torch.float32
    assert codec.decode(*encoded, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_plain_codec_gives_back_its_own_dtype_bit_for_bit(name):
    codec = find_codec(name)
    info = torch.finfo(codec.dtype)
    x = torch.tensor([[1.0, -0.0, float("inf"), float("nan"), info.max, info.tiny / 2]], dtype=codec.dtype)
    data, scale = codec.encode(x)
    assert scale is None
    assert torch.equal(codec.decode(data).view(torch.uint8), x.view(torch.uint8))
    assert not codec.error_bound(x[:, :2]).any()


@pytest.mark.parametrize("name", CODECS)
def test_codecs_and_the_planner_count_the_same_bytes(name):
    codec, planned = CODECS[name], find_kv_dtype(name)
    data, scale = codec.encode(torch.ones(3, 2, 8))
    assert (codec.itemsize, codec.scale_bytes) == (planned.itemsize, planned.scale_bytes)
    assert data.nbytes == 3 * 2 * 8 * planned.itemsize
    assert (0 if scale is None else scale.nbytes) == 3 * 2 * planned.scale_bytes


def test_every_dtype_of_the_planner_has_a_codec():
    assert set(KV_DTYPES) <= set(CODECS)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("bfloat16", "bf16"),
        (torch.bfloat16, "bf16"),
        ("fp8_e4m3", "fp8"),
        (torch.float8_e4m3fn, "fp8"),
        ("fp8_e5m2", "fp8_e5m2"),
        (torch.float8_e5m2, "fp8_e5m2"),
        (CODECS["int8"], "int8"),
    ],
)
def test_a_codec_is_found_under_its_other_names(asked, name):
    assert find_codec(asked) is CODECS[name]


@pytest.mark.parametrize("asked", ["fp4", "", None, 8, "int4", True])
def test_an_unknown_codec_is_refused_with_the_names_that_exist(asked):
    with pytest.raises(ArgumentError) as caught:
        find_codec(asked)
    assert all(name in str(caught.value) for name in CODECS)


@pytest.mark.parametrize("name", ["fp8_scaled", "int8"])
def test_scaled_data_cannot_be_read_without_its_scale(name):
    codec = find_codec(name)
    data, _ = codec.encode(torch.ones(2, 4))
    with pytest.raises(ArgumentError) as caught:
        codec.decode(data)
    assert caught.value.code == "cache_needs_scales"


def test_a_codec_is_plain_data():
    assert Codec("int8", torch.int8, scaled=True) == CODECS["int8"]
    assert hash(CODECS["fp8"])
