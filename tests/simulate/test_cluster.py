"""A sweep on a Dask cluster: two workers on this machine."""

import os
import sys

import pytest
from distributed import LocalCluster

from minikv.errors import ArgumentError, MiniKVError, MissingPackageError
from minikv.simulate import sweep
from minikv.simulate.parallel import on_cluster
from tests.simulate.test_parallel import LOAD, MAKE, Broken, fails, said


@pytest.fixture(scope="module")
def address():
    # A worker begins as this process did, and pytest-xdist has started this one without a ``__spec__``.
    with pytest.MonkeyPatch.context() as patched, _cluster(patched) as cluster:
        yield cluster.scheduler_address


def _cluster(patched):
    patched.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    return LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")


def test_a_cluster_gives_the_figures_and_errors_of_one_run_after_the_other(address):
    values = {"utilization": [0.9, 0.1, 0.2], "replicas": [1, 2]}
    seen = []
    there = sweep(LOAD, MAKE, backend="dask", scheduler=address, on_row=seen.append, **values)
    assert said(there) == said(sweep(LOAD, MAKE, **values))
    assert len(seen) == len(there)


def test_a_mistake_on_a_worker_is_raised_here(address):
    with pytest.raises(Broken, match="as it is"):
        list(on_cluster([fails, len], LOAD, address))
    assert list(on_cluster([len], LOAD, address)) == [(0, len(LOAD))], "the cluster goes on"


def lacks(trace):
    import no_such_package  # noqa: F401


def dies(trace):
    os._exit(1)


@pytest.mark.parametrize(("run", "told"), [(lacks, "no_such_package"), (dies, "memory")])
def test_workers_that_cannot_compute_a_run_are_told_of(address, run, told):
    with pytest.raises(MiniKVError, match=told) as caught:
        list(on_cluster([run], LOAD, address))
    assert caught.value.code == "sweep_worker_failed"


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere", "no://where:1", ""])
def test_where_no_cluster_answers_the_address_is_told(address, monkeypatch):
    monkeypatch.setattr("minikv.simulate.parallel.CONNECT_SECONDS", 0.2)
    with pytest.raises(ArgumentError) as caught:
        sweep(LOAD, MAKE, backend="dask", scheduler=address, replicas=[1])
    assert caught.value.code == "sweep_unreachable"


def test_a_cluster_without_workers_is_no_cluster(monkeypatch):
    monkeypatch.setattr("minikv.simulate.parallel.CONNECT_SECONDS", 0.2)
    with LocalCluster(n_workers=0, dashboard_address=":0") as empty, pytest.raises(ArgumentError) as caught:
        sweep(LOAD, MAKE, backend="dask", scheduler=empty.scheduler_address, replicas=[1])
    assert caught.value.code == "sweep_unreachable"


def test_without_distributed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingPackageError, match=r"minikv\[dask\]"):
        sweep(LOAD, MAKE, backend="dask", scheduler="tcp://127.0.0.1:1", replicas=[1])
