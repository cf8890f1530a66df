"""retention_report: what stays is found and its holder is named; what goes is not; the report itself keeps nothing."""

import gc
import json
import weakref

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from minikv.errors import ArgumentError
from minikv.memory import retention_report

BOX = []


@pytest.fixture(autouse=True)
def new_box(only_new_garbage, monkeypatch):
    """A global list that the garbage collector sees: what is older than a test is frozen."""
    monkeypatch.setitem(globals(), "BOX", [])


def only(report):
    """The one storage that is kept."""
    assert len(report.kept) == 1, report.text()
    return report.kept[0]


def names(report):
    return {(holder.kind, holder.path, holder.where) for storage in report.kept for holder in storage.holders}


# -- nothing stays ---------------------------------------------------------------------------------------------------


def test_work_that_lets_go_keeps_nothing():
    report = retention_report(lambda: torch.ones(1000).sum().item())
    assert (report.kept, report.result, report.caches, report.cycle_bytes, report.raised) == (
        (),
        (),
        (),
        0,
        None,
    )
    assert report.before == report.after
    assert report.verdict() == "Nothing is kept."
    assert report.verdict("zh") == "没有残留。"


def test_the_result_is_told_apart():
    report = retention_report(lambda: {"logits": torch.ones(10), "all": (torch.zeros(5, dtype=torch.int64),)})
    assert not report.kept
    told = {(one.nbytes, one.shape, one.dtype) for one in report.result}
    assert told == {(40, (10,), "float32"), (40, (5,), "int64")}
    paths = {one.holders[0].path for one in report.result}
    assert paths == {"result['logits']", "result['all'][0]"}
    assert report.result_bytes == 80
    assert report.after == report.before


def test_garbage_in_cycles_is_counted():
    def ring():
        part = [torch.ones(25)]
        part.append(part)

    gc.disable()
    try:
        report = retention_report(ring)
    finally:
        gc.enable()
    assert (report.cycle_bytes, report.kept) == (100, ())


def test_what_was_there_before_is_not_kept():
    old = torch.ones(100)
    views = []
    report = retention_report(lambda: views.extend([old[3:], old.t(), old.add_(1)]))
    assert report.kept == ()
    assert report.after.tensors > report.before.tensors
    assert report.after.nbytes == report.before.nbytes


def test_what_is_freed_is_told():
    state = {"cache": torch.ones(100)}
    report = retention_report(lambda: state.update(cache=torch.ones(150)))
    assert (report.freed_bytes, report.kept_bytes) == (400, 600)


# -- storages, not views ---------------------------------------------------------------------------------------------


def test_a_view_counts_its_whole_storage_once():
    box = []

    def views():
        whole = torch.zeros(10, 100)
        box.extend([whole.t()[5:7], whole[:, ::3], whole[0]])

    report = retention_report(views)
    storage = only(report)
    assert (storage.nbytes, storage.tensors) == (4000, 4), (
        "three views, and the tensor that torch keeps as their base"
    )
    assert storage.shape == (10, 100)
    assert ("local", "box[0]", views.__qualname__.split(".")[0]) in names(report)


def test_meta_and_fake_tensors_take_no_memory():
    box = []

    def pretend():
        box.append(torch.empty(1000, device="meta"))
        with FakeTensorMode():
            box.append(torch.empty(1000, device="cuda"))

    assert retention_report(pretend).kept == ()


def test_the_inner_tensors_of_a_subclass_are_what_counts():
    box = []
    report = retention_report(lambda: box.append(TwoTensor(torch.ones(8), torch.ones(8))))
    assert [storage.nbytes for storage in report.kept] == [32, 32]
    assert {holder.path for one in report.kept for holder in one.holders} == {"box[0].a", "box[0].b"}


def test_a_subclass_that_forbids_functions_does_no_harm():
    class Closed(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args, **kwargs):
            raise AssertionError("called")

    box = []
    made = retention_report(lambda: box.append(torch.Tensor._make_subclass(Closed, torch.ones(3))))
    assert only(made).nbytes == 12


def test_sparse_tensors_count_their_parts():
    box = []
    report = retention_report(lambda: box.append(torch.eye(4).to_sparse()))
    assert report.kept_bytes == 4 * 4 + 2 * 4 * 8, "values, and two rows of indices"
    assert names(report) == {("local", "box[0]", "test_sparse_tensors_count_their_parts")}


def test_a_bare_storage_is_found():
    box = []
    report = retention_report(lambda: box.append(torch.ones(6).untyped_storage()))
    assert (only(report).nbytes, only(report).tensors) == (24, 0)


def test_an_array_that_shares_the_memory_is_named():
    box = []
    report = retention_report(lambda: box.append(torch.ones(6).numpy()[2:]))
    assert only(report).nbytes == 24
    assert names(report) == {("local", "box[0].base.base", "test_an_array_that_shares_the_memory_is_named")}


def test_memory_of_an_array_counts_while_a_tensor_reads_it():
    box = []
    report = retention_report(lambda: box.append(torch.from_numpy(np.ones(7))))
    assert only(report).nbytes == 56


def test_saved_tensors_of_a_graph_are_found_under_its_end():
    weight = torch.randn(8, 8, requires_grad=True)
    box = []
    report = retention_report(lambda: box.append((torch.randn(4, 8) @ weight).exp().sum()))
    assert sorted(storage.nbytes for storage in report.kept) == [4, 128, 128]
    paths = {holder.path for storage in report.kept for holder in storage.holders}
    assert {"box[0]", "box[0] -> autograd MmBackward0", "box[0] -> autograd ExpBackward0"} <= paths
    box[0].backward()
    assert retention_report(lambda: None).kept == ()


# -- the report keeps nothing ------------------------------------------------------------------------------------------


def test_the_report_keeps_nothing_alive():
    box, dead = [], []

    def keep():
        box.append(torch.ones(1000))
        dead.append(weakref.ref(box[0]))
        return torch.ones(10)

    report = retention_report(keep)
    mark = torch.multiprocessing.reductions.StorageWeakRef(box[0].untyped_storage())
    box.clear()
    assert mark.expired(), "without a collection: neither the report nor its search holds it"
    assert dead[0]() is None
    held = [item for item in gc.get_referents(report) if isinstance(item, torch.Tensor)]
    assert not held


def test_looking_at_locals_keeps_nothing_alive():
    """Before Python 3.13 reading a frame's locals leaves a copy of them with the frame."""
    mine = torch.ones(77)
    mark = weakref.ref(mine)
    retention_report(lambda: BOX.append(torch.ones(3)))
    BOX.clear()
    del mine
    assert mark() is None


def test_locals_that_somebody_holds_are_left_alone():
    value = torch.ones(2)
    seen = locals()
    retention_report(lambda: BOX.append(torch.ones(3)))
    BOX.clear()
    assert seen["value"] is value


def test_many_tensors_are_all_attributed():
    box = {}

    def load():
        box.update({f"layer{i}.weight": torch.ones(1 + i % 7) for i in range(1000)})

    report = retention_report(load)
    assert len(report.kept) == 1000
    assert all(one.holders[0].path.startswith("box['layer") for one in report.kept)
    assert report.kept_bytes == sum(4 * (1 + i % 7) for i in range(1000))
    assert [one.nbytes for one in report.kept] == sorted((one.nbytes for one in report.kept), reverse=True)


# -- words, JSON, refusals ---------------------------------------------------------------------------------------------


def test_the_words_have_the_numbers_in_both_languages():
    box = []
    report = retention_report(lambda: box.append(torch.ones(1000, 30)) or torch.ones(3))
    for lang in ("en", "zh"):
        said = report.text(lang)
        for piece in ("120,000 B", "1000x30", "float32", "box[0]", "del box", "12 B"):
            assert piece in said
        assert report.verdict(lang) == said.splitlines()[0]


def test_the_dict_is_json():
    box = []
    report = retention_report(lambda: box.append(torch.ones(10)), device="cpu")
    told = json.loads(json.dumps(report.as_dict()))
    assert told["kept_bytes"] == 40
    assert told["kept"][0]["holders"][0]["path"] == "box[0]"
    assert told["stats_before"]["device"] == told["device"] == "cpu"
    assert told["cached"] is None


@pytest.mark.parametrize(
    ("fn", "device", "code"),
    [
        (torch.ones(3), None, "retention_not_callable"),
        (lambda: BOX.append(1), "meta", "arena_device"),
        (lambda: BOX.append(1), "cuda:99", "arena_device"),
    ],
)
def test_bad_input_is_refused_before_the_call(fn, device, code):
    with pytest.raises(ArgumentError) as caught:
        retention_report(fn, device=device)
    assert caught.value.code == code
    assert BOX == []


def test_equal_sizes_come_in_the_order_of_their_paths():
    box = []
    report = retention_report(
        lambda: box.extend(torch.ones(5) for _ in range(12)) or [torch.ones(6) for _ in range(12)]
    )
    assert [one.holders[0].path for one in report.kept] == [f"box[{i}]" for i in range(12)]
    assert [one.holders[0].path for one in report.result] == [f"result[{i}]" for i in range(12)]


def test_a_language_that_we_do_not_write_is_refused_by_name():
    report = retention_report(lambda: None)
    assert report.verdict("zh_CN.UTF-8") == report.verdict("zh")
    for say in (report.verdict, report.text):
        with pytest.raises(ArgumentError, match="fr"):
            say("fr")
