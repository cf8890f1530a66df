"""The report runs no code of the objects that it passes, and finds tensors that only C or C++ refers to."""

import functools
import gc
import sys
import types

import numpy as np
import pytest
import torch

from minikv.memory import retention_report
from tests.memory.retention.test_report import names, only


def test_no_code_of_a_class_or_its_metaclass_runs():
    called = []

    def tell(*args):
        called.append(args[1:])
        raise AssertionError("run")

    class Meta(type):
        def __getattribute__(cls, name):
            called.append(name)
            return super().__getattribute__(name)

    class Plain(metaclass=Meta):
        pass

    class Descriptor:
        __get__ = tell

    class Slotted:
        __slots__ = ("_Slotted__in", "odd")

    Slotted.odd = Descriptor()

    class Pair(tuple):
        _fields = ("a", "b", "c")
        __len__ = __iter__ = tell

    class Dicts:
        @property
        def __dict__(self):
            tell(self)

    class Partial(functools.partial):
        func = args = keywords = property(tell)

    class Array(np.ndarray):
        base = dtype = property(tell)

    class Tensor(torch.Tensor):
        untyped_storage = tell
        grad_fn = grad = is_leaf = property(tell)

    class Text(str):
        __repr__ = __str__ = __eq__ = tell
        __hash__ = str.__hash__

    sizes = iter(range(11, 30))

    def one():
        return torch.ones(next(sizes))

    box = []

    def build():
        plain, slotted, hidden = Plain(), Slotted(), Dicts()
        object.__setattr__(plain, "x", one())
        object.__setattr__(slotted, "_Slotted__in", one())
        object.__setattr__(hidden, "x", one())
        subclass = torch.Tensor._make_subclass(Tensor, one())
        array = one().numpy().view(Array)
        box.extend([plain, slotted, Pair([one()]), hidden, Partial(print, one()), array, subclass])
        box.append({Text("key"): one()})
        called.clear()

    report = retention_report(build)
    assert called == []
    assert len(report.kept) == 8
    assert {holder.kind for storage in report.kept for holder in storage.holders} == {"local"}
    assert {path[:6] for _, path, _ in names(report)} == {f"box[{i}]" for i in range(8)}


def test_an_exception_that_cannot_be_written_is_reported_by_its_class():
    class Silent(Exception):
        def __str__(self):
            raise ValueError

    def fails():
        raise Silent(torch.ones(5))

    report = retention_report(fails)
    assert (report.raised, report.result_bytes) == ("Silent", 20)


def test_a_gradient_is_kept_though_python_never_saw_it():
    weight = torch.randn(4, 4, requires_grad=True)
    report = retention_report(lambda: (torch.randn(3, 4) @ weight).sum().backward())
    where = "test_a_gradient_is_kept_though_python_never_saw_it"
    assert (only(report).nbytes, names(report)) == (64, {("local", "weight.grad", where)})
    assert only(report).holders[0].release == "weight.grad = None"
    again = retention_report(lambda: (torch.randn(3, 4) @ weight).sum().backward())
    assert again.kept == (), "added to, in place"
    assert again.before == again.after


def test_what_a_function_of_autograd_puts_on_its_context_is_under_its_result():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.extra = x * 3
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    weight = torch.randn(9, requires_grad=True)
    box = []
    report = retention_report(lambda: box.append(Twice.apply(weight)))
    assert {path for _, path, _ in names(report)} == {"box[0]", "box[0] -> autograd TwiceBackward"}


def test_an_array_of_objects_is_a_holder():
    box = {}
    report = retention_report(lambda: box.update(a=np.array([None, torch.ones(7)], dtype=object)))
    assert {path for _, path, _ in names(report)} == {"box['a'][1]"}


def test_a_module_that_is_listed_nowhere_is_a_holder_without_advice():
    module = types.ModuleType("nowhere")
    report = retention_report(lambda: setattr(module, "cache", torch.ones(7)))
    assert names(report) == {("global", "cache", "nowhere")}
    assert only(report).holders[0].release == ""


def test_a_closure_is_named_by_its_variable_once():
    box = {}

    def first():
        box["k"] = torch.ones(7)

    def second():
        return box

    report = retention_report(first)
    assert {path for _, path, _ in names(report)} == {"box['k']"}
    assert second() is box


def test_twenty_thousand_tensors_are_named():
    box = {}
    report = retention_report(lambda: box.update({i: torch.ones(3) for i in range(20_000)}))
    assert len(report.kept) == 20_000
    assert {storage.holders[0].path for storage in report.kept} == {f"box[{i}]" for i in range(20_000)}


def test_outputs_of_ipython_go_by_the_advice(capsys):
    shells = pytest.importorskip("IPython.core.interactiveshell")
    main = sys.modules["__main__"]
    shell = shells.InteractiveShell()
    try:
        shell.user_ns["torch"] = torch
        report = retention_report(lambda: bool(shell.run_cell("(torch.ones(977), 1)", store_history=True)))
        codes = {holder.release for storage in report.kept for holder in storage.holders} - {""}
        assert codes == {"%xdel _1"}
        for code in codes:
            shell.run_line_magic(*code[1:].split())
        gc.collect()
        sizes = [item.numel() for item in gc.get_objects() if type(item) is torch.Tensor]
        assert 977 not in sizes
    finally:
        shell.reset()
        shell.history_manager.end_session()
        sys.modules["__main__"] = main
