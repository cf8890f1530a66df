"""How the launches of an H200 fill it, by simulation: the benchmark's decodes, and causal prefills."""

import pytest
import torch

from benchmarks.kernels_decode import SHAPES
from minikv.kernels import PagedKV
from minikv.kernels.gpu import launches as launching
from minikv.kernels.gpu.common import Device
from minikv.kernels.gpu.configs import attention_config
from minikv.kernels.gpu.launches import attention_launches
from minikv.kernels.occupancy import SPLIT_WAVES, Schedule, makespan, splits_of
from tests.kernels.dense import dense, make_case
from tests.kernels.test_attention import absorbed, latent_case
from tests.kernels.test_attention_gpu import DEVICE, SMALL, agree, run


@pytest.fixture(autouse=True)
def plans_of_its_own():
    """Plans made with other constants are not for other tests."""
    launching.plan_of.cache_clear()
    yield
    launching.plan_of.cache_clear()


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
    splits, least, batch, wave = launch.arguments[-4:]
    assert batch == len(lengths)
    config = attention_config(90, DIM, DIM, 2, 1, GROUP)
    tiles = [-(-length // config.block_n) for length in lengths]
    own = splits_of(tiles, splits, wave, least)
    sizes = {
        "block_m": config.block_m,
        "block_n": config.block_n,
        "slots": config.per_sm * H200.multiprocessors,
    }
    spare = launch.grid[0] - KV_HEADS * sum(own)
    found = makespan(lengths, 1, kv_heads=KV_HEADS, group=GROUP, splits=own, spare=spare, **sizes)
    assert found.programs == launch.grid[0]
    return found


# The share of the best time that was reached.
REACHED = {
    "B1 4K": 0.95, "B1 32K": 0.95, "B1 128K": 0.95, "B8 4K": 0.95, "B32 4K": 0.95, "B32 32K": 0.95, "B64 4K": 0.95,
    "B128 2K": 0.95, "B32 skewed to 32K": 0.95,
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_decode_ends_about_when_equal_shares_would(shape):
    found = decode(shape.lengths)
    assert found.efficiency >= REACHED[shape.name]
    assert found.part_bytes <= 0.05 * sum(shape.lengths) * KV_HEADS * DIM * 4


# Batch and length, and the share reached where a program without work takes as long as a tile. 1,024 tokens alone are
# 128 tiles for 264 slots. From 2 to 16 short sequences make fewer splits than are launched for, of which the lengths on
# the device alone know (docs/internal/kernels.md).
WIDE = {
    (1, 1024): 0.48, (1, 2048): 0.95, (1, 4096): 0.95, (4, 2048): 0.55, (8, 1024): 0.48, (12, 2048): 0.83,
    (16, 1024): 0.70, (24, 2048): 0.89, (32, 1024): 0.91, (40, 2048): 0.95, (64, 1024): 0.91, (64, 4096): 0.95,
    (256, 1024): 0.95,
}  # fmt: skip


@pytest.mark.parametrize(("batch", "length"), WIDE)
def test_short_sequences_in_a_wide_table_are_split_by_their_lengths(batch, length):
    """As a captured graph has them: its table is as wide as the longest sequence may become."""
    found = decode((length,) * batch, columns=8192)
    assert found.efficiency >= WIDE[batch, length]
    assert found.programs <= KV_HEADS * batch + SPLIT_WAVES * 2 * H200.multiprocessors
    assert batch == 1 or found.part_bytes <= 0.02 * batch * length * KV_HEADS * DIM * 4


@pytest.mark.parametrize("prompt", [2048, 4096, 8192])
def test_a_causal_prefill_ends_about_when_equal_shares_would(prompt):
    for capability, multiprocessors in ((80, 108), (90, 132)):
        config = attention_config(capability, DIM, DIM, 2, prompt, GROUP)
        slots = config.per_sm * multiprocessors
        sizes = {"block_m": config.block_m, "block_n": config.block_n, "slots": slots}
        assert makespan([prompt], prompt, kv_heads=KV_HEADS, group=GROUP, **sizes).efficiency >= 0.95


def windowed(lengths, window):
    """The tiles of keys that each sequence's query sees."""
    firsts = [0 if window is None else max(0, length - window) // SMALL.block_n for length in lengths]
    return [-(-length // SMALL.block_n) - first for length, first in zip(lengths, firsts, strict=True)]


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([70, 17, 0, 33], {}),
        ([70, 17, 0, 33], {"sinks": True}),
        ([200, 1, 16, 90], {"window": 40}),
        ([150] * 3, {"group": 20, "kv_heads": 1}),
        ([150], {"kv_heads": 1}),
        ([150], {"window": 40, "kv_heads": 1}),
        ([17, 3] * 70, {"kv_heads": 1, "group": 1}),  # more sequences than are read at a time
    ],
)
def test_sequences_of_a_batch_have_splits_of_their_own_length(monkeypatch, lengths, options):
    """Every result is dense attention's, and each sequence has as many parts as the rule says: others stay NaN."""
    monkeypatch.setattr(launching, "LEAST_OF_SPLIT", 32)
    monkeypatch.setattr(launching, "LONG_SPLIT", 16)
    case = make_case(lengths, queries=[1] * len(lengths), device=DEVICE, **{"group": 2, **options})
    six = Device(90, 6)
    launches, result = attention_launches(six, case.query, case.kv, config=SMALL, **case.options)
    programs, splits, least, _, wave = launches[0].arguments[-5:]
    parts, part_lse, _, spans = launches[0].arguments[10:14]
    assert splits > 1
    assert launches[0].grid == (programs * len(parts),)
    for x in (parts, part_lse, result.out, result.lse):
        x.fill_(float("nan"))
    for launch in launches:
        launch.run()
    out, lse, _ = dense(case)
    agree(result.out, out, case.query.dtype)
    torch.testing.assert_close(result.lse.double().cpu(), lse, rtol=1e-5, atol=1e-5)
    tiles = windowed(lengths, options.get("window"))
    own = splits_of(tiles, splits, wave, least)
    assert len(own) > 1 or own == splits_of(tiles, tiles[0], wave, least), "alone it has as many as it may"
    assert spans.tolist() == [[sum(own[:row]), count] for row, count in enumerate(own)]
    empty = torch.tensor(
        [length == 0 for length, count in zip(lengths, own, strict=True) for _ in range(count)]
    )
    made = part_lse[:, 0].cpu() > float("-inf")
    assert torch.equal(made[: len(empty)], ~empty)
    assert not made[len(empty) :].any()
    assert not parts[made].isnan().any()
    assert parts[~made].isnan().all()


@pytest.mark.parametrize("multiprocessors", [2, 6])
@pytest.mark.parametrize("name", ["drafts", "drafts in a window", "scores", "latents"])
def test_splits_of_other_kinds_of_step_are_dense_attention(monkeypatch, name, multiprocessors):
    """Rows of drafts, scores and latents, with NaN in every buffer before."""
    monkeypatch.setattr(launching, "LEAST_OF_SPLIT", 32)
    monkeypatch.setattr(launching, "LONG_SPLIT", 16)
    device, options = Device(90, multiprocessors), {}
    if name == "latents":
        case, rank = latent_case([70, 17, 0, 33], queries=[1] * 4, heads=20, device=DEVICE)
        query, options["q_rope"], wanted, scale = absorbed(case, rank)
        got = run(case, query=query, device=device, config=SMALL, **options, **scale)
    elif name == "scores":
        wanted = case = make_case([70, 17, 0, 33], queries=[1] * 4, group=2, device=DEVICE)
        got = run(case, device=device, config=SMALL, return_scores=True)
    else:
        window = 20 if name == "drafts in a window" else None
        wanted = case = make_case(
            [70, 17, 33, 5], queries=[3, 1, 5, 5], group=2, window=window, device=DEVICE
        )
        starts = {"query_starts": case.query_starts, "max_queries": 5}
        got = run(case, device=device, config=SMALL, **starts)
    out, lse, scores = dense(wanted)
    agree(got.out, out, case.query.dtype)
    torch.testing.assert_close(got.lse.double().cpu(), lse, rtol=1e-5, atol=1e-5)
    if got.scores is not None:
        agree(got.scores, scores[..., : got.scores.shape[-1]], case.query.dtype)
