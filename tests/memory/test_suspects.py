"""The five suspects of lesson 16 on the transformers that is installed, and what really keeps memory after a call."""

import sys

import pytest
import torch

from minikv.course.lessons.l16 import suspects as suspects
from minikv.memory import retention_report
from tests.engine.rank_cases import run_ranks

IDS = torch.arange(1, 7).reshape(2, 3)
# Layers, K and V, tokens: one storage a layer and part
CACHED = 2 * 2 * (IDS.shape[1] + suspects.NEW_TOKENS - 1)
# Of one layer's K: B, H, T, D
TENSOR_BYTES = IDS.shape[0] * 2 * (IDS.shape[1] + suspects.NEW_TOKENS - 1) * 16 * 4


@pytest.fixture(scope="module")
def model():
    return suspects.small_model()


def holders(report):
    return {(holder.kind, holder.path) for storage in report.kept for holder in storage.holders}


# -- the five ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_1_generate_keeps_no_cache_on_the_model(attention):
    model = suspects.small_model(attention)
    before = {name: value for name, value in vars(model).items() if name.startswith("past")}
    report = suspects.suspect_generate(model, IDS)
    assert (report.kept, report.caches) == ((), ())
    assert [storage.shape for storage in report.result] == [(2, 3 + suspects.NEW_TOKENS)], "the tokens alone"
    assert before == {name: value for name, value in vars(model).items() if name.startswith("past")}


def test_2_no_mask_is_kept_and_sdpa_without_padding_has_none(model):
    report, shapes = suspects.suspect_mask(model, IDS, torch.ones_like(IDS))
    assert report.kept == ()
    assert shapes[1:] == [None] * (suspects.NEW_TOKENS - 1)


def test_2_a_padded_batch_has_a_mask_at_every_step_and_keeps_none(model):
    """The analysis says None for every decode step: not with padding on the left."""
    report, shapes = suspects.suspect_mask(model, IDS, torch.tensor([[0, 1, 1], [1, 1, 1]]))
    assert report.kept == ()
    lengths = range(IDS.shape[1] + 1, IDS.shape[1] + suspects.NEW_TOKENS)
    assert shapes[1:] == [(2, 1, 1, length) for length in lengths]


def test_2_eager_attention_has_a_mask_at_every_step_and_keeps_none():
    report, shapes = suspects.suspect_mask(suspects.small_model("eager"), IDS, torch.ones_like(IDS))
    assert report.kept == ()
    assert None not in shapes


def test_3_sdpa_keeps_no_state():
    report = suspects.suspect_sdpa()
    assert (report.kept, report.result) == ((), ())


def sharded(rank):
    """What one of two gloo ranks keeps; column and row parallel as in transformers' plan for Llama.

    The first call may set things up (meshes, sharding caches); a second one leaves no storage behind.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, plan = suspects.small_model(), {}
    for layer in range(2):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        plan |= {f"{attention}.{name}_proj": ColwiseParallel() for name in "qkv"}
        plan |= {f"{mlp}.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
        plan |= {f"{attention}.o_proj": RowwiseParallel(), f"{mlp}.down_proj": RowwiseParallel()}
    whole = suspects.answer(model, IDS)
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    same = torch.equal(suspects.answer(model, IDS), whole)
    report = retention_report(lambda: suspects.answer(model, IDS))
    torch.distributed.barrier()
    return {"same": same, "kept": len(report.kept), "caches": len(report.caches)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="gloo with a file store")
def test_4_tensor_parallelism_adds_no_buffers(tmp_path):
    told = run_ranks(sharded, 2, tmp_path / "ranks")
    assert told == [{"same": True, "kept": 0, "caches": 0, "exit": 0}] * 2


def test_5_a_helper_that_returns_text_keeps_nothing(model):
    report = suspects.suspect_helper(model, IDS, lambda row: " ".join(map(str, row)))
    assert (report.kept, report.result, report.caches) == ((), (), ())


# -- what does keep ----------------------------------------------------------------------------------------------------


def test_return_dict_in_generate_brings_the_cache_along(model):
    report = retention_report(lambda: suspects.answer(model, IDS, return_dict_in_generate=True))
    assert report.kept == ()
    paths = {holder.path for storage in report.result for holder in storage.holders}
    # behind "result.past_key_values", or "result.cache" from transformers 5.24 on
    assert {"layers[0].keys", "layers[1].values"} <= {path.split(".", 2)[-1] for path in paths}
    assert [(cache.kind, cache.nbytes, cache.in_result) for cache in report.caches] == [
        ("DynamicCache", 4 * TENSOR_BYTES, True)
    ]


def test_a_cache_of_your_own_stays(model):
    from transformers import DynamicCache

    mine = DynamicCache()
    report = retention_report(lambda: suspects.answer(model, IDS, past_key_values=mine))
    assert report.kept_bytes == 4 * TENSOR_BYTES
    assert {("local", "mine.layers[0].keys"), ("local", "mine.layers[1].values")} <= holders(report)
    assert {holder.release for storage in report.kept for holder in storage.holders} == {"del mine"}
    assert [(cache.kind, cache.in_result) for cache in report.caches] == [("DynamicCache", False)]


@pytest.fixture
def shell():
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactive.InteractiveShell()
    yield shell
    shell.reset()
    shell.history_manager.end_session()
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        if hasattr(sys, name):
            delattr(sys, name)


def test_ipython_keeps_outputs(shell, capsys):
    shell.user_ns["torch"] = torch
    report = retention_report(lambda: bool(shell.run_cell("torch.ones(1000)", store_history=True)))
    found = holders(report)
    assert report.kept_bytes == 4000
    assert {("output", "Out[1]"), ("output", "_"), ("output", "_1")} <= found
    assert report.verdict().endswith("let go with: %xdel _1.")
    quiet = retention_report(lambda: bool(shell.run_cell("torch.ones(1000);", store_history=True)))
    assert not any(kind == "output" for kind, _ in holders(quiet)), "a semicolon keeps it out of Out"


def test_ipython_keeps_the_last_error(shell, capsys):
    shell.user_ns["torch"] = torch
    cell = "def load():\n    k_cache = torch.ones(1000)\n    raise KeyError(len(k_cache))\nload()"
    report = retention_report(lambda: bool(shell.run_cell(cell)))
    assert report.raised is None, "the shell has shown it"
    assert report.kept_bytes == 4000
    paths = {path for kind, path in holders(report) if kind == "error"}
    assert any(path.startswith("sys.last_") and path.endswith("frame load() -> k_cache") for path in paths)


@pytest.fixture
def ipywidgets(monkeypatch):
    """With a list of live widgets that is made now: an older one is frozen, and no search finds it."""
    found = pytest.importorskip("ipywidgets")
    monkeypatch.setattr(found.widgets.widget, "_instances", {})
    return found


def test_a_live_widget_keeps_what_its_traits_hold(ipywidgets):
    traitlets = pytest.importorskip("traitlets")

    class Picture(ipywidgets.Widget):
        tokens = traitlets.Any()

    opened = []
    report = retention_report(lambda: opened.append(id(Picture(tokens=torch.ones(50)))))
    assert report.kept_bytes == 200
    assert ("widget", "Picture.tokens") in holders(report)
    assert report.verdict().endswith("let go with: ipywidgets.Widget.close_all().")
    ipywidgets.Widget.close_all()
    assert retention_report(lambda: None).kept == ()


def test_a_callback_of_a_live_widget_keeps_its_closure(ipywidgets):
    def show():
        k_cache = torch.ones(60)
        ipywidgets.Button().on_click(lambda _: k_cache.sum())

    report = retention_report(show)
    found = {path for kind, path in holders(report) if kind == "widget"}
    assert report.kept_bytes == 240
    assert any(path.startswith("Button") and path.endswith("k_cache") for path in found), holders(report)
    ipywidgets.Widget.close_all()
