"""Many ranks, one engine: rank 0 schedules and samples, the others compute their shards. Lesson 12.

    rank 0    schedule -> send -> forward on its shard -> sample -> finish
    rank 1              receive -> forward on its shard -> receive -> ...

Within the forward the ranks exchange activations, as transformers' plan says. A rank that has ended, or does not
join within the time limit, ends the run: a half-done exchange cannot be resumed.
"""

import atexit
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import psutil
import torch
from torch import Tensor, distributed

from minikv.engine.core.runner import Compute, Runner
from minikv.engine.core.step import Step
from minikv.engine.ext.wire import FRAME, from_words, stop_words, to_words
from minikv.errors import RankLostError, first_line
from minikv.models.sharding import SECONDS, of_connection, ranks_wanted, start_ranks, together

if TYPE_CHECKING:
    from minikv.engine.llm import LLM

# An engine may be idle for long, and the others wait for its next step; they notice at once if rank 0 ends.
IDLE = timedelta(days=365)
ENDING = 1.0  # seconds until a process that has closed its connections is seen as ended


class TensorParallelGroup:
    """The ranks of one LLM and the messages from rank 0; ``join`` makes it on every rank.

    ``messages`` and ``num_bytes`` count what rank 0 has sent, each message once for all ranks.
    """

    def __init__(self, rank: int, size: int, group: Any, processes: list[tuple[str, int]], seconds: float):
        self.rank, self.size = rank, size
        self.messages = self.num_bytes = 0
        self._group, self._processes, self._seconds = group, processes, seconds
        self._broken: RankLostError | None = None
        self._stopped = False

    @classmethod
    def join(cls, tp: int | str, seconds: float = SECONDS) -> "TensorParallelGroup":
        """Join the other ranks of ``tp``, two or more.

        No collective operation may take longer than ``seconds``, unless the caller has initialized
        ``torch.distributed`` with a limit of its own. Raises ``ArgumentError`` if there are not ``tp`` processes,
        ``RankLostError`` if one does not come.
        """
        size = ranks_wanted(tp)
        start_ranks(size, seconds)
        rank = distributed.get_rank()
        limit = timedelta(seconds=seconds) if rank == 0 else IDLE
        processes: list[Any] = [None] * size
        with together(size):
            group = distributed.new_group(backend="gloo", timeout=limit)
            distributed.all_gather_object(processes, (socket.gethostname(), os.getpid()))
        joined = cls(rank, size, group, processes, seconds)
        if rank == 0:
            atexit.register(joined.stop)
        return joined

    def lead(self, runner: Runner) -> None:
        """On rank 0, send each step to the other ranks before ``runner`` computes it."""
        if self.rank == 0:
            runner.compute = partial(self._compute, runner.compute)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Surround everything before the first step. Raises ``RankLostError`` if another rank is lost meanwhile.

        A rank that raises ends, and that is how the others know.
        """
        try:
            yield
        except BaseException as error:
            self._stopped = True  # rank 0 sends no more steps
            if isinstance(error, RankLostError) or of_connection(error):
                raise self._never_started(error) from error
            raise

    def wait(self) -> None:
        """Wait until every rank has come here. Raises ``RankLostError`` if one has ended, or does not come in time."""
        limit = timedelta(seconds=self._seconds)
        try:
            distributed.monitored_barrier(self._group, limit, wait_all_ranks=True)
        except RuntimeError as error:
            values = {"size": self.size, "reason": first_line(error)}
            raise RankLostError("parallel_no_start", **values) from error

    def send(self, step: Step) -> None:
        """Send a step to the other ranks."""
        self._send(to_words(step))

    def stop(self) -> None:
        """Tell the other ranks, from rank 0, that no step follows. Does nothing on other ranks, or a second time."""
        if self.rank or self._stopped or self._broken is not None or not distributed.is_initialized():
            return
        self._stopped = True
        with suppress(RuntimeError):  # a rank that has ended need not be told
            self._send(stop_words())

    def follow(self, runner: Runner) -> None:
        """Compute every step that rank 0 sends, until it stops. Raises ``RankLostError`` if rank 0 has ended."""
        size = runner.adapter.cache.block_size
        while (step := from_words(self._receive(), size)) is not None:
            try:
                runner.compute(runner, step, None)
            except Exception as error:
                values = {"rank": self.rank, "number": step.number, "reason": first_line(error)}
                raise RankLostError("parallel_follower", **values) from error

    def serve(self, llm: "LLM") -> NoReturn:
        """``follow`` with an LLM of this rank, then end the process."""
        try:
            self.follow(llm.runner)
        finally:
            llm.close()
        raise SystemExit(0)

    def check(self) -> None:
        """Raise again the error that ended this run."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)

    def lose(self, step: Step, error: BaseException) -> RankLostError:
        """Return the error for the end of this run: ``error`` has left the ranks at different points."""
        values = {"number": step.number, "reason": first_line(error), "size": self.size}
        ended = self._ended()
        if ended:
            self._broken = RankLostError("parallel_ended", ranks=ended, **values)
        else:
            self._broken = RankLostError("parallel_silent", **values)
        return self._broken

    def _compute(self, compute: Compute, runner: Runner, step: Step, sampled: Tensor | None) -> Tensor:
        """Return the logits of ``step``. Raises ``RankLostError`` for any error, then and in every later step."""
        self.check()
        try:
            self.send(step)
            return compute(runner, step, sampled)
        except Exception as error:
            raise self.lose(step, error) from error
        except BaseException as error:  # also Ctrl+C: the others may be in the middle of this step
            self.lose(step, error)
            raise

    def _never_started(self, error: BaseException) -> RankLostError:
        reason = error.values["reason"] if isinstance(error, RankLostError) else first_line(error)
        values = {"size": self.size, "reason": reason}
        ended = self._ended()
        if ended:
            return RankLostError("parallel_ended_early", ranks=ended, **values)
        return RankLostError("parallel_no_start", **values)

    def _send(self, words: np.ndarray) -> None:
        frame = np.zeros(FRAME, np.int32)
        frame[: len(words)] = words[:FRAME]
        for part in (frame, words[FRAME:]):
            if len(part):
                self._broadcast(torch.from_numpy(part))
                self.messages += 1
                self.num_bytes += part.nbytes

    def _receive(self) -> np.ndarray:
        frame = torch.empty(FRAME, dtype=torch.int32)
        try:
            self._broadcast(frame)
            size = int(frame[0])
            if size <= FRAME:
                return frame[:size].numpy()
            rest = torch.empty(size - FRAME, dtype=torch.int32)
            self._broadcast(rest)
        except RuntimeError as error:
            raise RankLostError("parallel_no_leader", rank=self.rank, reason=first_line(error)) from error
        return torch.cat([frame, rest]).numpy()

    def _broadcast(self, words: Tensor) -> None:
        distributed.broadcast(words, src=0, group=self._group)

    def _ended(self) -> str:
        """Return the other ranks of this machine with ended processes, as "1 (process 4711)"."""
        host = self._processes[self.rank][0]
        others = [
            (rank, pid)
            for rank, (where, pid) in enumerate(self._processes)
            if rank != self.rank and where == host
        ]
        until = time.monotonic() + ENDING
        while True:
            gone = [f"{rank} (process {pid})" for rank, pid in others if not _runs(pid)]
            if gone or time.monotonic() > until:
                return ", ".join(gone)
            time.sleep(ENDING / 50)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
