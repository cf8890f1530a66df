"""The disk tier: what was saved is loaded bit for bit, and a file with one wrong bit is refused by name."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from minikv.cache import disk
from minikv.cache.codec import CODECS
from minikv.cache.disk import CorruptFileError, load_blocks, save_blocks
from minikv.cache.offload import HostPool
from minikv.cache.paged import PagedKVCache
from minikv.errors import ArgumentError
from tests.cache.paged_cases import LAYERS, cache_for, fill, refused, spec_for
from tests.cache.resealed import MALFORMED, reseal


def filled_pool(layers="gqa", codec="bf16", **options):
    """A pool whose host blocks 0 and 1 hold random bytes in every group, and the blocks to name."""
    cache = cache_for(layers, codec, **options)
    fill(cache)
    pool = HostPool(cache, 3)
    num_groups = len(cache.kv_cache_groups)
    pool.swap_out([[(3, 0), (1, 1)]] * num_groups)
    return pool, [[1, 0]] * num_groups


def contents(pool, blocks):
    return [[row.view(torch.uint8).numpy().tobytes() for row in parts] for parts in pool.read(blocks)]


@pytest.fixture
def saved(tmp_path):
    pool, blocks = filled_pool()
    path = tmp_path / "blocks.safetensors"
    save_blocks(path, pool, blocks, {"model": "a"})
    return path, pool


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_bit_comes_back(layers, codec, tmp_path):
    pool, blocks = filled_pool(layers, codec)
    save_blocks(tmp_path / "blocks.safetensors", pool, blocks, {"model": "llama", "note": '"sha256":"0000'})
    other = HostPool(cache_for(layers, codec), 3)
    target = [[0, 2]] * len(blocks)
    notes = load_blocks(str(tmp_path / "blocks.safetensors"), other, target)
    assert notes == {"model": "llama", "note": '"sha256":"0000'}
    assert contents(other, target) == contents(pool, blocks)
    assert all(other.held(group) == {0, 2} for group in range(len(blocks)))


def test_groups_may_have_different_numbers_of_blocks(tmp_path):
    pool, _ = filled_pool("mixed", "int8")
    save_blocks(tmp_path / "blocks", pool, [[0, 1], [], [1]])
    other = HostPool(cache_for("mixed", "int8"), 2)
    assert load_blocks(tmp_path / "blocks", other, [[1, 0], [], [1]]) == {}
    assert [other.held(group) for group in range(3)] == [{0, 1}, set(), {1}]
    assert contents(other, [[1, 0], [], [1]]) == contents(pool, [[0, 1], [], [1]])


def test_any_reader_of_safetensors_can_open_the_file(saved):
    path, pool = saved
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {"0.0"}
        assert torch.equal(
            file.get_tensor("0.0").view(torch.int16), pool.read([[1, 0]])[0][0].view(torch.int16)
        )
        assert json.loads(file.metadata()["cache"])["codec"] == "bf16"


def test_every_flipped_bit_is_noticed(saved, tmp_path):
    """Each byte of the header and of the padding, and every 97th of the data."""
    path, _ = saved
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    pool = HostPool(cache_for("gqa"), 2)
    broken = tmp_path / "broken"
    places = [*range(header), *range(header, len(data), 97), len(data) - 1]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        broken.write_bytes(damaged)
        with pytest.raises(CorruptFileError) as caught:
            load_blocks(broken, pool, [[0, 1]])
        assert caught.value.values["path"] == broken
        assert "broken" in caught.value.text("zh")
    assert not pool.held(0)
    assert len(places) > header


def test_a_file_cut_off_anywhere_is_refused(saved, tmp_path):
    path, _ = saved
    data = path.read_bytes()
    pool = HostPool(cache_for("gqa"), 2)
    broken = tmp_path / "broken"
    for length in [*range(0, len(data), 61), len(data) - 1]:
        broken.write_bytes(data[:length])
        with pytest.raises(CorruptFileError):
            load_blocks(broken, pool, [[0, 1]])
    broken.write_bytes(data + b"\0")
    with pytest.raises(CorruptFileError):
        load_blocks(broken, pool, [[0, 1]])
    assert not pool.held(0)


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 100, b"{}", b"PK\x03\x04" * 50])
def test_a_file_of_something_else_is_refused(data, tmp_path):
    (tmp_path / "other").write_bytes(data)
    pool = HostPool(cache_for("gqa"), 2)
    error = refused("disk_not_blocks", load_blocks, tmp_path / "other", pool, [[0]])
    assert isinstance(error, CorruptFileError)


def test_a_safetensors_file_of_something_else_is_refused(tmp_path):
    pool = HostPool(cache_for("gqa"), 2)
    for metadata in (None, {"format": "pt"}, {"format": "pt", "sha256": "0" * 64}):
        save_file({"0.0": torch.zeros(2)}, tmp_path / "weights", metadata)
        with pytest.raises(CorruptFileError):
            load_blocks(tmp_path / "weights", pool, [[0]])
    disk._seal(str(tmp_path / "weights"))  # with a checksum that is right
    refused("disk_not_blocks", load_blocks, tmp_path / "weights", pool, [[0]])


@pytest.mark.parametrize("form", MALFORMED)
def test_a_header_that_is_malformed_is_refused_under_a_right_checksum(saved, form):
    path, _ = saved
    reseal(path, MALFORMED[form])
    pool = HostPool(cache_for("gqa"), 2)
    error = refused("disk_not_blocks", load_blocks, path, pool, [[0, 1]])
    assert isinstance(error, CorruptFileError)
    assert not pool.held(0)


@pytest.mark.parametrize(
    "other",
    [
        lambda: cache_for("gqa", "fp16"),
        lambda: cache_for("gqa", "int8"),
        lambda: cache_for("gqa", block_size=8),
        lambda: cache_for("mla"),
        lambda: PagedKVCache(spec_for("one group, three shapes"), 5, 4),
    ],
)
def test_blocks_of_another_cache_are_refused(saved, other):
    path, _ = saved
    pool = HostPool(other(), 2)
    error = refused("disk_other_cache", load_blocks, path, pool, [[0, 1]])
    assert error.values["path"] == path
    assert not pool.held(0)


def test_other_numbers_of_blocks_are_refused(saved):
    path, _ = saved
    pool = HostPool(cache_for("gqa"), 3)
    error = refused("disk_count", load_blocks, path, pool, [[0, 1, 2]])
    assert (error.values["saved"], error.values["given"]) == (2, 3)
    refused("cache_twice", load_blocks, path, pool, [[1, 1]])
    refused("cache_index", load_blocks, path, pool, [[1, 3]])
    refused("offload_each_group", load_blocks, path, pool, [[0, 1], []])
    assert not pool.held(0)


def test_what_holds_nothing_is_not_saved(saved, tmp_path):
    _, pool = saved
    refused("offload_empty", save_blocks, tmp_path / "new", pool, [[0, 2]])
    refused("disk_notes", save_blocks, tmp_path / "new", pool, [[0]], {"a": 1})
    refused("disk_notes", save_blocks, tmp_path / "new", pool, [[0]], "note")
    refused("disk_not_a_pool", save_blocks, tmp_path / "new", "pool", [[0]])
    refused("disk_not_a_pool", load_blocks, tmp_path / "new", None, [[0]])
    refused("disk_path", save_blocks, 7, pool, [[0]])
    refused("disk_path", load_blocks, None, pool, [[0]])
    assert [path.name for path in tmp_path.iterdir()] == ["blocks.safetensors"]


@pytest.mark.parametrize("fails", ["save_file", "_seal"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(saved, tmp_path, monkeypatch, fails):
    path, pool = saved
    before = path.read_bytes()
    works = getattr(disk, fails)

    def full(*args):
        """Half of the file is there when the disk is full."""
        works(*args)
        name = args[1] if fails == "save_file" else args[0]
        with open(name, "r+b") as file:
            file.truncate(len(before) // 2)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, fails, full)
    error = refused("disk_write", save_blocks, path, pool, [[0]])
    assert "No space left" in str(error)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_paths_that_cannot_be_used(saved, tmp_path):
    _, pool = saved
    refused("disk_write", save_blocks, tmp_path / "no" / "folder", pool, [[0]])
    (tmp_path / "folder").mkdir()
    refused("disk_write", save_blocks, tmp_path / "folder", pool, [[0]])
    refused("unreadable_file", load_blocks, tmp_path / "absent", pool, [[0, 1]])
    refused("unreadable_file", load_blocks, tmp_path / "folder", pool, [[0, 1]])
    refused("disk_write", save_blocks, f"{tmp_path}/zero\0byte", pool, [[0]])
    refused("unreadable_file", load_blocks, f"{tmp_path}/zero\0byte", pool, [[0, 1]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks.safetensors", "folder"]


def test_saving_again_replaces_the_file(saved):
    path, pool = saved
    save_blocks(path, pool, [[0]], {"second": "yes"})
    with pytest.raises(ArgumentError):
        load_blocks(path, pool, [[0, 1]])
    assert load_blocks(path, pool, [[2]]) == {"second": "yes"}
    assert contents(pool, [[2]]) == contents(pool, [[0]])
