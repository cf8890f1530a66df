"""The advice of a report is true: each statement, executed where the variable is, lets the storages die."""

import collections
import functools
import gc
import random
import sys
import types
from dataclasses import dataclass

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minikv.memory import retention_report


def followed(prepare, work):
    """Run ``prepare`` and ``work`` as a module would, follow every piece of advice there; (advice, survivors)."""
    module = types.ModuleType("their_code")
    module.__dict__.update(torch=torch, their_code=module, collections=collections, functools=functools)
    sys.modules["their_code"] = module
    try:
        exec(prepare, module.__dict__)
        exec(f"def work():\n    global x\n    {work}", module.__dict__)
        old = stored()
        report = retention_report(module.work)
        assert report.kept, "there is something to let go of"
        releases = list(
            dict.fromkeys(holder.release for one in report.kept for holder in one.holders if holder.release)
        )
        marks = marks_of(report.kept, old)
        for code in releases:
            exec(code, module.__dict__)
        gc.collect()
        return releases, sum(not mark.expired() for mark in marks)
    finally:
        del sys.modules["their_code"]


def stored():
    """The storages of all tensors that the collector lists, by identity, with a weak mark that keeps it exact."""
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    tensors += [item.grad for item in tensors if item.is_leaf and item.grad is not None]
    found = [item.untyped_storage() for item in tensors]
    return {one._cdata: (one.nbytes(), StorageWeakRef(one)) for one in found}


def marks_of(kept, old=()):
    """Weak marks of the live storages that are not ``old`` and have the sizes of ``kept``: rare ones, by choice."""
    sizes = {one.nbytes for one in kept}
    found = [mark for key, (nbytes, mark) in stored().items() if key not in old and nbytes in sizes]
    assert len(found) == len(kept)
    return found


CACHE = "from transformers import DynamicCache\nfrom transformers.utils import ModelOutput\n"
FILLED = "c = DynamicCache(); c.update(torch.ones(1, 1, 3, 331), torch.ones(1, 1, 3, 331), 0)"


@pytest.mark.parametrize(
    ("prepare", "work", "advice"),
    [
        ("x = None", "x = torch.ones(991)", ["del their_code.x"]),
        ("x = []", "x.append({'k': torch.ones(991)})", ["del their_code.x"]),
        (
            "class Box: pass\nx = Box()",
            "x.a = x.b = torch.ones(991)",
            ["del their_code.x"],
        ),
        ("class Box:\n    kept = None\nx = 1", "Box.kept = torch.ones(991)", ["Box.kept = None"]),
        ("x = torch.nn.Linear(2, 2)", "x.kept = torch.ones(991)", ["their_code.x.kept = None"]),
        (
            "x = torch.nn.Linear(2, 2)",
            "x.register_buffer('kept', torch.ones(991))",
            ["their_code.x.kept = None"],
        ),
        (
            "x = torch.nn.Sequential(torch.nn.Linear(2, 2))",
            "x[0].one = x[0].two = torch.ones(991)",
            ["del their_code.x"],
        ),
        (
            "x = torch.nn.Linear(2, 2)",
            "k = torch.ones(991); x.register_forward_hook(lambda *a: k)",
            ["their_code.x._forward_hooks.clear()"],
        ),
        ("x = torch.nn.Linear(991, 7)", "x.double(); x = x", ["del their_code.x"]),
        (
            "x = torch.nn.Sequential(torch.nn.Linear(991, 7, bias=False))",
            "x(torch.ones(1, 991)).sum().backward()",
            ["their_code.x.zero_grad()"],
        ),
        (
            "x = torch.ones(991, requires_grad=True)",
            "(x * 2).sum().backward()",
            ["their_code.x.grad = None"],
        ),
        ("@functools.lru_cache\ndef x(n): return torch.ones(n)", "x(991)", ["their_code.x.cache_clear()"]),
        (
            "class A:\n    @functools.lru_cache\n    def f(self, n): return torch.ones(n)\nx = 1",
            "A().f(991)",
            ["A.f.cache_clear()"],
        ),
        ("x = None", "x = torch.ones(991, requires_grad=True).exp().sum()", ["del their_code.x"]),
        ("x = None", "k = torch.ones(991); x = lambda: k", ["del their_code.x"]),
        ("x = None", "x = functools.partial(print, torch.ones(991))", ["del their_code.x"]),
        (CACHE + "x = None", FILLED + "; x = c", ["del their_code.x"]),
        (CACHE + "x = {}", FILLED + "; x['a'] = c", ["their_code.x['a'] = None"]),
        (CACHE + "x = [0]", FILLED + "; x[0] = c", ["their_code.x[0] = None"]),
        (CACHE + "x = {}", FILLED + "; x['a'] = x['b'] = c", ["del their_code.x"]),
        (CACHE + "x = collections.deque()", FILLED + "; x.append(c)", ["del their_code.x"]),
        (CACHE + "x = None", FILLED + "; x = (c, 1)", ["del their_code.x"]),
        (
            CACHE + "class Box: pass\nx = Box()",
            FILLED + "; x.past_key_values = c",
            ["their_code.x.past_key_values = None"],
        ),
        (
            CACHE + "class Box:\n    __slots__ = ('c',)\nx = Box()",
            FILLED + "; x.c = c",
            ["del their_code.x"],
        ),
        (
            CACHE + "class Box:\n    def __setattr__(self, k, v): pass\nx = Box()",
            FILLED + "; x.__dict__['c'] = c",
            ["del their_code.x"],
        ),
        (
            CACHE + "from transformers.generation import GenerateDecoderOnlyOutput\nx = None",
            FILLED + "; x = GenerateDecoderOnlyOutput(sequences=torch.ones(1), hidden_states=c)",
            ["their_code.x['hidden_states'] = None", "del their_code.x"],
        ),
        (
            CACHE + "x = {}",
            FILLED + "; x['a name that is longer than what the report shows'] = c",
            ["their_code.x['a name that is longer than what the report shows'] = None"],
        ),
    ],
)
def test_the_advice_frees(prepare, work, advice):
    if prepare.startswith(CACHE):
        pytest.importorskip("transformers")
    releases, survivors = followed(prepare, work)
    assert releases == advice
    assert survivors == 0


def test_a_local_of_the_caller_is_let_go_there():
    box = {}
    report = retention_report(lambda: box.update(k=torch.ones(991)))  # noqa: F821
    mark = marks_of(report.kept)[0]
    assert [holder.release for holder in report.kept[0].holders] == ["del box"]
    del box
    assert mark.expired()


@pytest.mark.parametrize("deep", [True, False])
def test_the_last_error_is_cut_short(deep):
    def fails():
        k_cache = torch.ones(991)
        raise RuntimeError(len(k_cache) if deep else k_cache)

    def cell():
        try:
            fails()
        except RuntimeError as error:
            sys.last_exc = sys.last_value = error
            sys.last_type, sys.last_traceback = type(error), error.__traceback__

    try:
        report = retention_report(cell)
        mark = marks_of(report.kept)[0]
        releases = {holder.release for holder in report.kept[0].holders}
        assert ("sys.last_traceback.tb_next = None" in releases) or not deep
        for code in releases:
            exec(code, {"sys": sys})
        gc.collect()
        assert mark.expired()
    finally:
        for name in ("last_exc", "last_value", "last_traceback", "last_type"):
            if hasattr(sys, name):
                delattr(sys, name)


def test_an_error_with_a_cause_is_let_go():
    def fails():
        k_cache = torch.ones(991)
        raise RuntimeError(len(k_cache))

    def cell():
        try:
            try:
                fails()
            except RuntimeError as first:
                raise KeyError("second") from first
        except KeyError as error:
            sys.last_exc = sys.last_value = error
            sys.last_traceback = error.__traceback__

    try:
        report = retention_report(cell)
        mark = marks_of(report.kept)[0]
        for code in {holder.release for holder in report.kept[0].holders}:
            exec(code, {"sys": sys})
        gc.collect()
        assert mark.expired()
    finally:
        for name in ("last_exc", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)


def test_what_python_itself_holds_gets_no_advice():
    import threading

    ready, stop = threading.Event(), threading.Event()

    def work():
        mine = torch.ones(991)
        ready.set()
        stop.wait(30)
        del mine

    class Job(threading.Thread):
        def run(self):
            self.kept = torch.ones(997)
            ready.set()
            stop.wait(30)

    def start(make):
        ready.clear()
        make().start()
        ready.wait(30)

    threads = (lambda: threading.Thread(target=work, daemon=True), lambda: Job(daemon=True))
    reports = [retention_report(functools.partial(start, make)) for make in threads]
    stop.set()
    for report in reports:
        assert report.kept
        assert {holder.release for one in report.kept for holder in one.holders} == {""}


@pytest.mark.parametrize("seed", range(6))
def test_random_nests_of_modules_boxes_and_caches(seed):
    """Whatever the nest and however often a tensor is in it: following all the advice frees all of it."""
    rng = random.Random(seed)

    @dataclass
    class Point:
        a: object = None
        b: object = None

    module = types.ModuleType("their_code")
    module.roots = [torch.nn.Linear(2, 2), {}, Point(), [None] * 4]
    places = list(module.roots)

    def put(owner, value):
        if isinstance(owner, torch.nn.Module):
            setattr(owner, rng.choice("pqr"), value)
        elif isinstance(owner, Point):
            setattr(owner, rng.choice("ab"), value)
        else:
            owner[rng.randrange(4)] = value

    def build():
        values = [torch.ones(983) for _ in range(4)]
        for _ in range(25):
            fresh = rng.choice([Point(), {}, [None] * 4, torch.nn.Module()])
            put(rng.choice(places), rng.choice([*values, fresh, fresh]))
            places.append(fresh)
        places[4:] = []

    module.r0, module.r1, module.r2, module.r3 = module.roots
    places_only = module.__dict__.pop("roots")
    places_only.clear()
    sys.modules["their_code"] = module
    try:
        report = retention_report(build)
        if not report.kept:
            return
        marks = marks_of(report.kept)
        places.clear()
        releases = {holder.release for one in report.kept for holder in one.holders}
        for code in sorted(code for code in releases if "their_code" in code):
            try:
                exec(code, {"their_code": module})
            except (AttributeError, KeyError, TypeError):
                assert code.count(".") > 2 or "[" in code, "only what another statement has let go before"
        gc.collect()
        assert all(mark.expired() for mark in marks), releases
    finally:
        del sys.modules["their_code"]
