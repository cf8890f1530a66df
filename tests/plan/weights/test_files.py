"""Weight bytes from safetensors indexes and headers, and every way in which such a file can be broken."""

import contextlib
import json
import random
import struct

import pytest
import torch
from safetensors.torch import save_file

from minikv.errors import ConfigError
from minikv.i18n import text
from minikv.plan.weights.files import MAX_HEADER_BYTES, header_bytes
from minikv.plan.weights.weight_bytes import weight_bytes, weight_list
from tests.plan.small_models import small_config, small_model
from tests.plan.weights.test_weight_bytes import LLAMA, num_parameters


def folder_with(path, config=LLAMA, index=None, files=()):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if index is not None:
        (path / "model.safetensors.index.json").write_text(
            index if isinstance(index, str) else json.dumps(index)
        )
    for name, tensors in files:
        save_file(tensors, path / name)
    return path


FILES = (
    ("model-1.safetensors", {"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(7)}),
    ("model-2.safetensors", {"c": torch.zeros(11, dtype=torch.uint8)}),
)
IN_FILES = 30 + 28 + 11


def test_the_index_beats_the_shapes(tmp_path):
    folder = folder_with(tmp_path / "m", index={"metadata": {"total_size": 999}}, files=FILES)
    for source in (folder, str(folder), folder / "config.json"):
        answer = weight_bytes(source)
        assert (answer.total, answer.source) == (999, "index")
    assert answer.num_parameters == num_parameters(weight_list(LLAMA))
    assert weight_bytes(LLAMA).source == "shapes"
    assert weight_bytes(folder, weight_bytes=5).total == 5


def test_headers_answer_where_the_index_states_no_total(tmp_path):
    assert weight_bytes(folder_with(tmp_path / "headers", files=FILES)).total == IN_FILES
    weight_map = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    assert (
        weight_bytes(folder_with(tmp_path / "map", index={"weight_map": weight_map}, files=FILES)).total
        == IN_FILES
    )
    with pytest.raises(ConfigError) as caught:
        weight_bytes(folder_with(tmp_path / "gap", index={"weight_map": weight_map}, files=FILES[:1]))
    assert caught.value.code == "index_without_total"


def test_a_saved_model_has_the_bytes_of_its_shapes(tmp_path):
    config = small_config("qwen3_moe", dtype="float32")
    small_model(config).save_pretrained(tmp_path)
    assert weight_bytes(tmp_path).source == "index"
    assert weight_bytes(tmp_path).total == weight_bytes(config).total


def test_the_files_shrink_with_the_ranks_as_the_shapes_do(tmp_path):
    whole = weight_bytes(LLAMA).total
    folder = folder_with(tmp_path / "m", index={"metadata": {"total_size": 3 * whole}})
    rank = weight_bytes(folder, tp=4)
    assert rank.total == 3 * weight_bytes(LLAMA, tp=4).total
    assert [key for key, _ in rank.assumptions] == ["scaled_by_shapes", "parts_by_shapes"]
    unknown = {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 2}
    folder = folder_with(tmp_path / "u", config=unknown, index={"metadata": {"total_size": 1000}})
    assert weight_bytes(folder).total == 1000
    with pytest.raises(ConfigError) as caught:
        weight_bytes(folder, tp=2)
    assert caught.value.code == "weights_not_divisible"


def test_the_files_bytes_are_shared_out_as_the_shapes_are(tmp_path):
    config = json.loads(small_config("qwen3_moe", dtype="float32").to_json_string(use_diff=False))
    shapes = weight_bytes(config)
    exact = folder_with(tmp_path / "exact", config, index={"metadata": {"total_size": shapes.total}})
    assert weight_bytes(exact).parts == shapes.parts
    assert weight_bytes(exact).assumptions == ()
    more = folder_with(tmp_path / "more", config, index={"metadata": {"total_size": 2 * shapes.total + 1}})
    answer = weight_bytes(more)
    assert sum(answer.parts.values()) == answer.total
    assert abs(answer.parts["expert"] - 2 * shapes.parts["expert"]) <= 1
    assert answer.assumptions == (("parts_by_shapes", {"total": answer.total}),)
    unknown = folder_with(
        tmp_path / "unknown",
        {**LLAMA, "quantization_config": {"quant_method": "hqq"}},
        index={"metadata": {"total_size": 9}},
    )
    assert (weight_bytes(unknown).total, weight_bytes(unknown).parts) == (9, {})


TENSOR = {"a": torch.zeros(10, dtype=torch.uint8)}  # 10 bytes
COPIES = ["consolidated.safetensors", "consolidated-00001-of-00002.safetensors", "adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("names", "counted"),
    [
        (["model.safetensors"], 1),
        (["model.safetensors", *COPIES], 1),
        (["model.safetensors", "model-00001-of-00001.safetensors", "model.fp16.safetensors"], 1),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], 2),
        (
            [
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                *COPIES,
                "x.safetensors",
            ],
            2,
        ),
        (["part_a.safetensors", "part_b.safetensors", *COPIES], 2),
        (["part_a.safetensors", "part_b.safetensors", "model-1.safetensors"], 3),
    ],
)
def test_a_folder_that_holds_the_model_twice_counts_it_once(tmp_path, names, counted):
    answer = weight_bytes(folder_with(tmp_path / "m", files=[(name, TENSOR) for name in names]))
    assert (answer.total, answer.source) == (10 * counted, "index")
    said = dict(answer.assumptions)
    usual = names == ["model.safetensors"] or (len(names) == counted and "-of-" in names[0])
    assert ("files_counted" in said) == (not usual)
    if not usual:
        files = said["files_counted"]["files"]
        assert files.split(", ") == sorted(names[:counted] if counted < len(names) else names)
        for lang in ("en", "zh"):
            assert files in text("weights.files_counted", lang, files=files)


def test_a_folder_of_copies_and_adapters_alone_has_no_checkpoint(tmp_path):
    folder = folder_with(tmp_path / "m", files=[(name, TENSOR) for name in COPIES])
    assert weight_bytes(folder).source == "shapes"


@pytest.mark.parametrize(
    "names",
    [
        ["model-00001-of-00002.safetensors"],
        ["model-00002-of-00002.safetensors"],
        [
            "model-00001-of-00001.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ],
        ["model-1-of-2.safetensors", "model-00001-of-00002.safetensors"],
        ["model-00000-of-00001.safetensors"],
        ["model-1-of-99999999999999999999.safetensors"],
    ],
)
def test_shards_that_are_no_complete_set_are_refused(tmp_path, names):
    with pytest.raises(ConfigError) as caught:
        weight_bytes(folder_with(tmp_path / "m", files=[(name, TENSOR) for name in names]))
    assert caught.value.code == "shards_incomplete"
    assert caught.value.values["found"] == len(names)


HOSTILE_INDEXES = [
    "", "[]", "null", "{", '{"metadata": 3}', '{"metadata": {"total_size": "9"}}', '{"metadata": {"total_size": -1}}',
    '{"metadata": {"total_size": true}}', '{"metadata": {"total_size": NaN}}', '{"metadata": {"total_size": 1e999}}',
    '{"metadata": {}, "weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}',
    '{"weight_map": {"a": "../../etc/passwd"}}', '{"weight_map": {"a": "/dev/zero"}}', "[" * 100_000,
    '{"metadata": {"total_size": ' + "9" * 5000 + "}}",
]  # fmt: skip


@pytest.mark.parametrize("index", HOSTILE_INDEXES, ids=lambda index: index[:40])
def test_a_hostile_index_is_a_config_error(tmp_path, index):
    with pytest.raises(ConfigError) as caught:
        weight_bytes(folder_with(tmp_path / "m", index=index))
    assert caught.value.code == "corrupt_weights_file"


def safetensors(header: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


HOSTILE_FILES = [
    b"", b"\x01", safetensors(b"{}", length=3), safetensors(b"{}", length=2**63),
    safetensors(b"[]"), safetensors(b"\xff\xfe"),
    safetensors(b"{}", length=MAX_HEADER_BYTES + 1),
    safetensors(b'{"a": 1}'), safetensors(b'{"a": {}}'), safetensors(b'{"a": {"data_offsets": [0]}}'),
    safetensors(b'{"a": {"data_offsets": [0, 9]}}', data=b"12345678"),
    safetensors(b'{"a": {"data_offsets": [4, 2]}}', data=b"12345678"),
    safetensors(b'{"a": {"data_offsets": [-1, 2]}}', data=b"12345678"),
    safetensors(b'{"a": {"data_offsets": [0, true]}}', data=b"12345678"),
    safetensors(b'{"a": {"data_offsets": ["0", "2"]}}', data=b"12345678"),
    safetensors(b'{"a":' * 50_000),
]  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE_FILES, ids=lambda raw: repr(raw[:48]))
def test_a_hostile_file_is_a_config_error(tmp_path, raw):
    folder = folder_with(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        weight_bytes(folder)
    assert caught.value.code == "corrupt_weights_file"


def test_damaged_headers_never_give_a_traceback(tmp_path):
    save_file(FILES[0][1], tmp_path / "good.safetensors")
    good, rng = (tmp_path / "good.safetensors").read_bytes(), random.Random(0)
    path = tmp_path / "bad.safetensors"
    for _ in range(300):
        raw = bytearray(good[: rng.randrange(len(good) + 1)] if rng.random() < 0.3 else good)
        for _ in range(rng.randrange(1, 5) if raw else 0):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        path.write_bytes(raw)
        with contextlib.suppress(ConfigError):
            assert header_bytes(path) >= 0
