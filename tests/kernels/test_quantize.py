"""What becomes of numbers at the edges: nothing finite turns into NaN or infinity, and NaN stays visible."""

import math

import pytest
import torch

from minikv.kernels.quantize import SMALLEST_SCALE, cast, dequantize, quantize, to_float32

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
SCALED = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
LARGEST = torch.finfo(torch.float32).max
TINIEST = 2.0**-149  # the smallest subnormal float32


def edges(dtype=torch.float32):
    info = torch.finfo(dtype)
    numbers = [0.0, -0.0, 1.0, 447.9, 448.0, 464.0, 465.0, 65504.0, 65520.0, 57344.0, 61440.0, 1e30]
    numbers += [info.max, info.tiny, info.tiny / 2, info.smallest_normal, info.eps, 2.0**-9, 2.0**-10]
    x = torch.tensor([min(number, info.max) for number in numbers], dtype=torch.float64)
    return torch.cat([x, -x]).to(dtype)


@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_cast_keeps_finite_numbers_finite_and_saturates(source, to):
    x = edges(source)
    back = cast(x, to).to(torch.float64)
    limit = torch.finfo(to).max
    exact = x.to(torch.float64)
    assert back.isfinite().all()
    assert (back.abs() <= limit).all()
    assert (back[exact >= limit] == limit).all()
    assert (back[exact <= -limit] == -limit).all()
    assert (back.sign() * exact.sign() >= 0).all()


@pytest.mark.parametrize("to", FLOATS)
def test_a_cast_saturates_infinity_and_keeps_nan(to):
    x = torch.tensor([INF, -INF, NAN, 1.0], dtype=torch.float64)
    back = cast(x, to).to(torch.float64)
    limit = torch.finfo(to).max
    assert back[:2].tolist() == [limit, -limit]
    assert back[2].isnan()
    assert back[3] == 1


def test_a_cast_to_the_same_dtype_is_the_tensor_itself():
    x = torch.tensor([INF, NAN])
    assert cast(x, torch.float32) is x


@pytest.mark.parametrize("dtype", SCALED)
@pytest.mark.parametrize(
    "row",
    [
        [0.0] * 4,
        [TINIEST, -TINIEST, 0.0, 3 * TINIEST],
        [SMALLEST_SCALE / 2, SMALLEST_SCALE, 0.0, TINIEST],
        [LARGEST, -LARGEST, 1.0, TINIEST],
        [LARGEST, LARGEST, LARGEST, LARGEST],
        [1e-30, 1e30, -1e30, 0.0],
        [INF, 1.0, -1.0, -INF],
    ],
)
def test_a_quantized_row_reads_back_finite(dtype, row):
    x = torch.tensor([row, [1.0, 2.0, 3.0, 4.0]])
    data, scale = quantize(x, dtype)
    assert scale.dtype == torch.float32
    assert scale.shape == (2,)
    assert (scale >= SMALLEST_SCALE).all()
    for out in (torch.float32, torch.bfloat16, torch.float16):
        back = dequantize(data, scale, out)
        assert back.dtype == out
        assert back.isfinite().all()
        assert (back[0].sign() * x[0].to(out).sign() >= 0).all()
    assert torch.allclose(dequantize(data, scale, torch.float32)[1], x[1], rtol=0.13)


@pytest.mark.parametrize("dtype", SCALED)
def test_one_nan_makes_its_row_nan_and_no_other(dtype):
    data, scale = quantize(torch.tensor([[1.0, NAN, 2.0], [1.0, 2.0, 3.0]]), dtype)
    back = dequantize(data, scale, torch.float32)
    assert back[0].isnan().all()
    assert back[1].isfinite().all()


@pytest.mark.parametrize("dtype", SCALED)
def test_zero_reads_back_as_zero(dtype):
    data, scale = quantize(torch.zeros(3, 5), dtype)
    assert torch.equal(dequantize(data, scale, torch.float32), torch.zeros(3, 5))


def test_rows_do_not_share_a_scale():
    data, scale = quantize(torch.tensor([[1e-6, 4e-6], [1e6, 4e6]]), torch.int8)
    assert data.tolist() == [[32, 127], [32, 127]]
    assert scale[1] / scale[0] == pytest.approx(1e12)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("nan", [False, True])
def test_every_stored_number_is_read_as_torch_reads_it(dtype, nan):
    numbers = torch.arange(-128, 128).to(torch.int8).view(torch.uint8)
    stored = numbers.view(dtype) if dtype.itemsize == 1 else numbers.to(dtype)
    if not nan and dtype.is_floating_point:
        stored = stored[~stored.float().isnan()]
    found = to_float32(stored.view(-1, 1), torch.empty(len(stored), 1))
    torch.testing.assert_close(found[:, 0], stored.float(), rtol=0, atol=0, equal_nan=True)
