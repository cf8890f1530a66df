"""The memory that llama.cpp takes: where every tensor lies, what fits, and how many layers if not all do."""

import math

import pytest

from minikv.errors import ArgumentError
from minikv.plan import plan_gguf
from tests.plan.gguf.by_hand import SMALL
from tests.plan.gguf.files import TENSORS, tensor_bytes, write

MIB = 2**20


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "m.gguf", tensors=TENSORS, general={"general.name": "Small"})


def test_every_tensor_is_counted_where_it_lies(path):
    weights = plan_gguf(path).weights
    sizes = {name: tensor_bytes(name) for name in TENSORS}
    assert weights.host == sizes["token_embd.weight"]
    assert weights.output == sizes["output.weight"] + sizes["output_norm.weight"]
    assert weights.blocks == tuple(
        sum(size for name, size in sizes.items() if name.startswith(f"blk.{block}.")) for block in (0, 1)
    )
    assert weights.on_gpu == sum(sizes.values()) - sizes["token_embd.weight"]
    assert weights.in_files == sum(sizes.values()) == sum(weights.by_type.values())
    assert list(weights.by_type.values()) == sorted(weights.by_type.values(), reverse=True)
    assert weights.num_parameters == sum(math.prod(shape) for shape, _ in TENSORS.values())


def test_a_tied_head_is_a_copy_of_the_embedding(tmp_path):
    tied = {name: each for name, each in TENSORS.items() if name != "output.weight"}
    weights = plan_gguf(write(tmp_path / "m.gguf", tensors=tied)).weights
    table = tensor_bytes("token_embd.weight")
    assert weights.output == table + tensor_bytes("output_norm.weight")
    assert weights.host == table


def test_layers_for_multi_token_prediction_are_not_loaded(tmp_path):
    keys = SMALL | {"nextn_predict_layers": 1}
    plan = plan_gguf(write(tmp_path / "m.gguf", "glm4moe", keys, TENSORS), gpu_bytes=2**33)
    second = tensor_bytes("blk.1.attn_q.weight") + tensor_bytes("blk.1.attn_norm.weight")
    assert (plan.weights.not_loaded, len(plan.spec.layers)) == (second, 1)
    assert plan.gpu_layers == 3  # the head, the layer that is not loaded, the one that runs
    assert "multi-token prediction" in plan.text()


def test_the_parts_are_the_memory(path):
    plan = plan_gguf(path, gpu_bytes=2**31, context=2048, batch=4)
    assert sum(plan.parts().values()) == plan.total_bytes == 2**31
    assert plan.parts()["left"] == plan.left_bytes
    assert plan.fits


def test_the_longest_context_fits_and_no_longer_one(tmp_path):
    path = write(tmp_path / "m.gguf", keys=SMALL | {"context_length": 2**20}, tensors=TENSORS)
    memory = 1100 * MIB
    for batch in (1, 3):
        plan = plan_gguf(path, gpu_bytes=memory, batch=batch)
        longest = plan.max_context()
        assert 0 < longest < 2**20
        assert plan.with_context(longest).fits
        assert not plan.with_context(longest + 256).fits
    small = plan_gguf(path, gpu_bytes=memory, context=256, kv_dtype="q4_0")
    assert small.max_context() > 3 * plan_gguf(path, gpu_bytes=memory, context=256).max_context()
    with pytest.raises(ArgumentError, match="context_length = 1,048,576"):
        plan_gguf(path, context=2**20 + 1)


def test_where_not_all_layers_fit_the_last_ones_do(path):
    room = 10 * MIB
    whole = plan_gguf(path, gpu_bytes=room, cuda_context_bytes=0, workspace_bytes=0)
    assert (whole.fits, whole.gpu_layers) == (True, 3)
    each = whole.layer_bytes(whole.spec.layers[0])
    sizes = [whole.weights.output, *(weights + each for weights in whole.weights.blocks[::-1])]
    for layers in range(4):
        least = max(1, sum(sizes[:layers]))
        fits = plan_gguf(path, gpu_bytes=least, cuda_context_bytes=0, workspace_bytes=0)
        assert fits.gpu_layers == layers
        assert fits.fits == (layers == 3)
        assert f"-ngl {layers}" in fits.command()


def test_too_little_memory_is_said_with_the_way_out(path):
    said = plan_gguf(path, gpu_bytes=1024 * MIB).text()
    assert "too little for every layer: 0 of 3 fit" in said
    assert "no context is short enough" in said


def test_a_cache_for_each_sequence_takes_no_less_than_one_for_all(path):
    one = plan_gguf(path, batch=3, context=700)
    divided = one.divided()
    assert (one.n_ctx, one.cells, divided.cells) == (2304, 2304, 3 * 768)
    assert divided.cache_bytes >= one.cache_bytes
    assert "without --kv-unified" in one.text()


def test_the_command_is_the_plan(path):
    plan = plan_gguf(path, kv_dtype="q8_0", v_dtype="q4_0", context=1024, batch=2, chunk=256)
    words = plan.command().split()
    for option, value in {
        "-m": str(path),
        "-c": "2048",
        "-np": "2",
        "-ctk": "q8_0",
        "-ctv": "q4_0",
        "-ub": "256",
    }.items():
        assert words[words.index(option) + 1] == value
    assert "--kv-unified" in words


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_plan_shows_itself(path, lang):
    plan = plan_gguf(path, gpu="RTX 4090", kv_dtype="q8_0")
    for shown in (plan.text(lang), plan.shown(lang)._repr_html_()):
        assert f"{plan.weights.on_gpu:,}" in shown
        assert f"{plan.cache_bytes:,}" in shown
    assert len(repr(plan)) <= 120


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"chunk": 0},
        {"context": -1},
        {"workspace_bytes": -1},
        {"gpu_bytes": 0},
        {"kv_dtype": "q3_K"},
    ],
)
def test_arguments_are_checked(path, wrong):
    with pytest.raises(ArgumentError):
        plan_gguf(path, **wrong)
