"""Runs of a sweep at once: in processes of this machine through joblib, or on the workers of a Dask cluster.

A run is computed from the same values by the same code wherever it is, so its figures are the same to the last bit.
The trace is pickled once; joblib lets its processes share the bytes, and Dask sends them to each worker once.
"""

import pickle
import signal
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal

import numpy as np

from minikv.errors import ArgumentError, MiniKVError, MissingPackageError, check_choice, first_line
from minikv.simulate.trace import Trace

Backend = Literal["processes", "dask"]
Run = Callable[[Trace], Any]
Ended = Generator[tuple[int, Any], None, None]
"""(number of a run, its result), in the order in which they end."""

EVERY_CORE = -1
CONNECT_SECONDS = 10  # until a cluster has to answer with a worker


def check_jobs(jobs: int, backend: Backend, scheduler: str | None) -> None:
    """Raise ``ArgumentError`` unless these say where runs are computed, and how many at once."""
    check_choice("backend", backend, Backend)
    if type(jobs) is not int or (jobs < 1 and jobs != EVERY_CORE):
        raise ArgumentError("sweep_jobs", value=jobs)
    if (backend == "dask") != (scheduler is not None):
        raise ArgumentError("sweep_scheduler")
    if backend == "dask" and jobs != 1:
        raise ArgumentError("sweep_jobs_of_cluster")


def on_cores(runs: Sequence[Run], trace: Trace, jobs: int, most: int) -> Ended:
    """Call each of ``runs`` with ``trace`` in a process, ``jobs`` at once (-1: one a core), but at most ``most``.

    Raises ``ArgumentError`` for what cannot be pickled, and ``MiniKVError`` where a process was killed. Whatever ends
    this iterator early ends the processes.
    """
    from joblib import Parallel, cpu_count, delayed, parallel_config

    count = min(cpu_count() if jobs == EVERY_CORE else jobs, most, len(runs))
    packed = _packed(trace)
    calls = (delayed(_call)(number, run, packed) for number, run in enumerate(runs))
    # A terminal sends Ctrl+C to the processes too: they leave it to this one, which ends them.
    deaf = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    with parallel_config("loky", **deaf):
        parallel = Parallel(count, batch_size=1, return_as="generator_unordered")
    ended = parallel(calls)
    try:
        # With "yield from" an early end would reach joblib first, which warns of the runs that are given up.
        for each in ended:  # noqa: UP028
            yield each
    except BrokenProcessPool:
        raise MiniKVError("sweep_process_lost", jobs=count) from None
    except pickle.PicklingError as error:
        raise ArgumentError("sweep_pickle", reason=first_line(error.__cause__ or error)) from None
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ended.close()


def on_cluster(runs: Sequence[Run], trace: Trace, scheduler: str) -> Ended:
    """Call each of ``runs`` with ``trace`` on a worker of the Dask cluster with a scheduler at that address.

    Whatever ends this iterator early takes back what has not begun. Raises ``MissingPackageError``; ``ArgumentError``
    where no cluster with workers answers; ``MiniKVError`` where the workers lack a package, or were killed.
    """
    try:
        from distributed import Client, KilledWorker, as_completed
    except ImportError:
        raise MissingPackageError("sweep_no_dask", wanted="minikv[dask]") from None
    client = None
    try:
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        if client is not None:
            client.close()
        raise ArgumentError("sweep_unreachable", address=scheduler, reason=first_line(error)) from None
    with client:
        packed = client.scatter(_packed(trace), broadcast=True, hash=False)
        futures = [client.submit(_call, number, run, packed, pure=False) for number, run in enumerate(runs)]
        try:
            for future in as_completed(futures, loop=client.loop):
                yield future.result()
        # CancelledError: all workers died that had the trace.
        except (KilledWorker, CancelledError, ImportError) as error:
            raise MiniKVError("sweep_worker_failed", address=scheduler, reason=first_line(error)) from None
        finally:
            client.cancel(futures)


def _packed(trace: Trace) -> np.ndarray:
    """``trace`` as bytes in an array, which joblib and Dask hand on without another copy for each run."""
    return np.frombuffer(pickle.dumps(trace, pickle.HIGHEST_PROTOCOL), np.uint8)


def _call(number: int, run: Run, packed: np.ndarray) -> tuple[int, Any]:
    return number, run(pickle.loads(packed.data))
