"""How the launches of an H200 fill it, by simulation: the benchmark's decodes, and causal prefills."""

import pytest
import torch

from benchmarks.kernels_decode import SHAPES
from minikv.kernels import PagedKV
from minikv.kernels.gpu import launches as launching
from minikv.kernels.gpu.common import Device
from minikv.kernels.gpu.configs import attention_config
from minikv.kernels.gpu.launches import attention_launches
from minikv.kernels.occupancy import Schedule, makespan
from tests.kernels.dense import dense, make_case
from tests.kernels.test_attention_gpu import DEVICE, SMALL, agree, run

pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
H200 = Device(90, 132)
KV_HEADS, GROUP, DIM, BLOCK = 8, 4, 128, 16


def decode(lengths: tuple[int, ...], columns: int | None = None) -> Schedule:
    """The schedule of a decode whose table has ``columns``, or as many as the longest sequence needs."""
    k = torch.empty(9000, BLOCK, KV_HEADS, DIM, dtype=torch.bfloat16, device="meta")
    columns = columns or -(-max(lengths) // BLOCK)
    table = torch.empty(len(lengths), columns, dtype=torch.int32, device="meta")
    query = torch.empty(len(lengths), KV_HEADS * GROUP, DIM, dtype=torch.bfloat16, device="meta")
    kv = PagedKV(k, k, table, torch.empty(len(lengths), dtype=torch.int32, device="meta"))
    (launch, *_), _ = attention_launches(H200, query, kv, scale=1.0)
    splits, least = launch.arguments[-2:]
    config = attention_config(90, DIM, DIM, 2, 1, GROUP)
    tiles = [-(-length // config.block_n) for length in lengths]
    own = [-(-count // max(-(-count // splits), least)) for count in tiles]
    sizes = {
        "block_m": config.block_m,
        "block_n": config.block_n,
        "slots": config.per_sm * H200.multiprocessors,
    }
    return makespan(lengths, 1, kv_heads=KV_HEADS, group=GROUP, splits=own, **sizes)


# The share of the best time that was reached; B1 4K has 128 programs of 256 tokens for 264 slots.
REACHED = {
    "B1 4K": 0.48, "B1 32K": 0.85, "B1 128K": 0.85, "B8 4K": 0.95, "B32 4K": 0.95, "B32 32K": 0.95, "B64 4K": 0.95,
    "B128 2K": 0.95, "B32 skewed to 32K": 0.85,
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_decode_ends_about_when_equal_shares_would(shape):
    found = decode(shape.lengths)
    assert found.efficiency >= REACHED[shape.name]
    assert found.part_bytes <= 0.05 * sum(shape.lengths) * KV_HEADS * DIM * 4


def test_short_sequences_in_a_wide_table_are_hardly_split():
    """As a captured graph has them: its table is as wide as the longest sequence may become."""
    found = decode((1024,) * 32, columns=2048)
    assert found.part_bytes == 0
    assert found.efficiency >= 0.95


@pytest.mark.parametrize("prompt", [2048, 4096, 8192])
def test_a_causal_prefill_ends_about_when_equal_shares_would(prompt):
    for capability, multiprocessors in ((80, 108), (90, 132)):
        config = attention_config(capability, DIM, DIM, 2, prompt, GROUP)
        slots = config.per_sm * multiprocessors
        sizes = {"block_m": config.block_m, "block_n": config.block_n, "slots": slots}
        assert makespan([prompt], prompt, kv_heads=KV_HEADS, group=GROUP, **sizes).efficiency >= 0.95


@pytest.mark.parametrize("sinks", [False, True])
def test_sequences_of_a_batch_have_splits_of_their_own_length(monkeypatch, sinks):
    """The longest has three splits, a short one fewer, one without tokens none."""
    for name, tokens in (("LEAST_OF_SPLIT", 16), ("LONG_SPLIT", 16), ("LEAST_OF_MANY", 32)):
        monkeypatch.setattr(launching, name, tokens)
    lengths = [70, 17, 0, 33]
    case = make_case(lengths, queries=[1] * 4, group=2, sinks=sinks, device=DEVICE)
    six = Device(90, 6)
    launches, _ = attention_launches(six, case.query, case.kv, config=SMALL, **case.options)
    assert launches[0].arguments[-2:] == (3, 2)
    got = run(case, device=six, config=SMALL)
    out, lse, _ = dense(case)
    agree(got.out, out, case.query.dtype)
    torch.testing.assert_close(got.lse.double().cpu(), lse, rtol=1e-5, atol=1e-5)
