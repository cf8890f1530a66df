"""The benchmark beside kvpress, with a stand-in for it in this process: what is asked, judged, refused."""

import json
import sys
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks import kvpress_peer
from benchmarks.kvpress_peer import PRESSES, Press, Scale, refusal, rows
from minikv.eviction import ExpectedAttention, Knorm, StreamingLLM

RECENT = {"press": "RecentPress", "options": {"more": 0}}
SCALE = Scale(
    2,
    (0.25,),
    64,
    1,
    (
        Press("recent", RECENT, StreamingLLM()),
        Press("other", RECENT, Knorm(), differs=True),
        Press("around it", {"press": "AroundPress", "around": RECENT}),
        Press("refused", {"press": "RefusedPress"}),
    ),
)


class RecentPress:
    """Keeps the last tokens of a context, as kvpress would: a share, by a hook behind each attention."""

    def __init__(self, compression_ratio, more):
        self.share = 1 - compression_ratio + more

    def cut(self, module, given, options, output):
        layer = options["past_key_values"].layers[module.layer_idx]
        layer.keys, layer.values = self.compress(module, None, layer.keys, layer.values, None, options)

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        kept = int(keys.shape[2] * self.share)
        return keys[:, :, -kept:], values[:, :, -kept:]

    @contextmanager
    def __call__(self, model):
        attentions = (layer.self_attn for layer in model.model.layers)
        hooks = [each.register_forward_hook(self.cut, with_kwargs=True) for each in attentions]
        yield
        for hook in hooks:
            hook.remove()


class RefusedPress:
    def __init__(self, compression_ratio):
        pass

    def __call__(self, model):
        raise AssertionError("not for this model")


@pytest.fixture
def told(monkeypatch, capfd):
    """The rows with the driver in this process, and what was printed."""
    kvpress = ModuleType("kvpress")
    kvpress.RecentPress, kvpress.RefusedPress = RecentPress, RefusedPress
    kvpress.AroundPress = lambda press: press
    monkeypatch.setitem(sys.modules, "kvpress", kvpress)
    monkeypatch.delitem(sys.modules, "benchmarks.kvpress_driver", raising=False)
    driver = import_module("benchmarks.kvpress_driver")
    monkeypatch.setattr(driver, "version", lambda name: "1")

    def run(command, cwd, env, **options):
        assert env["CUDA_VISIBLE_DEVICES"] == ""
        assert command[0] == "python-of-kvpress"
        monkeypatch.setattr(sys, "argv", ["", command[-1]])
        capfd.readouterr()
        driver.main()
        return SimpleNamespace(stdout=capfd.readouterr().out)

    monkeypatch.setattr(kvpress_peer.subprocess, "run", run)
    found = list(rows("python-of-kvpress", SCALE))
    return found, capfd.readouterr().out


def test_the_same_formula_has_the_same_recall_and_each_row_says_beside_what(told):
    found, said = told
    by_claim = {row.claim: row for row in found}
    same = by_claim["tiny-gqa, 25 % kept: recent"]
    assert same.ours == same.peer > 0
    assert same.holds
    assert same.details["entries in its cache"] == [48, 48]
    assert same.details["our perplexity"] == pytest.approx(same.details["its perplexity"], rel=1e-3)
    beside = by_claim["tiny-gqa, 25 % kept: echo beside around it"]
    assert (beside.peer_name, beside.unit) == ("kvpress, around it", "%")
    assert beside.ours > beside.peer
    assert beside.holds
    assert "refused: cannot be used (AssertionError: not for this model)" in said
    assert not any("refused" in row.claim for row in found)


def test_the_same_keys_and_values_are_given_to_both_and_the_places_compared(told):
    found, _ = told
    chosen = {row.claim: row for row in found if "same K and V" in row.claim}
    same, other = (
        chosen[f"tiny-gqa, 25 % kept: {name}, places kept of the same K and V"]
        for name in ("recent", "other")
    )
    assert len(chosen) == 2
    assert (same.ours, same.goal, same.holds) == (100, "all", True)
    assert 0 < other.ours < 100
    assert other.holds
    by_name = {press.name: press.chooses for press in PRESSES}
    assert by_name["KeyDiff"]
    assert not by_name["SnapKV"]
    assert not by_name["KVzip"]


def test_a_prefill_is_timed_on_both_sides(told):
    found, _ = told
    timed = {row.claim: row for row in found if row.unit == "prefills"}
    assert set(timed) == {f"4 layers x 512, a prefill of 64: {name}" for name in ("recent", "other", "echo")}
    assert all(row.ours > 0 and row.peer > 0 for row in timed.values())
    assert all(row.holds == (row.ours <= kvpress_peer.MORE) for row in timed.values())


def test_presses_are_plain_data_with_names_of_their_own():
    assert json.loads(json.dumps([press.press for press in PRESSES]))
    assert len({press.name for press in PRESSES}) == len(PRESSES)
    sinks = {press.policy: press.sinks for press in PRESSES if press.policy is not None}
    assert sinks[ExpectedAttention()] == 4


def test_an_environment_that_is_not_there_or_lacks_it_is_refused_in_a_sentence(tmp_path):
    assert "make bench-kvpress" in refusal(tmp_path / "python")
    assert "has no kvpress" in refusal(kvpress_peer.Path(sys.executable))
