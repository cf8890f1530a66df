"""The kernels' benchmark at tiny sizes, on the CPU: it compares equals, refuses wrong results, and can say no."""

import math
from types import SimpleNamespace

import pytest
import torch

from benchmarks import kernels, kernels_decode, kernels_others
from benchmarks.kernels_cases import LLAMA_8B, Heads, Shape, batch, paged, skewed
from benchmarks.kernels_cpu import STORED, cpu_rows
from benchmarks.kernels_timing import DisagreementError, Stopwatch, agree, copy_rate, matmul_rate
from minikv.kernels import gather

CPU = torch.device("cpu")
UNEVEN = Shape("uneven", (7, 80, 33))


@pytest.fixture
def watch(monkeypatch):
    for module in (kernels_decode, kernels_others):
        monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(kernels_decode, "copy_rate", lambda watch: copy_rate(watch, 10**6))
    monkeypatch.setattr(kernels_others, "matmul_rate", lambda watch: matmul_rate(watch, 64))
    return Stopwatch(CPU)


@pytest.mark.parametrize("shape", [batch(1, 50), batch(3, 32), UNEVEN], ids=lambda shape: shape.name)
def test_a_case_holds_the_same_tokens_either_way(shape):
    case = paged(shape, Heads(4, 2, 8), 16, torch.float32, CPU)
    keys, values = case.contiguous()
    for cache, lying in ((case.kv.k, keys), (case.kv.v, values)):
        for row, length in enumerate(shape.lengths):
            assert torch.equal(
                gather(cache, case.kv.block_tables[row], length), lying[row, :, :length].transpose(0, 1)
            )
    used = torch.cat([case.kv.block_tables[row, : -(-n // 16)] for row, n in enumerate(shape.lengths)])
    assert used.sort().values.tolist() == list(range(len(case.kv.k)))


def test_skewed_lengths_fall_from_the_longest():
    shape = skewed(32, 32768)
    assert shape.lengths[0] == 32768
    assert shape.lengths == tuple(sorted(shape.lengths, reverse=True))
    assert min(shape.lengths) == 256
    assert not shape.uniform


@pytest.mark.parametrize("shape", [batch(1, 64), batch(2, 64), UNEVEN], ids=lambda shape: shape.name)
def test_every_peer_computes_what_we_do(watch, shape):
    pytest.importorskip("transformers")
    runs, skipped = kernels_decode.decode_runs(watch, shape, LLAMA_8B)
    assert skipped == {}
    assert len(runs) == 6
    expected = runs["page 16"][0]()
    for name, calls in runs.items():
        if name != "page 64":  # other random tokens
            agree(name, calls[0](), expected)


def test_a_peer_that_cannot_run_or_errs_is_left_out_with_the_reason(watch, monkeypatch):
    peers = kernels_decode.peers

    def absent(case):
        raise peers.NotHereError("not installed")

    monkeypatch.setattr(peers, "transformers_paged", absent)
    monkeypatch.setattr(peers, "flex", lambda case, keys, values, compiled: lambda: case.query * 0)
    runs, skipped = kernels_decode.decode_runs(watch, batch(1, 64), LLAMA_8B)
    assert "not installed" in skipped["transformers"]
    assert "FlexAttention: off by" in skipped["FlexAttention"]
    assert set(runs) == {"page 16", "page 64", "SDPA, enable_gqa", "SDPA, packed"}


def test_wrong_results_of_ours_end_the_benchmark(watch, monkeypatch):
    def wrong(case, **options):
        return lambda: case.query * float("nan")

    monkeypatch.setattr(kernels_decode, "decode", wrong)
    with pytest.raises(DisagreementError, match="page 16"):
        list(kernels_decode.own_rows(watch, True, (batch(1, 64),)))


def test_every_section_says_its_claims(watch):
    small = batch(2, 48)
    told = [
        *kernels_decode.own_rows(watch, True, (small,)),
        *kernels_decode.peer_rows(watch, True, (small,)),
        *kernels_decode.variant_rows(watch, True, small),
        *kernels_others.prefill_rows(watch, ((32, 32), (16, 48))),
        *kernels_others.latent_rows(watch, ((1, 32, 4), (2, 48, 16))),
        *kernels_others.expanded_rows(watch, ((16, 48, 2),)),
        *kernels_others.storage_rows(watch, True, 64),
    ]
    assert len(told) == 2 + 2 + 3 + 4 + 4 + 1 + 2
    for row in told:
        assert row.ours > 0
        assert math.isfinite(row.ratio)


def test_the_way_that_is_chosen_for_latents_is_the_one_that_has_to_be_faster(watch, monkeypatch):
    """On a CPU that is the absorbed one, whatever it costs; on a GPU as ``expanding_pays`` says."""
    seconds = {"expanded": 1e-6, "absorbed": 3e-6}
    monkeypatch.setattr(watch, "compare", lambda runs, rounds: {name: seconds[name] for name in runs})
    for pays, ours, holds in ((False, 3, False), (True, 1, True)):
        monkeypatch.setattr(kernels_others, "expanding_pays", lambda *given, pays=pays: pays)
        (row,) = kernels_others.expanded_rows(watch, ((4, 16, 1),))
        assert (round(row.ours), row.holds) == (ours, holds)


def test_a_goal_is_a_comparison():
    bounds = kernels_decode.Bounds(1e9, None)
    assert kernels_decode.of_copy("x", 850, 1e-6, 0.85, bounds).holds
    assert not kernels_decode.of_copy("x", 849, 1e-6, 0.85, bounds).holds
    seconds = {"page 16": 2e-6, "SDPA, packed": 3e-6, "FlexAttention": 1.9e-6}
    row = kernels_decode.peer_row(batch(8, 512), 16, seconds, {"transformers": "skipped: x"}, bounds)
    assert (row.peer_name, row.holds) == ("FlexAttention", False)
    assert row.details["transformers"] == "skipped: x"

    def own(shape, us):
        return kernels_decode.own_row(shape, 16, 1e-6 * us, bounds, {"first call, s": 3.5})

    assert own(batch(1, 4096), 11).holds
    assert not own(batch(1, 4096), 13).holds
    assert "85%" in own(batch(32, 4096), 2).goal
    assert "75%" in own(batch(8, 4096), 2).goal
    assert own(batch(8, 512), 2).details["first call, s"] == 3.5


def test_the_cpu_rows_name_both_peers(watch, monkeypatch):
    monkeypatch.setattr("benchmarks.kernels_cpu.QUICK", (batch(2, 40),))
    told = list(cpu_rows(watch, True))
    assert [row.goal for row in told] == ["faster", "within 3x"] * 2 + ["faster"] * (len(STORED) + 1)
    assert all("copy" in row.peer_name for row in told)


LINE = dict(
    operation="decode", capability=90, stack=0, shared_bytes=1024, tensor_cores=1, async_copies=1, num_stages=3,
    narrow_loads=0,
)  # fmt: skip


@pytest.mark.parametrize("quick", [True, False])
def test_every_section_is_made_of_steps_and_ours_are_measured_before_any_peer(watch, quick):
    """A cut run keeps the steps that ended, by their names; what compiles for long comes last."""
    steps = {name: [step.name for step in kernels.section(name, watch, quick)] for name in kernels.ON_GPU}
    assert all(len(set(names)) == len(names) >= 1 for names in steps.values())
    peers = [name.endswith("peers") for name in steps["decode"]]
    assert peers == sorted(peers)
    assert {name.removesuffix(", peers") for name in steps["decode"]} == {
        f"decode, {shape.name}" for shape in (kernels_decode.QUICK if quick else kernels_decode.SHAPES)
    }


@pytest.mark.parametrize(
    "fault",
    [
        {"stack": 8},
        {"shared_bytes": 228 * 1024},
        {"tensor_cores": 0},
        {"async_copies": 0},
        {"narrow_loads": 3},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_line_of_the_table_can_break_one_claim(fault):
    kernels_compiled = pytest.importorskip("benchmarks.kernels_compiled", exc_type=ImportError)
    assert all(row.holds for row in kernels_compiled.claims([LINE, LINE]))
    broken = [row for row in kernels_compiled.claims([LINE, LINE | fault]) if not row.holds]
    assert len(broken) == 1
    assert (broken[0].ours, broken[0].details["which"]) == (1, ["sm_90 decode"])
    old = {"capability": 75, "operation": "decode", "tensor_cores": 0, "async_copies": 0, "narrow_loads": 1}
    assert all(row.holds for row in kernels_compiled.claims([LINE, LINE | old]))


def test_a_sweep_begins_with_the_table_and_tries_nothing_twice():
    kernels_sweep = pytest.importorskip("benchmarks.kernels_sweep", exc_type=ImportError)
    from minikv.kernels.gpu.common import Device

    case = paged(batch(1, 4096), LLAMA_8B, 16, torch.bfloat16, CPU)
    sweep = kernels_sweep.Sweep("decode", Device(90, 132), case.query, case.kv, {"scale": 0.1})
    tried = list(kernels_sweep.candidates(sweep, False))
    assert tried[0] == (sweep.table_config(), None)
    assert len(tried) == len(set(tried))
    assert len(tried) > len(list(kernels_sweep.candidates(sweep, True))) > 3
    splits = [splits for config, splits in tried if splits is not None]
    assert splits
    assert sweep.splits_of(sweep.table_config()) not in splits


def test_the_sweeps_of_the_gpus_hour_are_those_of_decode_at_b1_and_b8_and_of_mla(monkeypatch):
    """By the names that python -m tools.gpu asks for: a name that nothing has would run nothing, and say nothing."""
    kernels_sweep = pytest.importorskip("benchmarks.kernels_sweep", exc_type=ImportError)
    names = (
        "decode, B1 4096",
        "decode, B1 4K",
        "decode, B8 4K",
        "decode, B32 4K",
        "prefill",
        "latent decode, B32",
    )
    assert set(kernels.GPU_PARTS["sweep"][1:]) == {"decode, B1 4K", "decode, B8 4K", "latent decode"}
    made = [SimpleNamespace(name=name) for name in names]
    monkeypatch.setattr(kernels_sweep, "sweeps", lambda watch, quick: made)
    steps = list(kernels_sweep.sweep_steps(None, False, kernels.GPU_PARTS["sweep"][1:]))
    assert [step.name for step in steps] == [f"sweep, {names[place]}" for place in (1, 2, 5)]
    assert len(list(kernels_sweep.sweep_steps(None, False, []))) == len(names)
    real = [f"decode, {shape.name}" for shape in kernels_sweep.DECODES]
    assert {"decode, B1 4K", "decode, B8 4K"} <= set(real)
