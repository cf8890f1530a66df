"""Lesson 10: its kernels agree with the package, and move the bytes that the lesson counts."""

import random

import pytest
import torch

from minikv.course.lessons.l10 import measure as measure_10
from minikv.course.lessons.l10.bytes_moved import STEPS, Shape, floor, moved
from minikv.course.lessons.l10.launch import Paged, package_splits, paged, prepare, run_splits, run_store
from minikv.course.lessons.l10.measure import BLOCKS, FLUSHED, _ways, measure, repeated, steps_gb_s
from minikv.errors import ArgumentError
from minikv.kernels import merge_splits, reference
from minikv.kernels.occupancy import bytes_under_way, little

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_the_store_kernel_stores_what_the_package_stores():
    ready()
    generator = torch.Generator().manual_seed(1)
    for block_size, heads, dim in ((4, 2, 8), (16, 1, 16), (8, 4, 2)):
        key = torch.randn(11, heads, dim, generator=generator).to(DEVICE)
        caches = [torch.zeros(6, block_size, heads, dim, device=DEVICE) for _ in "abc"]
        slots = torch.randperm(6 * block_size, generator=generator)[:11].to(DEVICE, torch.int32)
        slots[[2, 9]] = -1
        run_store(key, caches[0], slots)
        reference.store_kv(key, key, caches[1], caches[2], slots)
        assert torch.equal(caches[0], caches[1])


def some_case(rng: random.Random, **options) -> Paged:
    block_size = rng.choice([4, 8, 16])
    lengths = [
        max(1, block_size * rng.randint(0, 4) + rng.choice([-1, 0, 1])) for _ in range(rng.randint(1, 3))
    ]
    heads, group = rng.choice([(1, 2), (2, 4), (3, 1)])
    return paged(
        lengths,
        kv_heads=heads,
        group=group,
        dim=rng.choice([8, 16]),
        block_size=block_size,
        seed=rng.randint(0, 99),
        device=DEVICE,
        **options,
    )


def test_the_decode_kernels_give_what_the_package_gives():
    ready()
    rng = random.Random(2)
    for turn in range(10):
        case = some_case(rng, dtype=torch.float16 if turn % 3 == 2 else torch.float32)
        close = 2e-3 if turn % 3 == 2 else 2e-6
        right = reference.paged_decode(case.query, case.kv, scale=case.scale, return_lse=True)
        assert torch.allclose(run_nano(case), right.out, atol=close, rtol=close)
        splits = rng.choice([1, 2, 3, 7])
        out, lse = merge_splits(*run_splits(case, splits))
        assert torch.allclose(out.to(right.out.dtype), right.out, atol=close, rtol=close)
        assert torch.allclose(lse, right.lse, atol=2e-3, rtol=1e-5)


def run_nano(case: Paged) -> torch.Tensor:
    """Nano's kernel on a case of the lesson: it takes contiguous tensors of one dtype, and any sizes."""
    from minikv.nano.attention import decode_on_gpu

    return decode_on_gpu(case.query, case.k_cache, case.v_cache, case.batch(), case.scale)


def ready() -> None:
    if prepare() == "none":
        pytest.skip("no Triton here")


def test_prepare_is_too_late_once_triton_is_there(monkeypatch):
    if prepare() == "none" or torch.cuda.is_available():
        pytest.skip("only where the interpreter is needed")
    import triton  # noqa: F401

    assert prepare() == "interpreter"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ArgumentError) as refused:
        prepare()
    assert refused.value.code == "triton_too_early"


def test_a_paged_case_holds_its_tokens_and_nothing_else():
    rng = random.Random(3)
    for _ in range(20):
        case = some_case(rng)
        k, v = zip(*(case.contiguous(row) for row in range(len(case.lengths))), strict=True)
        assert [len(one) for one in k] == case.lengths.tolist()
        tokens = int(case.lengths.sum())
        for cache, held in ((case.k_cache, k), (case.v_cache, v)):
            assert not torch.cat(held).isnan().any()
            assert int((~cache.isnan()).sum()) == tokens * cache.shape[2] * cache.shape[3]
            assert cache[-1].isnan().all(), "what an index of -1 finds"
        used = case.block_tables[case.block_tables >= 0]
        assert len(set(used.tolist())) == len(used)


def test_the_bytes_of_the_steps_stand_over_the_packages_floor():
    rng = random.Random(5)
    for _ in range(50):
        heads = rng.choice([1, 2, 8])
        shape = Shape(
            tuple(rng.randint(1, 300) for _ in range(rng.randint(1, 4))),
            query_heads=heads * rng.choice([1, 4, 8]),
            kv_heads=heads,
            dim=rng.choice([64, 128]),
            block_size=rng.choice([8, 16, 64]),
            itemsize=rng.choice([2, 4]),
        )
        least = floor(shape)
        assert least.num_bytes == shape.kv_bytes + shape.table_bytes + shape.edge_bytes
        # A program a KV head reads the table once each; nothing else is above the floor.
        assert moved("packed", shape).total == least.num_bytes + (heads - 1) * shape.table_bytes
        assert moved("split", shape, 1) == moved("packed", shape)
        assert moved("per_head", shape).kv == shape.group * shape.kv_bytes
        assert moved("gathered", shape).total == least.num_bytes + 2 * shape.kv_bytes
        totals = [moved(step, shape, 4).total for step in STEPS]
        assert min(totals) >= least.num_bytes


SMALL = Shape((48, 48), query_heads=8, kv_heads=2, dim=16)


def test_every_way_that_is_timed_gives_the_same_answer():
    dtype, close = (torch.float16, 2e-3) if DEVICE == "cuda" else (torch.float32, 1e-5)
    ways = _ways(SMALL, dtype, DEVICE)
    assert len(ways) == 2 + len(BLOCKS)
    right = ways["contiguous", 0]()
    assert right.shape == (2, 8, 16)
    for key, way in ways.items():
        assert torch.allclose(way(), right, atol=close), key
    assert measure(SMALL, dtype, DEVICE).keys() == ways.keys()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_steps_are_replayed_from_a_graph():
    ready()
    case = paged([300], kv_heads=8, dim=128, block_size=16, dtype=torch.float16, device="cuda")
    kept = []
    replay = repeated(lambda: kept.append(run_splits(case, 1)), "cuda")
    kept[-1][0].zero_()
    replay()
    torch.cuda.synchronize()
    assert case.close(merge_splits(*kept[-1])[0])
    rates = steps_gb_s([1024, 4096], torch.float16, "cuda")
    assert all(len(rate) == 2 and min(rate) > 0 for rate in rates.values())


def test_no_sequence_is_in_a_cache_when_its_turn_comes(monkeypatch):
    """With a clock of one second a call, and a cache that holds three of the sequences."""
    ready()
    one = floor(Shape((64,), itemsize=4)).num_bytes
    read = []
    monkeypatch.setattr(measure_10, "run_splits", lambda case, splits: (case, splits))
    monkeypatch.setattr(measure_10, "merge_splits", lambda case, splits: read.append(case.k_cache.data_ptr()))
    monkeypatch.setattr(measure_10, "paged_decode", lambda *_, **__: None)
    monkeypatch.setattr(measure_10, "seconds_of", lambda run, device: float(run() is None))
    rates = steps_gb_s([64], torch.float32, "cpu", cache_bytes=3 * one)
    turns = len(set(read[: len(read) // 2]))
    assert turns * one >= FLUSHED * 3 * one
    assert read[:turns] == list(dict.fromkeys(read)), "in turn"
    assert rates["split"] == [pytest.approx(turns * one / 1e9)]


def test_the_package_keeps_as_many_bytes_under_way_as_the_memory_needs():
    ready()
    for batch in (1, 4, 16, 64):
        programs = 8 * batch * package_splits(batch, 32_768)
        found = bytes_under_way(programs, 132, at_once=3, tile_bytes=2 * 64 * 128 * 2, buffers=2)
        assert found >= little(4.8e12, 132)
    assert package_splits(1, 32_768) > package_splits(64, 32_768) > 1
    assert package_splits(1, 64) == 1, "a single tile"


class Counted:
    """Bytes that interpreted kernels load and store, masked ones left out; loads of whole numbers apart."""

    def __init__(self, monkeypatch):
        from triton.runtime.interpreter import InterpreterBuilder

        self.loaded, self.indices, self.stored = 0, 0, 0
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def counting_load(builder, ptrs, mask, *rest):
            values = load(builder, ptrs, mask, *rest)
            count = int(mask.data.sum()) * values.data.itemsize
            if values.data.dtype.kind == "f":
                self.loaded += count
            else:
                self.indices += count
            return values

        def counting_store(builder, ptrs, value, mask, *rest):
            self.stored += int(mask.data.sum()) * value.data.itemsize
            return store(builder, ptrs, value, mask, *rest)

        monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counting_load)
        monkeypatch.setattr(InterpreterBuilder, "create_masked_store", counting_store)


@pytest.mark.skipif(DEVICE == "cuda", reason="counts what the interpreter loads")
def test_the_kernels_move_the_bytes_that_the_lesson_counts(monkeypatch):
    ready()
    lengths = (5, 16, 37)
    case = paged(list(lengths), kv_heads=2, group=4, dim=16, block_size=8)
    shape = Shape(lengths, query_heads=8, kv_heads=2, dim=16, block_size=8, itemsize=4)

    counted = Counted(monkeypatch)
    run_nano(case)
    due = moved("packed", shape)
    assert counted.loaded == due.kv + due.edge // 2
    # Of 8 bytes each: a length for each program, and the block of every token, which the lesson says.
    assert counted.indices == 8 * 2 * (len(lengths) + sum(lengths))
    assert counted.stored == due.edge // 2
    monkeypatch.undo()

    for splits in (1, 3, 7):
        counted = Counted(monkeypatch)
        run_splits(case, splits)
        due = moved("split", shape, splits)
        assert counted.loaded == due.kv + due.edge - shape.edge_bytes // 2
        assert counted.indices == due.table + 4 * 3 * 2 * splits
        if splits > 1:
            assert counted.stored == due.aside // 2
        monkeypatch.undo()
