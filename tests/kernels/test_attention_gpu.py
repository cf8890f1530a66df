"""The Triton attention kernels against dense attention in float64: interpreted on a CPU, compiled on a GPU.

Small tiles, so that few tokens make several of them: one cut by the length, one by the window, whole ones between.
What no query may read is NaN, and so is every output and buffer before the run.
"""

import itertools
from dataclasses import fields

import pytest
import torch

from minikv.kernels import PagedKV, paged_decode, reference
from minikv.kernels.gpu.common import Device, device_of
from minikv.kernels.gpu.configs import Config, choose_splits
from minikv.kernels.gpu.launches import attention_launches
from tests.kernels.dense import Case, dense, make_case
from tests.kernels.test_attention import absorbed, latent_case
from tests.longer import usual_if

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Without a GPU the interpreter runs them; with one they are what `python -m tools.gpu` runs.
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
SMALL = Config(16, 16, 4, 1)
HOPPER = Device(90, 8)
# The interpreter truncates float32 to bfloat16: one unit in the last place more than rounding.
CLOSE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
LENGTHS = [1, 15, 16, 17, 48, 70]
# A tile that is cut, and whole ones: for what has nothing to do with where a text is cut.
FEW = {"lengths": [17, 48], "group": 2}
DECODES = {
    "one split": {"splits": 1, "lengths": LENGTHS},
    "splits": {"splits": 3, "lengths": LENGTHS},
    "more splits than tiles": {"splits": 8, "lengths": [1, 20, 0, 33]},
    "multi-head": {"group": 1, "kv_heads": 3, "splits": 2},
    "multi-query": {"group": 8, "kv_heads": 1, "splits": 2},
    "more rows than a tile": {"group": 20, "kv_heads": 1, "splits": 2, "lengths": [5, 40]},
    "block of 8": {"block_size": 8, "splits": 2},
    "block of 32": {"block_size": 32, "splits": 2},
    "block of 256": {"block_size": 256, "splits": 2},
    "block of 7": {"block_size": 7, "splits": 2},
    "block of 1": {"block_size": 1, "splits": 1, "lengths": [3, 18]},
    "int64": {"index_dtype": torch.int64, "splits": 2},
    "head of 80": {"dims": (80, 80), "splits": 2},
    "head of 96": {"dims": (96, 96), "splits": 1},
    "192 and 128": {"dims": (192, 128), "splits": 2, "lengths": [17, 40]},
    "head of 256": {"dims": (256, 256), "splits": 1, "lengths": [17, 40]},
    "576 and 512": {"dims": (576, 512), "splits": 1, "lengths": [17]},
    "wide": {"dims": (64, 32), "wide": True, "splits": 2},
    "window": {"lengths": LENGTHS, "window": 20, "splits": 2},
    "window of one": {"lengths": LENGTHS, "window": 1, "splits": 1},
    "window of a tile": {"lengths": [16, 17, 70], "window": 16, "splits": 3},
    "window of all": {"window": 1000, "splits": 2},
    "softcap": {"softcap": 2.0, "sharpness": 4.0, "splits": 2},
    "sinks": {"sinks": True, "splits": 1},
    "sinks and splits": {"lengths": [1, 48], "sinks": True, "splits": 3},
    "all": {"lengths": [17, 70], "window": 33, "softcap": 5.0, "sinks": True, "sharpness": 3.0, "splits": 2},
    "large logits": {"sharpness": 1000.0, "splits": 2, "lengths": [40]},
    "rows as they are": {"group": 4, "config": Config(4, 16, 4, 1), "splits": 2},
    "float16": {"dtype": torch.float16, "splits": 2},
    "bfloat16": {"dtype": torch.bfloat16, "splits": 2},
    "fp8 e4m3": {"dtype": torch.float16, "stored": torch.float8_e4m3fn, "splits": 2},
    "fp8 e5m2": {"dtype": torch.bfloat16, "stored": torch.float8_e5m2, "splits": 2},
    "fp8_scaled": {
        "dtype": torch.bfloat16,
        "stored": torch.float8_e4m3fn,
        "scaled": True,
        "window": 30,
        "splits": 2,
    },
    "int8": {"dtype": torch.float16, "stored": torch.int8, "scaled": True, "splits": 2},
}
PREFILLS = {
    "whole": {"queries": [1, 15, 16, 17, 30], "lengths": [1, 15, 16, 17, 30]},
    "chunks": {"queries": [1, 5, 1, 17], "lengths": [20, 21, 33, 40]},
    "one has none": {"queries": [3, 0, 18], "lengths": [3, 20, 34]},
    "group of 1": {"queries": [9, 20], "lengths": [9, 50], "group": 1},
    "group of 3": {"queries": [9, 20], "lengths": [9, 50], "group": 3},
    "window": {"queries": [9, 20], "lengths": [29, 50], "window": 12},
    "window of one": {"queries": [9, 20], "lengths": [29, 50], "window": 1},
    "window and splits": {"queries": [4, 9], "lengths": [40, 60], "window": 21, "splits": 2},
    "all": {
        "queries": [9, 20],
        "lengths": [29, 50],
        "window": 18,
        "softcap": 4.0,
        "sinks": True,
        "splits": 2,
    },
    "block of 7": {"queries": [9, 12], "lengths": [9, 40], "block_size": 7},
    "int8": {"queries": [9, 12], "lengths": [9, 40], "stored": torch.int8, "scaled": True},
    "bfloat16": {"queries": [9, 12], "lengths": [9, 40], "dtype": torch.bfloat16},
}


def run(case: Case, *, query=None, device: Device = HOPPER, **options):
    """What the launches compute, with NaN, or -1 for whole numbers, in every buffer before them."""
    query = case.query if query is None else query
    kv = case.kv
    launches, result = attention_launches(device, query, kv, **{**case.options, **options})
    read = (getattr(kv, each.name) for each in fields(kv))
    inputs = {id(x) for x in (query, *read, *case.options.values(), *options.values())}
    for launch in launches:
        for x in launch.arguments:
            if isinstance(x, torch.Tensor) and id(x) not in inputs:
                x.fill_(float("nan") if x.is_floating_point() else -1)
    for launch in launches:
        launch.run()
    return result


def agree(got, want, dtype):
    torch.testing.assert_close(got.double().cpu(), want, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("name", DECODES)
def test_decode_is_dense_attention(name):
    made = {**(FEW if "lengths" not in DECODES[name] else {}), "config": SMALL, **DECODES[name]}
    chosen = {key: made.pop(key) for key in ("splits", "config")}
    lengths = made.pop("lengths")
    case = make_case(lengths, queries=[1] * len(lengths), device=DEVICE, **made)
    got = run(case, return_scores=True, **chosen)
    out, lse, scores = dense(case)
    dtype = case.query.dtype
    sharp = 500 if name == "large logits" else 1
    agree(got.out, out, dtype) if sharp == 1 else torch.testing.assert_close(
        got.out.double().cpu(), out, rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(got.lse.double().cpu(), lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.scores.double().cpu(), scores, rtol=1e-5 * sharp, atol=2e-6 * sharp)


@pytest.mark.parametrize("name", PREFILLS)
def test_prefill_is_dense_attention(name):
    made = {"splits": 1, **PREFILLS[name]}
    splits, lengths = made.pop("splits"), made.pop("lengths")
    case = make_case(lengths, device=DEVICE, kv_heads=1, **made)
    got = run(
        case,
        query_starts=case.query_starts,
        max_queries=case.max_queries,
        splits=splits,
        config=Config(32, 16, 4, 1),
    )
    out, lse, _ = dense(case)
    agree(got.out, out, case.query.dtype)
    torch.testing.assert_close(got.lse.double().cpu(), lse, rtol=1e-5, atol=1e-5)


# Each pair of two of them once.
LATENTS = [(None, None, 1), (None, 20, 2), ([1, 3, 9], None, 2), ([1, 3, 9], 20, 1)]


@pytest.mark.parametrize(
    ("queries", "window", "splits"),
    usual_if(LATENTS.__contains__, itertools.product((None, [1, 3, 9]), (None, 20), (1, 2))),
)
def test_latents_are_dense_attention_over_latents(queries, window, splits):
    case, rank = latent_case([1, 33, 50], queries=queries, window=window, device=DEVICE)
    q_latent, q_rope, as_dense, options = absorbed(case, rank)
    more = {} if queries is None else dict(query_starts=case.query_starts, max_queries=9)
    case.options = options
    got = run(
        case, query=q_latent.to(DEVICE), q_rope=q_rope.to(DEVICE), return_scores=queries is None, splits=splits,
        config=SMALL, **more,
    )  # fmt: skip
    out, lse, scores = dense(as_dense)
    agree(got.out, out, torch.float32)
    torch.testing.assert_close(got.lse.double().cpu(), lse, rtol=1e-5, atol=1e-5)
    if got.scores is not None:
        torch.testing.assert_close(got.scores.double().cpu(), scores, rtol=1e-5, atol=1e-5)


def test_a_latent_of_512_and_a_rope_of_64():
    case, rank = latent_case([20, 40], heads=4, rank=512, rope=64, device=DEVICE)
    q_latent, q_rope, as_dense, options = absorbed(case, rank, rope=64)
    case.options = options
    got = run(case, query=q_latent.to(DEVICE), q_rope=q_rope.to(DEVICE), splits=1, config=SMALL)
    agree(got.out, dense(as_dense)[0], torch.float32)


def test_the_public_operation_runs_the_kernel(monkeypatch):
    """By the dispatcher, with what the table chooses; and every name of the reference has its kernel."""
    from minikv.kernels import gpu
    from minikv.kernels.dispatch import implementation

    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    assert implementation(torch.device(DEVICE)) is gpu
    case = make_case(LENGTHS, device=DEVICE)
    got = paged_decode(case.query, case.kv, **case.options, return_lse=True)
    want = reference.paged_decode(case.query, case.kv, **case.options, return_lse=True)
    torch.testing.assert_close(got.out, want.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.lse, want.lse, rtol=1e-5, atol=1e-6)
    assert {name for name in reference.__all__ if not hasattr(gpu, name)} == set()


@pytest.mark.parametrize(
    ("programs", "tiles", "multiprocessors", "expected"),
    [
        (132, 100, 132, 1),
        (106, 100, 132, 1),
        (8, 64, 132, 15),
        (8, 4, 132, 4),
        (1, 1000, 132, 64),
        (64, 512, 132, 2),
    ],
)
def test_splits_fill_the_gpu(programs, tiles, multiprocessors, expected):
    assert choose_splits(programs, tiles, multiprocessors) == expected


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("seed", range(12))
def test_large_random_cases_compiled(seed):
    """Against the reference, with the table's own tiles and splits, three times over: the same bits each time."""
    draw = torch.Generator().manual_seed(seed)

    def pick(*options):
        return options[int(torch.randint(len(options), (1,), generator=draw))]

    lengths = torch.randint(1, 9000, (pick(1, 3, 17),), generator=draw).tolist()
    if seed == 0:
        lengths.append(2**17 + 5)
    decode = bool(seed % 2)
    queries = None if decode else [min(length, pick(1, 37, 300)) for length in lengths]
    dtype = pick(torch.float16, torch.bfloat16)
    stored = pick(None, None, torch.float8_e4m3fn, torch.float8_e5m2)
    if torch.cuda.get_device_capability() < (8, 9) and stored == torch.float8_e4m3fn:
        stored = None
    case = make_case(
        lengths, queries=queries, kv_heads=pick(1, 2, 8), group=pick(1, 4, 7, 8),
        dims=pick((64, 64), (128, 128), (192, 128)), block_size=pick(8, 16, 64, 256), dtype=dtype, stored=stored,
        window=pick(None, None, 1000), sinks=pick(True, False), softcap=pick(None, 30.0), seed=seed, device=DEVICE,
    )  # fmt: skip
    more = {"return_scores": decode}
    if not decode:
        more.update(query_starts=case.query_starts, max_queries=case.max_queries)
    device = device_of(case.query.device)
    results = [run(case, device=device, **more) for _ in range(3)]
    given = (case.query, case.kv)
    if decode:
        want = reference.paged_decode(*given, **case.options, return_lse=True, return_scores=True)
    else:
        rows = {"query_starts": case.query_starts, "max_queries": case.max_queries}
        want = reference.paged_prefill(*given, **rows, **case.options, return_lse=True)
    for got in results:
        torch.testing.assert_close(got.out, want.out, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(got.lse, want.lse, rtol=1e-3, atol=1e-3)
        assert torch.equal(got.out, results[0].out)
        if decode:
            torch.testing.assert_close(got.scores, want.scores, rtol=1e-2, atol=1e-3)
            assert torch.equal(got.scores, results[0].scores)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_pool_of_more_than_two_to_the_31_elements():
    block_size, heads, dim = 16, 8, 128
    blocks = 2**31 // (block_size * heads * dim) + 64
    shape = (blocks, block_size, heads, dim)
    k, v = (torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    table = torch.arange(blocks - 8, blocks, dtype=torch.int32, device=DEVICE).view(1, -1)
    k[-8:].normal_()
    v[-8:].normal_()
    query = torch.randn(1, 32, dim, dtype=torch.bfloat16, device=DEVICE)
    lengths = torch.tensor([120], dtype=torch.int32, device=DEVICE)
    got = paged_decode(query, PagedKV(k, v, table, lengths), scale=dim**-0.5).out
    alone = PagedKV(k[-8:], v[-8:], table - (blocks - 8), lengths)
    want = reference.paged_decode(query, alone, scale=dim**-0.5).out
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
