"""A GGUF header: what the gguf package writes is read, and a damaged or hostile one ends in a sentence."""

import os
import random
from contextlib import suppress

import gguf
import pytest

from minikv.errors import ConfigError, MiniKVError
from minikv.plan import CacheSpec, plan_gguf
from minikv.plan.gguf.ggml_types import CACHE_TYPES, GGML_TYPES
from minikv.plan.gguf.header import KEPT_ITEMS, Passed, read_header
from minikv.plan.gguf.parts import read_gguf
from tests.in_turn import in_turn
from tests.plan.gguf.by_hand import PAIRS, SMALL, counted, header, number, pair, tensor, words
from tests.plan.gguf.files import SIZES, TENSORS, tensor_bytes, write

# --- types


def test_the_types_are_those_of_the_gguf_package():
    ours = {
        kind.name.upper(): (kind.number, kind.block_elements, kind.block_bytes)
        for kind in GGML_TYPES.values()
    }
    theirs = {kind.name: (kind.value, *sizes) for kind, sizes in SIZES.items()}
    assert {name: ours[name] for name in theirs} == theirs
    # gguf 0.19.0 of the package index is a commit older than the type; ggml-common.h: 64 elements, float16 and 16 B.
    assert {name: ours[name] for name in ours.keys() - theirs.keys()} in ({}, {"Q2_0": (42, 64, 18)})


def test_a_q8_0_cache_has_34_bytes_for_32_elements():
    assert {name: kind.row_bytes(64) for name, kind in CACHE_TYPES.items()} == {
        "f32": 256, "f16": 128, "bf16": 128, "q8_0": 68, "q5_1": 48, "q5_0": 44, "q4_1": 40, "q4_0": 36, "iq4_nl": 36,
    }  # fmt: skip


# --- sound files


def test_what_the_package_writes_is_read(tmp_path):
    path = write(
        tmp_path / "m.gguf", tensors=TENSORS, general={"general.name": "Small", "llama.rope.freq_base": 1e4}
    )
    read = read_header(path)
    assert read.version == 3
    assert read.metadata["general.architecture"] == "llama"
    assert read.metadata["llama.rope.freq_base"] == 1e4
    assert read.metadata["tokenizer.ggml.tokens"] == Passed(3)
    assert read.metadata["tokenizer.ggml.scores"] == (0.0, 0.5, 1.0)
    # ggml counts a row first, numpy last.
    assert {each.name: each.shape for each in read.tensors} == {
        name: shape[::-1] for name, (shape, _) in TENSORS.items()
    }
    assert {each.name: each.num_bytes for each in read.tensors} == {
        name: tensor_bytes(name) for name in TENSORS
    }


def test_the_package_s_own_reader_finds_the_same_tensors_and_values(tmp_path):
    path = write(tmp_path / "m.gguf", tensors=TENSORS, general={"general.name": "Small"})
    read = read_header(path)
    with path.open("r+b") as file:
        file.truncate(read.whole_bytes)  # the package maps the tensors, too
    theirs = gguf.GGUFReader(str(path))
    assert [(each.name, each.tensor_type.value, each.n_bytes) for each in theirs.tensors] == [
        (each.name, each.type.number, each.num_bytes) for each in read.tensors
    ]
    assert read.metadata["general.name"] == theirs.get_field("general.name").contents()
    assert max(each.data_offset + each.n_bytes for each in theirs.tensors) == read.whole_bytes


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(tmp_path, version):
    path = tmp_path / "m.gguf"
    path.write_bytes(header(version=version))
    assert len(CacheSpec.from_gguf(path).layers) == 2


def test_a_vocabulary_is_passed_over_and_not_kept(tmp_path):
    path = tmp_path / "m.gguf"
    count = KEPT_ITEMS + 1
    tokens = pair("tokens", 9, number(8) + number(count, "Q") + words("token") * count)
    scores = pair("scores", 9, number(6) + number(count, "Q") + bytes(4 * count))
    template = pair("template", 8, words("x" * 2**17))
    path.write_bytes(header((*PAIRS, tokens, scores, template)))
    read = read_header(path)
    assert [read.metadata[key] for key in ("tokens", "scores", "template")] == [
        Passed(count), Passed(count), Passed(2**17),
    ]  # fmt: skip


def test_a_download_that_goes_on_is_planned_and_said(tmp_path):
    path = write(tmp_path / "m.gguf", tensors=TENSORS)
    begun = plan_gguf(path)
    whole = sum(map(tensor_bytes, TENSORS))
    assert begun.model.missing_bytes >= whole
    assert "are not there" in begun.text()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + begun.model.missing_bytes)
    assert plan_gguf(path).model.missing_bytes == 0
    assert "are not there" not in plan_gguf(path).text()


# --- several files


def parts_of(folder, count=3):
    """The tensors of a model in that many files, as llama-gguf-split numbers them."""
    names = list(TENSORS)
    for index in range(count):
        mine = {name: TENSORS[name] for name in names[index::count]}
        keys = SMALL if index == 0 else {}
        split = {"split.no": index, "split.count": count, "split.tensors.count": len(names)}
        write(folder / f"m-{index + 1:05}-of-{count:05}.gguf", "llama", keys, mine, split)
    return folder / f"m-00001-of-{count:05}.gguf"


def test_any_part_stands_for_the_whole(tmp_path):
    first = parts_of(tmp_path)
    whole = read_gguf(write(tmp_path / "whole.gguf", tensors=TENSORS))
    for number_of_part in (1, 2, 3):
        model = read_gguf(first.with_name(f"m-{number_of_part:05}-of-00003.gguf"))
        assert len(model.headers) == 3
        assert model.bytes_by_type == whole.bytes_by_type
        assert model.metadata["llama.block_count"] == 2


def test_a_missing_part_is_named(tmp_path):
    first = parts_of(tmp_path)
    first.with_name("m-00002-of-00003.gguf").unlink()
    with pytest.raises(ConfigError, match=r"Part 2 of 3 is missing: .*m-00002-of-00003\.gguf") as caught:
        read_gguf(first)
    assert caught.value.code == "gguf_part_missing"


def test_parts_of_different_sets_are_refused(tmp_path):
    first = parts_of(tmp_path)
    second = first.with_name("m-00002-of-00003.gguf")
    second.write_bytes(first.read_bytes())
    with pytest.raises(ConfigError, match=r"split\.no = 0 .* of split\.count = 3"):
        read_gguf(first)
    other = first.with_name("other.gguf")
    os.rename(first, other)
    with pytest.raises(ConfigError, match="one of 3 files, and its name does not"):
        read_gguf(other)
    lone = {"split.no": 0, "split.count": 1, "split.tensors.count": 9}
    with pytest.raises(ConfigError, match=r"hold 0 tensors, and split\.tensors\.count promises 9"):
        read_gguf(write(tmp_path / "lone.gguf", general=lone))


# --- damaged and hostile files

LIST = 9
HUGE = 2**63


HOSTILE = {
    "empty": (b"", "gguf_cut"),
    "no magic": (header(magic=b"GGML"), "gguf_magic"),
    "safetensors": (number(64, "Q") + b'{"a": 1}', "gguf_magic"),
    "version 1": (header(version=1), "gguf_version"),
    "version 4": (header(version=4), "gguf_version"),
    "big-endian": (header(version=3 << 24), "gguf_big_endian"),
    "version 0": (header(version=0), "gguf_big_endian"),
    "endless pairs": (header(num_pairs=HUGE), "gguf_count"),
    "more pairs": (header(num_pairs=len(PAIRS) + 1), "gguf_cut"),
    "endless tensors": (header(num_tensors=HUGE), "gguf_count"),
    "more tensors": (header(num_tensors=1), "gguf_cut"),
    "long key": (header((number(HUGE, "Q"),)), "gguf_count"),
    "key past the end": (header((number(60_000, "Q"),)), "gguf_cut"),
    "empty key": (header((counted("", 1),)), "gguf_repeated"),
    "key twice": (header((*PAIRS, PAIRS[1])), "gguf_repeated"),
    "key no UTF-8": (header((pair(b"\xff\xfe", 4, number(1)),)), "gguf_text"),
    "text no UTF-8": (header((pair("a", 8, words(b"\xc3(")),)), "gguf_text"),
    "text past the end": (header((pair("a", 8, number(HUGE, "Q")),)), "gguf_cut"),
    "unknown kind": (header((pair("a", 13, number(1)),)), "gguf_kind"),
    "list of lists": (header((pair("a", LIST, number(LIST) + number(1, "Q")),)), "gguf_kind"),
    "list of unknown": (header((pair("a", LIST, number(99) + number(1, "Q")),)), "gguf_kind"),
    "endless list": (header((pair("a", LIST, number(0) + number(HUGE, "Q")),)), "gguf_count"),
    "list past the end": (header((pair("a", LIST, number(10) + number(2**20, "Q")),)), "gguf_cut"),
    "texts past the end": (header((pair("a", LIST, number(8) + number(2**20, "Q")),)), "gguf_cut"),
    "alignment 0": (header((*PAIRS, counted("general.alignment", 0))), "gguf_alignment"),
    "alignment 24": (header((*PAIRS, counted("general.alignment", 24))), "gguf_alignment"),
    "alignment text": (header((*PAIRS, pair("general.alignment", 8, words("32")))), "gguf_alignment"),
    "alignment of 8 bytes": (header((*PAIRS, pair("general.alignment", 10, number(32, "Q")))), "gguf_alignment"),
    "long tensor name": (header(tensors=(tensor("a" * 64),)), "gguf_count"),
    "tensor name no UTF-8": (header(tensors=(tensor(b"\x80"),)), "gguf_text"),
    "tensor twice": (header(tensors=(tensor("a"), tensor("a", offset=128))), "gguf_repeated"),
    "five dimensions": (header(tensors=(tensor("a", (1,) * 5),)), "gguf_dimensions"),
    "endless dimensions": (header(tensors=(tensor("a", dimensions=2**32 - 1),)), "gguf_dimensions"),
    "negative length": (header(tensors=(tensor("a", (32, -1)),)), "gguf_shape"),
    "two negative lengths": (header(tensors=(tensor("a", (-32, -1)),)), "gguf_shape"),
    "overflow": (header(tensors=(tensor("a", (2**40, 2**40)),)), "gguf_shape"),
    "together too large": (
        header(tensors=(tensor("a", (2**61,)), tensor("b", (2**61,), offset=2**63))), "gguf_too_large",
    ),
    "withdrawn type": (header(tensors=(tensor("a", kind=4),)), "gguf_tensor_type"),
    "unknown type": (header(tensors=(tensor("a", kind=200),)), "gguf_tensor_type"),
    "part of a block": (header(tensors=(tensor("a", (33,), kind=8),)), "gguf_row"),
    "scalar of blocks": (header(tensors=(tensor("a", (), kind=8),)), "gguf_row"),
    "first offset": (header(tensors=(tensor("a", offset=32),)), "gguf_offset"),
    "overlapping": (header(tensors=(tensor("a", (64,)), tensor("b", offset=128))), "gguf_offset"),
    "not aligned": (header(tensors=(tensor("a", (33,)), tensor("b", offset=132))), "gguf_offset"),
}  # fmt: skip


@in_turn("name", HOSTILE)
def test_a_damaged_header_is_refused_by_what_is_wrong_with_it(tmp_path, name):
    raw, code = HOSTILE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        CacheSpec.from_gguf(path)
    assert caught.value.code == code
    assert str(path) in str(caught.value)
    assert caught.value.text("zh") != caught.value.text("en")


def test_a_cut_header_is_refused_wherever_it_is_cut(tmp_path):
    path = write(tmp_path / "m.gguf", tensors=TENSORS)
    raw = path.read_bytes()
    end = len(raw.rstrip(b"\0")) - 16  # behind it lie the last offset and the padding
    for length in range(0, end, 5):
        path.write_bytes(raw[:length])
        with pytest.raises(ConfigError, match="ends in the middle of its header") as caught:
            read_header(path)
        assert caught.value.values["size"] == length


@pytest.mark.parametrize("seed", range(4))
def test_no_changed_byte_ends_in_anything_but_an_answer_or_a_sentence(tmp_path, seed):
    path = write(tmp_path / "m.gguf", tensors=TENSORS, general={"split.count": 1, "general.name": "Small"})
    sound = path.read_bytes()
    draw = random.Random(seed)
    answered = 0
    for _ in range(100):
        raw = bytearray(sound)
        for _ in range(draw.choice((1, 1, 2, 8))):
            raw[draw.randrange(len(raw))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        path.write_bytes(raw)
        with suppress(MiniKVError):
            assert plan_gguf(path, gpu_bytes=2**33).text("zh")
            answered += 1
    assert 0 < answered < 100


@pytest.mark.parametrize("name", ["missing.gguf", "folder.gguf", "a" * 300 + ".gguf", "nul\0.gguf"])
def test_what_is_no_file_is_said(tmp_path, name):
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(ConfigError) as caught:
        CacheSpec.from_gguf(tmp_path / name)
    if name in ("missing.gguf", "folder.gguf"):
        assert caught.value.code == "no_file"
    else:  # whether a name that cannot be is an error or absent differs between versions of Python
        assert caught.value.code in ("no_file", "unreadable_file")
