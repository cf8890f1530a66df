"""Runs at once say what runs one after the other say, to the last bit, and end with what started them."""

import copy
import os
import pickle
import signal
import threading
from contextlib import closing
from functools import partial
from importlib import import_module

import psutil
import pytest

from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError
from minikv.simulate import Fleet, Load, RoundRobin, Target, fewest, sweep
from minikv.simulate.parallel import on_cores

MAKE = partial(Fleet.plan, "Llama-3.1-8B", "H200", block_size=64)
LOAD = Load(
    num_requests=40, rate=40.0, prompt_tokens=2000, output_tokens=20, turns=3, think_seconds=1.0, seed=3
).trace()


def said(rows):
    """Of each row the settings, every figure, and what an error says."""
    errors = [row.refused and (type(row.refused), row.refused.values, row.refused.text("zh")) for row in rows]
    return [(row.settings, row.answers, error) for row, error in zip(rows, errors, strict=True)]


@pytest.mark.parametrize("target", [None, Target(p99_ttft=1.0)])
def test_runs_at_once_have_the_figures_and_the_errors_of_one_after_the_other(target):
    values = {"utilization": [0.9, 0.1, 0.2], "router": ["prefix", "least-loaded"]}
    seen = []
    alone = sweep(LOAD, MAKE, target=target, **values)
    at_once = sweep(LOAD, MAKE, target=target, jobs=2, on_row=seen.append, **values)
    assert said(at_once) == said(alone)
    assert {type(row.refused) for row in alone} == {type(None), DoesNotFitError}
    assert len(seen) == len(alone)
    assert all(any(row is each for each in at_once) for row in seen)


def test_a_sweep_for_a_target_finds_the_fewest_of_each_kind():
    target = Target(p99_ttft=0.6)
    for row in sweep(LOAD, MAKE, target=target, tp=[1, 2]):
        found = fewest(LOAD, partial(MAKE, tp=row.settings["tp"]), target)
        assert (row.settings["replicas"], row.answers) == (found.replicas, found.answers)


def test_a_router_begins_each_run_as_it_was_given():
    """Else a row would depend on those before it, which no process knows."""
    trace, make = LOAD.head(3), partial(MAKE, replicas=2, router=RoundRobin())
    alone = sweep(trace, make, max_num_seqs=[8, 9])
    assert alone[0].answers == alone[1].answers
    assert said(sweep(trace, make, jobs=2, max_num_seqs=[8, 9])) == said(alone)


def test_a_make_of_the_notebook_s_own_goes_to_the_processes():
    factor = 2
    (row, _) = sweep(LOAD, lambda replicas: MAKE(replicas=factor * replicas), jobs=2, replicas=[1, 2])
    assert row.answers.gpus == 2


def test_a_make_that_no_process_can_have_is_refused():
    with pytest.raises(ArgumentError) as caught:
        sweep(LOAD, partial(MAKE, weight_bytes=threading.Lock()), jobs=2, block_size=[16, 32])
    assert caught.value.code == "sweep_pickle"


class Broken(Exception):
    pass


def fails(trace):
    raise Broken("as it is")


def dies(trace):
    os._exit(1)


def idles(trace):
    signal.pause()


def test_a_mistake_in_a_process_is_raised_here():
    with pytest.raises(Broken, match="as it is"):
        list(on_cores([fails, len], LOAD, 2, 2))


def test_a_process_that_ends_by_itself_is_told_of():
    with pytest.raises(MiniKVError) as caught:
        list(on_cores([dies, idles], LOAD, 2, 2))
    assert (caught.value.code, caught.value.values["jobs"]) == ("sweep_process_lost", 2)


def workers():
    """The processes of this one that compute runs."""
    children = psutil.Process().children(recursive=True)
    return [each for each in children if any("popen_loky" in word for word in each.cmdline())]


def test_an_iterator_that_is_left_ends_its_processes():
    with closing(on_cores([len, idles], LOAD, 2, 2)) as ended:
        assert next(ended) == (0, len(LOAD))
        running = workers()
    assert running
    assert psutil.wait_procs(running, timeout=60)[1] == []


def test_ctrl_c_ends_the_processes():
    running = []

    def interrupt(row):
        running.extend(workers())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(LOAD, MAKE, jobs=2, on_row=interrupt, block_size=[16, 32, 64])
    assert running
    assert psutil.wait_procs(running, timeout=60)[1] == []


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"jobs": 0}, "sweep_jobs"),
        ({"jobs": -2}, "sweep_jobs"),
        ({"jobs": 2.0}, "sweep_jobs"),
        ({"jobs": True}, "sweep_jobs"),
        ({"backend": "ray"}, "unknown_choice"),
        ({"backend": "dask"}, "sweep_scheduler"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "sweep_scheduler"),
        ({"backend": "dask", "scheduler": "tcp://127.0.0.1:1", "jobs": 2}, "sweep_jobs_of_cluster"),
        ({"jobs": 2, "watch": print}, "sweep_watch"),
        ({"jobs": -1, "progress": print}, "sweep_watch"),
    ],
)
def test_what_does_not_go_together_is_refused(how, code):
    with pytest.raises(ArgumentError) as caught:
        sweep(LOAD, MAKE, block_size=[16, 32], **how)
    assert caught.value.code == code


@pytest.mark.parametrize("target", [None, Target(p99_ttft=1.0)])
def test_the_books_of_all_runs_at_once_have_one_limit(target, monkeypatch):
    """16 GiB together, as for one fleet; a run alone always may."""
    asked = []

    def none_computed(runs, trace, jobs, most):
        asked.append(most)
        yield from enumerate(runs)

    monkeypatch.setattr(import_module("minikv.simulate.sweep"), "on_cores", none_computed)
    for replicas in (1, 20, 300):
        make = partial(MAKE, block_size=1) if target else partial(MAKE, replicas=replicas, block_size=1)
        sweep(LOAD, make, target=target, jobs=64, max_num_seqs=[8, 9])
        most = 256 if target else replicas
        assert 1 <= asked[-1] <= max(1, 16 * 2**30 / (most * MAKE(block_size=1).book_bytes))
    assert target or asked[0] > asked[1] > asked[2] == 1


def test_an_error_is_the_same_after_a_journey():
    error = ArgumentError(
        "trace_request", index=3, reason=DoesNotFitError("fleet_host_small", given="a", least="b")
    )
    for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(other) is ArgumentError
        assert (str(other), other.text("zh"), other.code) == (str(error), error.text("zh"), error.code)
        assert other.values["reason"].values == error.values["reason"].values
