"""The Triton storage kernels beside the reference: the same tensors to both, and every byte compared.

Interpreted on a CPU, compiled on a GPU; the reference always runs on a CPU. Pools are full of random bytes, NaN among
them, and compared whole: what is written, and that nothing else is.
"""

import math

import torch

from minikv.kernels import gpu, reference
from minikv.kernels.gpu.encode import INTEGERS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DTYPES = (torch.float32, torch.bfloat16, torch.float16, E4M3, E5M2, torch.int8)


def pool(*shape, dtype, seed=0):
    """Any bytes: NaN, infinity and subnormal numbers too."""
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape) * dtype.itemsize
    return torch.randint(0, 256, (count,), generator=generator).to(torch.uint8).view(dtype).view(shape)


def permutation(size, count, generator, dtype=torch.int64):
    return torch.randperm(size, generator=generator)[:count].to(dtype)


def assert_same(got, expected):
    """The same bytes; of a NaN only that it is one."""
    got = got.cpu()
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    same = got.view(INTEGERS[got.element_size()]) == expected.view(INTEGERS[got.element_size()])
    if got.is_floating_point():
        same |= got.float().isnan() & expected.float().isnan()
    assert same.all(), (got[~same][:4], expected[~same][:4])


def assert_agree(call, *tensors):
    """``call(implementation, *tensors)`` leaves the same tensors behind, and gives the same, on both."""
    theirs = [None if tensor is None else tensor.to(DEVICE, copy=True) for tensor in tensors]
    expected, got = call(reference, *tensors), call(gpu, *theirs)
    for one, other in zip([*theirs, got], [*tensors, expected], strict=True):
        if other is not None:
            assert_same(one, other)


def store(on, key, value, k_cache, v_cache, slots, k_scale=None, v_scale=None):
    on.store_kv(key, value, k_cache, v_cache, slots, k_scale, v_scale)
