"""Linear layers in C: torch's product for any shape, and a row's result does not depend on the rows around it."""

import pytest
import torch
from torch.nn.functional import silu

from minikv.kernels.cpu import linear as in_c
from tests.kernels.test_cpu_kernels import compiled_here

pytestmark = compiled_here


def made(rows: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 1000 + depth)
    return torch.randn(rows, depth, generator=generator), torch.randn(rows, generator=generator)


@pytest.mark.parametrize("depth", [1, 15, 16, 37, 256])
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("count", [1, 5, 12, 13, 64])
def test_it_is_the_product_in_float64_rounded(count, rows, depth):
    weight, bias = made(rows, depth)
    x, panels = made(count, depth)[0], in_c.pack(weight)
    exact = x.double() @ weight.double().T
    close = {"rtol": 1e-5, "atol": 1e-5 * depth**0.5}
    torch.testing.assert_close(in_c.linear(x, panels, rows).double(), exact, **close)
    torch.testing.assert_close(in_c.linear(x, panels, rows, bias).double(), exact + bias.double(), **close)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_alone_has_every_bit_that_it_has_among_others(threads):
    weight, bias = made(100, 50)
    x, panels, before = made(40, 50)[0], in_c.pack(weight), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = in_c.linear(x, panels, 100, bias)
        for row in range(40):
            assert torch.equal(in_c.linear(x[row : row + 1], panels, 100, bias)[0], together[row])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "depth"), [(1, 1), (32, 16), (33, 7), (640, 256)])
def test_what_is_packed_comes_back_to_the_last_bit(rows, depth):
    weight, _ = made(rows, depth)
    assert torch.equal(in_c.unpack(in_c.pack(weight), rows), weight)
    strided = weight.T.contiguous().T
    found = in_c.unpack(in_c.pack(strided), rows)
    assert torch.equal(found, weight)
    assert found.untyped_storage().nbytes() == weight.nbytes


@pytest.mark.parametrize("depth", [1, 40])
@pytest.mark.parametrize("rows", [1, 16, 17, 100])
@pytest.mark.parametrize("count", [1, 13, 30])
def test_gated_it_is_silu_of_the_first_product_times_the_second(count, rows, depth):
    gate, other = made(rows, depth)[0], made(rows, depth + 1)[0][:, :depth]
    x, panels = 3 * made(count, depth)[0], in_c.pack(gate, other)
    exact = silu(x.double() @ gate.double().T) * (x.double() @ other.double().T)
    found = in_c.linear(x, panels, rows, gated=True)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())
    half = panels.shape[2] // 2
    assert torch.equal(in_c.unpack(panels[..., :half], rows), gate)
    assert torch.equal(in_c.unpack(panels[..., half:], rows), other)


def test_a_gate_may_be_far_from_zero():
    gate, other = torch.tensor([[1.0]]), torch.tensor([[2.0]])
    x = torch.tensor(
        [[0.0], [1e-30], [-1e-30], [20.0], [-20.0], [100.0], [-100.0], [1e19], [-1e19], [torch.nan]]
    )
    found = in_c.linear(x, in_c.pack(gate, other), 1, gated=True)
    torch.testing.assert_close(found, silu(x) * 2 * x, rtol=1e-5, atol=1e-30, equal_nan=True)


def test_dimensions_and_strides_are_torchs():
    weight, bias = made(33, 20)
    panels = in_c.pack(weight)
    x = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    torch.testing.assert_close(
        in_c.linear(x, panels, 33, bias), torch.nn.functional.linear(x, weight, bias), rtol=1e-5, atol=1e-5
    )
    assert in_c.linear(x[0, 0], panels, 33).shape == (33,)
    assert in_c.linear(x[:0], panels, 33).shape == (0, 5, 33)
    strided = torch.stack([bias, bias], 1)[:, 0]
    assert torch.equal(in_c.linear(x, panels, 33, strided), in_c.linear(x, panels, 33, bias))


def test_numbers_that_are_none_stay_in_their_row():
    weight, _ = made(40, 64)
    x, panels = made(14, 64)[0], in_c.pack(weight)
    expected = in_c.linear(x, panels, 40)
    x[3, 5], x[7, 9] = torch.nan, torch.inf
    found = in_c.linear(x, panels, 40)
    assert found[3].isnan().all()
    assert not found[7].isfinite().any()
    others = [row for row in range(14) if row not in (3, 7)]
    assert torch.equal(found[others], expected[others])


def test_the_first_product_may_be_under_autocast():
    weight, _ = made(64, 64)
    in_c._compiled.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert in_c.pack(weight) is not None
    in_c._compiled.cache_clear()


def test_only_float32_on_a_cpu_is_packed(monkeypatch):
    weight, _ = made(64, 64)
    assert in_c.pack(weight.bfloat16()) is None
    assert in_c.pack(weight.to("meta")) is None
    monkeypatch.setenv("MINIKV_KERNELS", "reference")
    assert in_c.pack(weight) is None
