"""Our kernels, compiled for GPUs that need not be there: they fit, nothing spills, and what decides their speed holds.

One process compiles them all. ``MINIKV_LONG=1`` compiles every listed case; otherwise those that a change would most
likely break.
"""

import os
from dataclasses import fields

import pytest
import torch
import triton

from benchmarks.kernels_decode import SHAPES
from minikv.kernels.gpu.ahead import SHARED_KIB, Compiled
from minikv.kernels.occupancy import little, splits_of
from tests.kernels import attention_compiled, growth_compiled, sums_compiled
from tests.kernels.subprocesses import rows_of

LONG = os.environ.get("MINIKV_LONG", "0") not in ("", "0")
MODULES = {
    "attention": "tests.kernels.attention_compiled",
    "storage": "tests.kernels.storage_compiled",
    "sums": "tests.kernels.sums_compiled",
    "nano": "tests.nano.decode_compiled",
    "lesson 10": "tests.course.lessons.l10_compiled",
    "growth": "tests.kernels.growth_compiled",
}
COMPILED = MODULES.keys() - {"growth"}
MULTIPROCESSORS = 132  # of an H200
# Bytes of a thread, kept outside the loop: by Triton's release, capability and case (docs/internal/kernels.md).
STACK = {("3.6", 89, "{'stored': torch.int8, 'dtype': torch.float16}"): 8}
# Capability and stages of what has one buffer: a second one would cost an A100 its second program, and others the
# last of their shared memory.
ONE_BUFFER = {(80, 2), (87, 2), (86, 2), (89, 2), (120, 2)}


@pytest.fixture(scope="module")
def compiled():
    """The rows of each part."""
    rows = rows_of(*MODULES.values(), everything=LONG)
    return {name: [row for row in rows if row["module"] == module] for name, module in MODULES.items()}


@pytest.mark.slow
def test_every_case_compiles(compiled):
    """An interpreter takes what a compiler refuses: a loop's bound of two types, for instance."""
    for name, module in (("attention", attention_compiled), ("sums", sums_compiled)):
        listed = [*module.EVERY_TIME, *(module.ON_REQUEST if LONG else ())]
        assert [row["capability"] for row in compiled[name]] == [capability for capability, _ in listed]
    assert {row["capability"] for row in compiled["storage"]} == {75, 80, 89, 90, 100}
    assert len(compiled["storage"]) == (70 if LONG else 7)
    assert {row["name"] for row in compiled["sums"]} == {"column_sums_kernel"}
    assert [row["capability"] for row in compiled["nano"]] == [75, 80, 90, 100, 90]
    assert [row["capability"] for row in compiled["lesson 10"]] == [75, 75, 90, 90, 90]


@pytest.mark.slow
def test_no_register_spills(compiled):
    release = ".".join(triton.__version__.split(".")[:2])
    rows = [row for name in COMPILED for row in compiled[name]]
    allowed = [STACK.get((release, row["capability"], row.get("case")), 0) for row in rows]
    over = [row for row, most in zip(rows, allowed, strict=True) if row["stack"] > most or row.get("spills")]
    assert over == []


@pytest.mark.slow
def test_shared_memory_fits_the_gpu(compiled):
    """That of the lesson fits a T4 too, whatever it is compiled for."""
    for name in COMPILED - {"storage"}:
        for row in compiled[name]:
            most = SHARED_KIB[75 if name == "lesson 10" else row["capability"]]
            assert row["shared_bytes"] <= most * 1024, row
            assert row["occupancy"] >= row.get("per_sm", 1), row


def test_every_configuration_of_the_table_is_compiled_by_some_case():
    """For each target, heads of every width, both sizes of an element, few rows and many."""
    cases = [*attention_compiled.EVERY_TIME, *attention_compiled.ON_REQUEST]
    compiled = {
        (capability, attention_compiled.config_of(capability, **options)) for capability, options in cases
    }
    widths = ((64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512))
    for capability in (75, 80, 89, 90, 100):
        asked = [{"latent": True, "queries": queries} for queries in (1, 512)]
        asked += [{"dims": dims, "queries": queries} for dims in widths for queries in (1, 4, 8, 512)]
        asked += [{"dims": dims, "dtype": torch.float32} for dims in widths if capability >= 80]
        for options in asked:
            assert (capability, attention_compiled.config_of(capability, **options)) in compiled, (
                capability,
                options,
            )


@pytest.mark.slow
def test_tensor_cores_multiply_where_there_are_some(compiled):
    """Not for float32, which keeps all its bits, and not on Turing, for which Triton has no such instruction."""
    for name in ("attention", "sums"):
        rows = compiled[name]
        able = [row for row in rows if row["capability"] >= 80 and not row["float32"]]
        assert len(able) > len(rows) / 2
        assert [row for row in able if not row["tensor_cores"]] == []
    assert all(row["tensor_cores"] for row in compiled["nano"][1:4])


@pytest.mark.slow
def test_a_hopper_multiplies_by_warpgroups_where_a_tile_has_64_rows(compiled):
    """And a tile has them wherever there are as many: a warp's own products reach half the rate."""
    hopper = [row for row in compiled["attention"] if row["capability"] == 90 and not row["float32"]]
    wide = [row for row in hopper if row["block_m"] >= 64]
    assert wide
    assert [row for row in wide if row["mma"] or not row["wgmma"]] == []
    many = [row for row in hopper if "'queries': 512" in row["case"] and "(512, 512)" not in row["case"]]
    assert many
    assert [row for row in many if row["block_m"] < 64] == []  # heads of 512 leave no room for as many


@pytest.mark.slow
def test_the_next_tile_is_copied_while_this_one_is_multiplied(compiled):
    """Two buffers at least of K, of V and of the rope part."""
    able = [row for row in compiled["attention"] if row["capability"] >= 80 and row["num_stages"] > 1]
    assert all(row["buffers"] for row in able)
    once = [row for row in able if min(row["buffers"]) < 2]
    assert [row for row in once if (row["capability"], row["num_stages"]) not in ONE_BUFFER] == []


@pytest.mark.slow
def test_a_decode_has_as_many_bytes_under_way_as_an_h200_asks_for(compiled):
    """Little's law: 4.8 TB/s to 132 multiprocessors, for every shape of the benchmark."""
    (row,) = (row for row in compiled["attention"] if (row["capability"], row["case"]) == (90, "{}"))
    found = Compiled(**{field.name: row[field.name] for field in fields(Compiled)})
    short = set()
    for shape in SHAPES:
        launch, *_ = growth_compiled.decode(len(shape.lengths), max(shape.lengths) // growth_compiled.BLOCK)
        tiles = [-(-length // row["block_n"]) for length in shape.lengths]
        heads, splits, least, _, wave = launch.arguments[-5:]
        programs = heads * sum(splits_of(tiles, splits, wave, least))  # the others have no keys
        if found.bytes_in_flight(programs, MULTIPROCESSORS) < little(4.8e12, MULTIPROCESSORS):
            short.add(shape.name)
    assert short == set()


@pytest.mark.slow
def test_a_sequence_that_grows_compiles_no_kernel_twice(compiled):
    """Two forms of each, with splits and without; a window that hides nothing yet is compiled as none."""
    assert {row["layer"] for row in compiled["growth"]} == set(growth_compiled.LAYERS)
    for row in compiled["growth"]:
        assert max(row["forms"].values()) <= (4 if row["layer"] == "window" else 2), row


@pytest.mark.slow
def test_keys_are_copied_16_bytes_at_a_time_in_the_background(compiled):
    rows = compiled["attention"]
    able = [row for row in rows if row["capability"] >= 80 and row["num_stages"] > 1]
    assert [row for row in able if not row["async_copies"]] == []
    for row in able:
        # Of V in one byte 8: the operand that it is converted to has rows of 8 elements (docs/internal/kernels.md).
        of_v = 2 * row["async_copies"] if "stored" in row["case"] and "queries" not in row["case"] else 0
        assert row["copies_8"] == of_v, row
    assert [row for row in rows if row["narrow_loads"] and row["capability"] >= 80] == []


@pytest.mark.slow
def test_numbers_are_stored_and_read_16_bytes_at_a_time(compiled):
    """All but the scales, of which each row has one; the other loads are of slots and blocks, one for each row."""
    for row in compiled["storage"]:
        stores, loads = ([bits for kind, bits in row["accesses"] if kind == way] for way in ("STG", "LDG"))
        assert 128 in stores
        scaled = row["name"] in ("store float8_e4m3fn", "store int8")
        assert {bits for bits in stores if bits != 128} <= ({32} if scaled else set()), row
        assert loads.count(128) >= stores.count(128), row


@pytest.mark.slow
def test_a_move_reads_everything_before_it_writes_anything(compiled):
    """Every load, then the barrier, then every store: what makes one launch enough where a program holds all pairs."""
    moves = [row for row in compiled["storage"] if row["name"].startswith(("copy", "move"))]
    assert moves
    for row in moves:
        kinds = [kind for kind, _ in row["accesses"]]
        first_store = kinds.index("STG")
        assert "LDG" not in kinds[first_store:], row
        assert kinds[first_store - 1] == "BAR", row
