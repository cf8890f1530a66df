"""retention_report names whoever holds what stays: variables, attributes, closures, errors, threads."""

import functools
import sys
import threading
from types import ModuleType

import pytest
import torch

from minikv.memory import Holder, retention_report
from tests.memory.retention.test_report import names, only

BOX = []


@pytest.fixture(autouse=True)
def new_box(only_new_garbage, monkeypatch):
    """A global list that the garbage collector sees: what is older than a test is frozen."""
    monkeypatch.setitem(globals(), "BOX", [])


def test_a_global_is_named_and_how_to_let_go():
    report = retention_report(lambda: BOX.append({"k": torch.ones(4)}))
    holder = Holder("global", "BOX[0]['k']", __name__, f"del {__name__}.BOX")
    assert only(report).holders == (holder,)
    assert "BOX[0]['k']" in report.verdict()
    assert f"del {__name__}.BOX" in report.verdict("zh")


def test_a_variable_of_a_cell_is_a_global_whatever_the_code_of_the_cell_is_called(monkeypatch):
    """IPython before 9 calls it "<cell line: 3>"."""
    module = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", module)
    vars(module).update(torch=torch, retention_report=retention_report)
    source = "def keep():\n    global out\n    out = torch.ones(4)\nreport = retention_report(keep)\n"
    for name in ("<module>", "<cell line: 3>"):
        exec(compile(source, "<cell>", "exec").replace(co_name=name), vars(module))
        assert names(module.report) == {("global", "out", "cells")}
        del module.report, module.out


def test_a_class_attribute_is_named():
    class Registry:
        cache = None

    report = retention_report(lambda: setattr(Registry, "cache", torch.ones(4)))
    assert names(report) == {("class", "Registry.cache", "Registry")}
    assert only(report).holders[0].release == "Registry.cache = None"


def test_a_buffer_left_on_a_module_is_named_as_one_would_write_it():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()))

    def leave():
        model[1][0].k_cache = torch.ones(5)
        model[0].register_buffer("mask", torch.ones(6))

    report = retention_report(leave)
    where = "test_a_buffer_left_on_a_module_is_named_as_one_would_write_it"
    assert names(report) == {("local", "model[1][0].k_cache", where), ("local", "model[0].mask", where)}
    releases = {holder.release for storage in report.kept for holder in storage.holders}
    assert releases == {"model[1][0].k_cache = None", "model[0].mask = None"}


def test_two_holders_of_one_tensor_are_both_named():
    first, second = [], {}

    def twice():
        first.append(torch.ones(3))
        second["again"] = first[0]

    found = {path for _, path, _ in names(retention_report(twice))}
    assert found == {"first[0]", "second['again']"}


def test_a_closure_and_a_partial_are_followed():
    def make():
        inside = torch.ones(9)
        return lambda: inside

    hooks = []
    report = retention_report(lambda: hooks.append(functools.partial(print, make())))
    assert {path for _, path, _ in names(report)} == {"hooks[0].args[0] -> closure of <lambda>(): inside"}


def test_a_suspended_generator_is_followed():
    def steps():
        state = torch.ones(9)
        yield
        del state

    runs = []

    def start():
        runs.append(steps())
        next(runs[0])

    assert {path for _, path, _ in names(retention_report(start))} == {"runs[0] -> state"}
    assert len(retention_report(runs.clear).kept) == 0


def test_the_measured_function_itself_may_be_the_holder():
    def make():
        mine = []
        return lambda: mine.append(torch.ones(9))

    assert names(retention_report(make())) == {("measured", "fn -> closure of <lambda>(): mine[0]", "")}


def test_another_thread_is_looked_at():
    ready, stop = threading.Event(), threading.Event()

    def work():
        held_there = torch.ones(9)
        ready.set()
        stop.wait(30)
        del held_there

    def start():
        threading.Thread(target=work, daemon=True).start()
        ready.wait(30)

    report = retention_report(start)
    stop.set()
    assert {("local", "held_there", "work")} == names(report)


def test_a_last_error_is_named():
    """What the interactive interpreter does with an error that nobody caught."""

    def fails():
        k_cache = torch.ones(50)
        raise RuntimeError(len(k_cache))

    def cell():
        try:
            fails()
        except RuntimeError as error:
            sys.last_exc, sys.last_traceback = error, error.__traceback__

    report = retention_report(cell)
    assert names(report) == {
        ("error", "sys.last_exc -> frame fails() -> k_cache", "sys"),
        ("error", "sys.last_traceback -> frame fails() -> k_cache", "sys"),
    }
    assert report.verdict().endswith("let go with: sys.last_traceback.tb_next = None.")
    del sys.last_exc, sys.last_traceback
    assert retention_report(lambda: None).kept == ()


def test_an_exception_is_reported_and_what_its_traceback_kept():
    def fails():
        k_cache = torch.ones(50)
        raise RuntimeError(f"of {len(k_cache)}")

    report = retention_report(fails)
    assert report.raised == "RuntimeError: of 50"
    assert (report.kept, report.result_bytes) == ((), 200)
    assert report.result[0].holders[0].path == "exception -> frame fails() -> k_cache"
    assert report.verdict().startswith("The call raised RuntimeError: of 50; ")


def test_an_interrupt_goes_on():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retention_report(stop)


def test_objects_that_refuse_everything_are_passed_through():
    """Neither ``__getattr__``, ``__class__``, ``__eq__``, ``__hash__`` nor ``__repr__`` of a user's class is run."""

    def refuse(*_):
        raise AssertionError("run")

    class Evil:
        __getattr__ = __eq__ = __repr__ = __len__ = __iter__ = __bool__ = refuse
        __hash__ = object.__hash__
        __class__ = property(refuse)

    class Slots:
        __slots__ = ("__hidden", "part")

    class Items(dict):
        items = keys = values = __iter__ = refuse

    box = []

    def keep():
        evil, slots, items = Evil(), Slots(), Items()
        object.__setattr__(evil, "inner", torch.ones(5))
        slots.part = torch.ones(6)
        dict.__setitem__(items, evil, torch.ones(7))
        box.append((evil, slots, items))

    report = retention_report(keep)
    assert {path for _, path, _ in names(report)} == {"box[0][0].inner", "box[0][1].part", "box[0][2][Evil]"}
    assert report.text()


def test_a_long_chain_is_cut_in_the_middle():
    def nest(depth, inside):
        return (lambda: inside) if depth == 0 else nest(depth - 1, lambda: inside)

    box = []
    report = retention_report(lambda: box.append(nest(12, torch.ones(5))))
    path = only(report).holders[0].path
    assert path.startswith("box[0] -> closure of ")
    assert path.endswith("inside")
    assert path.count(" -> ") == 5
    assert " -> ... -> " in path


def test_the_caller_of_a_named_function_is_no_holder_by_its_name():
    mine = []

    def step():
        mine.append(torch.ones(5))

    assert {path for _, path, _ in names(retention_report(step))} == {"mine[0]"}


def test_frozen_objects_are_said_to_be_hidden():
    """A server that called ``gc.freeze()`` hides its lists from every search: the report says why it is silent."""
    import gc

    class Keeper:
        def __init__(self):
            self.inner = []

    def make():
        keeper = Keeper()
        return lambda: keeper.inner.append(torch.ones(5))

    work = make()
    gc.freeze()
    report = retention_report(work)
    assert report.frozen > 0
    assert only(report).holders[0].kind in ("unseen", "loose")
    assert "gc.freeze()" in report.text()
    assert "gc.freeze()" in report.text("zh")


def test_a_model_of_hundreds_of_tensors_that_stays_is_named_once():
    box = {}
    report = retention_report(
        lambda: box.update(model=torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(420)))
    )
    assert len(report.kept) == 840
    assert {path.split("[")[0] for _, path, _ in names(report)} == {"box"}
    assert report.verdict().count("a local variable of") == 1
    assert report.verdict().endswith("let go with: del box.")
    model = box.pop("model")
    late = retention_report(lambda: [layer.register_buffer("m", torch.ones(3)) for layer in model] and None)
    assert len(late.kept) == 420
    assert late.verdict().endswith(", and with the others likewise.")
