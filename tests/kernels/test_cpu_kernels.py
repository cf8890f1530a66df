"""The C kernels of a CPU: dense attention and torch's norm, with any strides; plain torch without a compiler."""

import os
import shutil
import stat
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm as torch_norm

from minikv.kernels import PagedKV, c_library, cpu, paged_decode, paged_prefill, reference
from minikv.kernels.cpu import decode, norm
from tests.kernels.decoded import BLOCK, CLOSE, DIM, HEADS, KV_HEADS, LENGTHS, SINKS, Case, assert_dense

HAS_COMPILER = sys.platform == "linux" and shutil.which(os.environ.get("CC") or "cc") is not None
compiled_here = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here, or not Linux")


@pytest.fixture
def calls(monkeypatch):
    """Whether each decode ran in C, call by call."""
    made: list[bool] = []
    real = decode._kernel

    def told(*args):
        found = real(*args)
        made.append(found is not None)
        return found

    monkeypatch.setattr(decode, "_kernel", told)
    return made


@compiled_here
@pytest.mark.parametrize("window", [None, 1, 5, 11, 35, 100])
@pytest.mark.parametrize(
    "more", [{}, {"softcap": 0.7}, {"sinks": SINKS}, {"softcap": 2.0, "sinks": SINKS}], ids=str
)
@pytest.mark.parametrize("threads", [1, 2])
def test_out_and_lse_are_those_of_dense_attention(window, more, threads, calls):
    case, before = Case([*LENGTHS, 90]), torch.get_num_threads()
    options = {"scale": 0.4, "window": window, **more}
    torch.set_num_threads(threads)
    try:
        found = paged_decode(case.query, case.kv(), return_lse=True, **options)
    finally:
        torch.set_num_threads(before)
    assert calls == [True]
    assert_dense(case, found, **options)


@compiled_here
@pytest.mark.parametrize(
    "layout",
    ["k beside v in a block", "k beside v in a token", "heads before tokens", "padded rows", "int64"],
)
def test_pages_and_tables_of_any_strides_are_read_where_they_lie(layout, calls):
    case = Case([13, 40, 7])
    k, v = case.k, case.v
    if layout == "k beside v in a block":
        case.k, case.v = torch.stack([k, v], 1).unbind(1)
    elif layout == "k beside v in a token":
        case.k, case.v = torch.cat([k, v], 2).split(KV_HEADS, 2)
    elif layout == "heads before tokens":
        case.k, case.v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (k, v))
    elif layout == "padded rows":
        wide = [torch.cat([each, each[..., :3]], 3) for each in (k, v)]
        case.k, case.v = (each[..., :DIM] for each in wide)
    else:  # a table that is a piece of a wider one
        case.tables = torch.cat([case.tables.long()] * 2, 1)[:, : case.tables.shape[1]]
    kv = case.kv()
    assert_dense(case, paged_decode(case.query, kv, scale=0.4), scale=0.4)
    assert calls == [True]


@compiled_here
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "v_dim"), [(1, 1, 5, 3), (71, 1, 64, 64), (48, 24, 20, 36)]
)
def test_heads_of_any_shape_and_number(heads, kv_heads, dim, v_dim, calls):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([1, 33, 70])
    tables = torch.randperm(24, generator=generator).view(3, 8)
    k, v = (torch.randn(24, 9, kv_heads, size, generator=generator) for size in (dim, v_dim))
    query = torch.randn(3, heads, dim, generator=generator)
    found = paged_decode(query, kv := PagedKV(k, v, tables, lengths), scale=0.3, return_lse=True)
    assert calls == [True]
    plain = decode.attention.paged_decode(query, kv, scale=0.3, return_lse=True)
    torch.testing.assert_close(found.out, plain.out, **CLOSE)
    torch.testing.assert_close(found.lse, plain.lse, **CLOSE)


@compiled_here
def test_what_lies_behind_a_window_is_not_read(calls):
    case = Case([40, 17, 90])
    kv = case.kv()
    for row, length in enumerate(case.lengths):
        kv.block_tables[row, : (length - 9) // BLOCK] = -1
    assert_dense(case, paged_decode(case.query, kv, scale=0.4, window=9), scale=0.4, window=9)
    assert calls == [True]


@compiled_here
def test_a_token_that_is_not_a_number_is_told_and_a_sink_may_weigh_nothing(calls):
    case = Case([13, 5])
    sinks = torch.full((HEADS,), -torch.inf)
    assert_dense(case, paged_decode(case.query, case.kv(), scale=0.4, sinks=sinks), scale=0.4)
    case.k[case.tables[0, 0], 1] = torch.nan
    found = paged_decode(case.query, case.kv(), scale=0.4, return_lse=True)
    assert found.out[0].isnan().all()
    assert found.lse[0].isnan().all()
    assert not found.out[1].isnan().any()
    assert calls == [True, True]


@compiled_here
@pytest.mark.parametrize("changed", ["dtype", "device"])
def test_torchs_defaults_do_not_matter(changed, calls):
    case = Case(LENGTHS)
    kv, weight = case.kv(), torch.ones(DIM)
    decode._compiled.cache_clear()
    try:
        if changed == "dtype":
            torch.set_default_dtype(torch.bfloat16)
        else:
            torch.set_default_device("meta")
        found = paged_decode(case.query, kv, scale=0.4, return_lse=True)
        normed = norm.rms_norm(case.query, weight, 1e-6)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        decode._compiled.cache_clear()
    assert calls == [True]
    assert_dense(case, found, scale=0.4)
    assert normed.dtype == torch.float32


@compiled_here
def test_large_and_equal_logits_neither_overflow_nor_vanish(calls):
    case = Case([40, 1, 17])
    case.query *= 300
    assert_dense(case, paged_decode(case.query, case.kv(), scale=1.0, return_lse=True), scale=1.0)
    case.query *= 0
    assert_dense(case, paged_decode(case.query, case.kv(), scale=1.0, return_lse=True), scale=1.0)
    assert calls == [True, True]


@compiled_here
def test_prompts_query_by_query_are_as_in_plain_torch(monkeypatch, calls):
    case = Case([13, 9, 12, 40, 11])
    starts = torch.tensor([0, 13, 14, 18, 48, 50])
    query = torch.randn(50, HEADS, DIM, generator=torch.Generator().manual_seed(8))
    found = []
    for short in (128, 12, 0):
        monkeypatch.setattr(decode, "SHORT", short)
        found.append(paged_prefill(query, case.kv(), starts, max_queries=30, scale=0.4, window=7).out)
    assert len(calls) >= 3
    assert all(calls)
    monkeypatch.setenv("MINIKV_KERNELS", "reference")
    plain = paged_prefill(query, case.kv(), starts, max_queries=30, scale=0.4, window=7).out
    for each in found:
        torch.testing.assert_close(each, plain, **CLOSE)


@compiled_here
def test_what_is_not_compiled_goes_to_plain_torch(calls):
    case = Case(LENGTHS)
    found = paged_decode(case.query, case.kv(), scale=0.4, return_scores=True)
    assert_dense(case, found, scale=0.4)
    assert calls == []
    case = Case(LENGTHS, torch.bfloat16)
    paged_decode(case.query, case.kv(), scale=0.4)
    assert calls == [False]


@compiled_here
@pytest.mark.parametrize(
    "failing", ["no compiler", "it fails", "no folder", "a library that is not one", "wrong results"]
)
def test_where_nothing_can_be_compiled_plain_torch_serves(failing, monkeypatch, tmp_path, calls):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = False
    if failing == "no compiler":
        monkeypatch.setenv("CC", "no-such-compiler")
    elif failing == "it fails":
        monkeypatch.setattr(c_library, "FLAGS", ("--no-such-option",))
    elif failing == "no folder":  # compiled, but for this process alone
        (tmp_path / "minikv").write_text("a file where a folder should be")
        runs = True
    elif failing == "a library that is not one":

        def empty(command, **options):
            open(command[command.index("-o") + 1], "w").close()

        monkeypatch.setattr(subprocess, "run", empty)
    else:
        monkeypatch.setattr(decode, "WITHIN", 0.0)
    for remembered in (c_library.find_compiler, decode._compiled, norm._compiled):
        remembered.cache_clear()
    try:
        case = Case(LENGTHS)
        assert_dense(case, paged_decode(case.query, case.kv(), scale=0.4), scale=0.4)
        assert calls == [runs]
        rows = torch.linspace(-2, 3, 24).view(3, 8)
        served = norm.rms_norm(rows, torch.ones(8), 1e-6) is not None
        assert served == (failing in ("no folder", "wrong results"))
    finally:
        monkeypatch.undo()
        for remembered in (c_library.find_compiler, decode._compiled, norm._compiled):
            remembered.cache_clear()


@compiled_here
def test_a_library_is_compiled_once_and_kept_for_this_user_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    real = subprocess.run

    def told(command, **options):
        made.append(command)
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", told)
    source = decode.SOURCE.parent / "rms_norm.c"
    assert c_library.load(source) is not None
    assert c_library.load(source) is not None
    assert len(made) == 2  # compiled, linked
    folder = tmp_path / "minikv" / "kernels"
    assert [each.suffix for each in folder.iterdir()] == [".so"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (kept,) = folder.iterdir()
    for path in (kept, folder, folder.parent):  # others may have written it
        before = path.stat().st_mode
        path.chmod(0o777)
        made.clear()
        assert c_library.load(source) is not None
        assert len(made) == 2
        path.chmod(before)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cut"))
    (tmp_path / "cut/minikv/kernels").mkdir(mode=0o700, parents=True)
    cut = tmp_path / "cut/minikv/kernels" / kept.name
    cut.touch(0o600)
    made.clear()
    assert c_library.load(source) is not None  # compiled anew
    assert len(made) == 2
    assert cut.stat().st_size > 0
    monkeypatch.setenv("CC", "cc -g")  # a compiler with an option
    c_library.find_compiler.cache_clear()
    made.clear()
    assert c_library.load(source) is not None
    assert [command[1] for command in made] == ["-g", "-g"]
    c_library.find_compiler.cache_clear()


@compiled_here
@pytest.mark.parametrize("tokens", [0, 1, 7, 700])
@pytest.mark.parametrize("layout", ["tokens first", "heads first", "k beside v"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tokens_are_stored_as_by_plain_torch(tokens, layout, dtype):
    generator = torch.Generator().manual_seed(2)
    key, value = (
        torch.randn(KV_HEADS, tokens, size, generator=generator).transpose(0, 1) for size in (DIM, 6)
    )
    if layout == "tokens first":
        key, value = key.contiguous(), value.contiguous()
    found, expected = (_pools(layout) for _ in range(2))
    slots = torch.randperm(240 * BLOCK, generator=generator)[:tokens].to(dtype)
    slots[1:2] = -1
    cpu.store_kv(key, value, *found, slots)
    reference.store_kv(key, value, *expected, slots)
    for ours, right in zip(found, expected, strict=True):
        assert torch.equal(ours, right)


def _pools(layout: str) -> list[Tensor]:
    if layout == "k beside v":
        return list(torch.zeros(240, BLOCK, KV_HEADS, DIM + 6).split((DIM, 6), 3))
    return [torch.zeros(240, BLOCK, KV_HEADS, size) for size in (DIM, 6)]


@compiled_here
def test_a_slot_past_the_end_is_torchs_own_error():
    caches = _pools("tokens first")
    key, value = torch.ones(2, KV_HEADS, DIM), torch.ones(2, KV_HEADS, 6)
    with pytest.raises(IndexError):
        cpu.store_kv(key, value, *caches, torch.tensor([3, 240 * BLOCK]))
    with pytest.raises((IndexError, RuntimeError)):  # fewer tokens than slots: none is read from beside them
        cpu.store_kv(key[:1], value[:1], *caches, torch.tensor([3, 5]))
    with pytest.raises((IndexError, RuntimeError)):  # a head too few
        cpu.store_kv(key[:, :1], value[:, :1], *caches, torch.tensor([3, 5]))


@compiled_here
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 8, 64), (300, 512), (0, 16)])
def test_a_norm_is_that_of_torch(shape, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    rows, weight = torch.randn(shape, generator=generator), torch.randn(shape[-1], generator=generator)
    for scaled in (rows, rows * 1e-3, rows * 1e15):
        found = norm.rms_norm(scaled, weight, 1e-6)
        assert found is not None
        torch.testing.assert_close(found, torch_norm(scaled, shape[-1:], weight, 1e-6), atol=1e-5, rtol=1e-5)
    assert norm.rms_norm(rows.double(), weight, 1e-6) is None
    assert norm.rms_norm(rows, weight[1:], 1e-6) is None
    monkeypatch.setenv("MINIKV_KERNELS", "reference")
    assert norm.rms_norm(rows, weight, 1e-6) is None


def test_a_cpu_has_every_operation_of_the_reference():
    assert set(cpu.__all__) == set(reference.__all__)


def test_as_many_heads_are_a_task_as_leave_every_thread_some():
    for sequences, heads, group, threads in ((64, 4, 2, 2), (1, 8, 4, 2), (1, 1, 71, 16), (3, 12, 3, 2)):
        count = decode.heads_a_task(sequences, heads, group, threads)
        assert heads % count == 0
        assert count == 1 or count * group <= decode.ROWS
        assert count == 1 or sequences * heads // count >= decode.TASKS * threads
    assert decode.heads_a_task(64, 4, 2, 2) == 4
