"""Prefix blocks from one LLM to the next through a folder: found again, and never in the wrong model's hands."""

import json
import random
import shutil
import stat
import warnings

import pytest
import torch

from minikv.cache.offload import HostPool
from minikv.engine import EventLog
from minikv.engine.factory import build_manager
from minikv.engine.serve.prefix_files import PrefixFile, identity_of
from minikv.plan.preemption import TransferRates
from tests.cache.resealed import MALFORMED, ZEROS, metadata, notes, reseal
from tests.engine.llm_world import greedy, make, reference
from tests.models.running import World

SWAP = TransferRates(to_host=1e9, to_device=1e9, prefill=1.0)


def prompt_of(model):
    return max(model.prompts, key=len)


def answer(model, folder, salt="", prompt=None, **options):
    """(tokens, tokens found on the host) of one prompt in a new LLM on the folder."""
    log, prompt = EventLog(), prompt_of(model) if prompt is None else prompt
    options = {"num_blocks": 20, "swap_rates": SWAP, "cpu_kv_bytes": 2**18, "emit": log} | options
    with make(model.model, prefix_dir=folder, **options) as llm:
        (out,) = llm.generate([prompt], greedy(4), salt=salt)
    return list(out.completions[0].token_ids), sum(event.tokens for event in log.of("host_hit"))


@pytest.fixture(scope="module")
def model():
    return reference("llama")


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A folder that an LLM has left behind; copy it before it changes."""
    folder = tmp_path_factory.mktemp("saved") / "made" / "here"
    due, _ = model.answer(prompt_of(model), 4)
    assert answer(model, folder) == (due, 0)
    (path,) = folder.iterdir()
    assert path.name.startswith("prefixes-")
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "prefixes")


def test_the_next_run_computes_only_what_is_new(model, folder):
    due, _ = model.answer(prompt_of(model), 4)
    whole = (len(prompt_of(model)) - 1) // 4 * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(model, folder) == (due, whole)
        assert answer(model, str(folder)) == (due, whole), "and the one after it"
    assert len(list(folder.iterdir())) == 1, "no half-written file is left"


def test_a_folder_that_is_made_is_open_to_its_owner_alone(saved, model, tmp_path):
    assert stat.S_IMODE(saved.stat().st_mode) == 0o700
    (path,) = saved.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    given = tmp_path / "given"
    given.mkdir(mode=0o750)
    answer(model, given)
    assert stat.S_IMODE(given.stat().st_mode) == 0o750, "one that was there stays as it was"


def test_another_salt_finds_nothing(model, folder):
    due, _ = model.answer(prompt_of(model), 4)
    assert answer(model, folder, salt="tenant b") == (due, 0)
    assert answer(model, folder, salt="tenant b")[1] > 0, "its own it does find"
    assert answer(model, folder)[1] > 0


def test_windows_and_full_layers_come_back_together(tmp_path):
    model = reference("gemma3_text")
    due, _ = model.answer(prompt_of(model), 4)
    assert answer(model, tmp_path) == (due, 0)
    found = answer(model, tmp_path)
    assert found[0] == due
    assert found[1] > 0


def test_of_more_than_there_is_room_for_the_last_used(model, folder):
    """Room for two blocks: those that begin the prompt are the last to be evicted, so they are what is loaded."""
    due, _ = model.answer(prompt_of(model), 4)
    with make(model.model) as llm:
        each = llm.cache.kv_cache_groups[0].block_bytes(4)
    assert answer(model, folder, cpu_kv_bytes=2 * each) == (due, 8)


def test_two_llms_at_once(model, folder):
    """The last to close leaves what it knows, in one piece."""
    options = {"num_blocks": 20, "swap_rates": SWAP, "cpu_kv_bytes": 2**18, "prefix_dir": folder}
    twin = World.bare("llama", num_hidden_layers=2, hidden_size=24, intermediate_size=28)
    twin.load_state_dict(model.model.state_dict())
    short = model.prompts[0] + model.prompts[5]
    with make(model.model, **options) as first, make(twin, **options) as second:
        first.generate([short], greedy(1))
        second.generate([prompt_of(model)], greedy(1))
    assert answer(model, folder, prompt=short)[1] == (len(short) - 1) // 4 * 4
    assert len(list(folder.iterdir())) == 1


def test_a_model_of_the_same_shape_has_a_file_of_its_own(model, folder):
    other = World.bare("llama", num_hidden_layers=2, hidden_size=24, intermediate_size=28)
    other.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        other.model.layers[0].self_attn.k_proj.weight[0, 0] += 1e-3
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with make(other, num_blocks=20, cpu_kv_bytes=2**18, prefix_dir=folder, emit=(log := EventLog())) as llm:
        llm.generate([prompt_of(model)], greedy(4))
    assert not log.of("host_hit")
    assert len(list(folder.iterdir())) == 2
    assert all(path.read_bytes() == data for path, data in before.items())


@pytest.mark.parametrize("change", [{"block_size": 8}, {"kv_dtype": "int8"}, {"kv_dtype": "bf16"}])
def test_another_layout_has_a_file_of_its_own(model, folder, change):
    assert answer(model, folder, **change)[1] == 0
    assert len(list(folder.iterdir())) == 2
    assert answer(model, folder)[1] > 0


def test_every_byte_of_a_weight_and_the_config_count(model):
    base = identity_of(model.model, "layout")
    assert identity_of(model.model, "layout") == base
    assert identity_of(model.model, "another layout") != base
    for name, tensor in list(model.model.named_parameters())[::3]:
        flat = tensor.data.view(-1)
        kept = flat[-1].item()
        flat[-1] = kept + 1
        assert identity_of(model.model, "layout") != base, name
        flat[-1] = kept
    assert identity_of(model.model, "layout") == base
    model.model.config.rms_norm_eps *= 2
    assert identity_of(model.model, "layout") != base
    model.model.config.rms_norm_eps /= 2


def refused(model, folder):
    """The LLM warns, answers as without the file, and leaves the file as it is."""
    (path,) = folder.iterdir()
    before = path.read_bytes()
    due, _ = model.answer(prompt_of(model), 4)
    with pytest.warns(UserWarning, match="not used") as told:
        assert answer(model, folder) == (due, 0)
    assert len(told) == 1
    assert told[0].filename.endswith(("llm_world.py", "test_prefix_files.py")), "the line that made the LLM"
    assert [each.read_bytes() for each in folder.iterdir()] == [before]


@pytest.mark.parametrize("place", [0, 9, 60, 0.2, 0.5, 0.9, -1])
def test_a_damaged_file_is_not_used(model, folder, place):
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    data[int(place * len(data)) if isinstance(place, float) else place] ^= 4
    path.write_bytes(data)
    refused(model, folder)


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, -1])
def test_a_file_that_was_cut_off_is_not_used(model, folder, keep):
    (path,) = folder.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    refused(model, folder)


NESTED = "[" * 100_000
BLOCKS = {  # what the notes may say of the blocks, and no writer of ours does
    "nested": notes(blocks=NESTED),
    "blocks are no JSON": notes(blocks="{"),
    "absent": lambda header: metadata(notes=json.dumps({"blocks": "[]"}))(header),
    "a number": notes(blocks="7"),
    "of no kind": notes(blocks="[]"),
    "a digest too short": lambda header: _with_block(header, digest="ab"),
    "no hex": lambda header: _with_block(header, digest="x" * 64),
    "tokens of another block": lambda header: _with_block(header, tokens="00" * 8),
}


def _with_block(header, **changes):
    groups = json.loads(json.loads(header["__metadata__"]["notes"])["blocks"])
    digest, tokens = groups[0][0]
    groups[0][0] = [changes.get("digest", digest), changes.get("tokens", tokens)]
    return notes(blocks=json.dumps(groups))(header)


@pytest.mark.parametrize("form", [*MALFORMED.values(), *BLOCKS.values()], ids=[*MALFORMED, *BLOCKS])
def test_a_malformed_header_under_a_right_checksum_is_a_warning(model, folder, form):
    (path,) = folder.iterdir()
    reseal(path, form)
    refused(model, folder)


def _places(value, at=()):
    """Every place in a tree of JSON."""
    yield at
    for name, each in value.items() if isinstance(value, dict) else ():
        yield from _places(each, (*at, name))
    for number, each in enumerate(value) if isinstance(value, list) else ():
        yield from _places(each, (*at, number))


def _replaced(value, at, new):
    if not at:
        return new
    kept = dict(value) if isinstance(value, dict) else list(value)
    kept[at[0]] = _replaced(value[at[0]], at[1:], new)
    return kept


ODD = [
    None,
    True,
    -1,
    7,
    2**70,
    1e400,
    "",
    "x",
    "\0",
    "U8",
    [],
    [0],
    [[]],
    {},
    {"x": 1},
    [-1, 2**63],
    "0" * 64,
]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_header_says_is_loaded_or_a_warning(model, saved, folder, seed):
    """Any value of the header, of its notes and of their blocks is replaced by an odd one, a hundred times."""
    (path,), draw = folder.iterdir(), random.Random(seed)
    whole = path.read_bytes()
    fields = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    told = json.loads(fields["__metadata__"]["notes"])
    told["blocks"] = json.loads(told["blocks"])
    fields["__metadata__"] |= {"notes": told, "sha256": ZEROS}
    places = sorted(_places(fields), key=str)  # safetensors writes fields in any order
    places = [at for at in places if at not in ((), ("__metadata__", "sha256"))]
    loaded = 0
    with make(model.model, num_blocks=20) as llm:
        for _ in range(100):
            odd = _replaced(fields, draw.choice(places), draw.choice(ODD))
            about = odd["__metadata__"]
            if not isinstance(about, dict) or "sha256" not in about:
                continue  # without a checksum
            if isinstance(inner := about["notes"], dict) and "blocks" in inner:
                written = json.dumps({**inner, "blocks": json.dumps(inner["blocks"])})
                odd = odd | {"__metadata__": {**about, "notes": written}}
            path.write_bytes(whole)
            reseal(path, lambda header, odd=odd: odd)
            pool = HostPool(llm.cache, 20)
            file = PrefixFile(folder, model.model, pool)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                count = file.load(manager := build_manager(llm.cache, 20))
            assert len(said) == (not count)
            assert sum(len(each.cached()) for each in manager.host_pools) == count
            loaded += count > 0
    assert loaded < 50


def test_another_models_file_under_this_name_is_not_used(model, folder):
    """Its checksum is right, and its shapes are: only the identity tells."""
    (mine,) = folder.iterdir()
    other = World.bare("llama", num_hidden_layers=2, hidden_size=24, intermediate_size=28)
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    with make(other, num_blocks=20, cpu_kv_bytes=2**18, prefix_dir=folder) as llm:
        llm.generate([prompt_of(model)], greedy(4))
    (theirs,) = set(folder.iterdir()) - {mine}
    theirs.replace(mine)
    refused(model, folder)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_save_that_does_not_end_closes_all_the_same(model, tmp_path, error, monkeypatch):
    def broken(*args):
        raise error

    llm = make(model.model, num_blocks=20, swap_rates=SWAP, cpu_kv_bytes=2**18, prefix_dir=tmp_path)
    llm.generate([prompt_of(model)], greedy(4))
    monkeypatch.setattr("minikv.engine.serve.prefix_files.save_blocks", broken)
    with (
        pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else pytest.warns(match="MemoryError")
    ):
        llm.close()
    assert not model.model.config._attn_implementation.startswith("minikv")
    assert not llm.host.pool._parts
    llm.close()


def test_a_file_without_room_beside_it_is_not_used(model, folder, monkeypatch):
    class Full:
        free = 0

        @classmethod
        def read(cls, device):
            return cls()

    monkeypatch.setattr("minikv.engine.serve.prefix_files.MemoryStats", Full)
    refused(model, folder)
    Full.free = 10_000_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(model, folder)[1] > 0


def test_a_file_that_cannot_be_written_is_a_warning(model, tmp_path, monkeypatch):
    folder = tmp_path / "there"
    llm = make(model.model, num_blocks=20, swap_rates=SWAP, cpu_kv_bytes=2**18, prefix_dir=folder)
    llm.generate([prompt_of(model)], greedy(4))
    folder.rmdir()
    with pytest.warns(UserWarning, match="were not saved"):
        llm.close()
    assert not model.model.config._attn_implementation.startswith("minikv"), "closed all the same"
