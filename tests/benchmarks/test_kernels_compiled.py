"""Two tables of compiled kernels as one: what differs is said twice, and what does not, once."""

import pytest

compiled = pytest.importorskip("benchmarks.kernels_compiled", exc_type=ImportError)

LINE = dict(
    operation="decode", name="attention_kernel", capability=90, num_warps=4, num_stages=3, registers=108, stack=0,
    shared_bytes=38_928, tensor_cores=48, async_copies=24, narrow_loads=0, wgmma=0, mma=48, wgmma_shapes=[], copies_8=0,
    copies_4=2, spills=0, conversions=5, buffers=[1, 1], tile_bytes=32_768, occupancy=4,
)  # fmt: skip


def row(before: list[dict], after: dict) -> dict[str, str]:
    head, rule, *lines = compiled.compared(before, [after])
    assert {len(line.split("|")) for line in (head, rule, *lines)} == {len(head.split("|"))}
    [cells] = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return dict(zip([name.strip() for name in head.strip("| ").split(" | ")], cells, strict=True))


def test_a_figure_that_changed_stands_beside_what_it_was():
    found = row(
        [LINE], LINE | {"buffers": [2, 2], "occupancy": 3, "wgmma": 8, "wgmma_shapes": ["64x128x16"] * 8}
    )
    assert found["buffers"] == "1 1 → 2 2"
    assert found["under way"] == "64 → 96"  # half of a buffer's 32 KiB in 4 programs, then all of it in 3
    assert found["wgmma"] == "0 → 8 (64x128x16)"
    assert found["registers"] == "108"
    assert found["copies of 16, 8, 4"] == "24, 0, 2"


def test_a_kernel_that_was_not_there_has_one_figure_each():
    assert not any("→" in cell for cell in row([LINE | {"capability": 80}], LINE).values())
