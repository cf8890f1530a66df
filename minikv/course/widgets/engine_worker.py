"""Worker: computes an ``EngineRun`` in a thread, at a chosen speed, and publishes a picture of every step."""

import threading
import time
import weakref
from collections.abc import Callable

from minikv.course.widgets.engine_picture import Picture
from minikv.course.widgets.engine_run import EngineRun

INTERVAL = 0.2  # seconds
MOST = 400  # pictures of one message; a run without pauses may have more steps between two


class Worker:
    """Computes a run in a thread. ``publish`` gets the pictures since it was called last, always the last one too.

    ``speed`` is steps a second, each published at once; 0: no pause between steps, and they are published five times a
    second at most. ``publish`` returns whether the pictures are still wanted; if not, the run ends. Any thread may
    call every method. One thread at a time computes.
    """

    def __init__(
        self,
        run: EngineRun,
        publish: Callable[[list[Picture]], bool],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._run, self._publish, self._clock = run, publish, clock
        self.speed = 0.0
        self._unseen: list[Picture] = []  # since the last message
        # Held while a thread begins or ends to compute, and during a single step.
        self._turn = threading.RLock()
        self._halt, self._abort = threading.Event(), True
        self._thread: threading.Thread | None = None
        self._busy = False

    @property
    def running(self) -> bool:
        """Whether the thread computes. When it is False, the last picture has been published."""
        with self._turn:
            return self._busy

    def start(self) -> None:
        """Go on in the background, or begin again after the end. Does nothing during a run."""
        with self._turn:
            if self._busy:
                return
            if not self._run.open:
                self._run.begin()
            self._busy, self._halt, self._abort = True, threading.Event(), True
            self._publish([self._run.picture(running=True)])
            done = threading.Event()
            # The thread is a daemon, so that a kernel that ends waits only for the running step, not for the whole run.
            # The finalizer makes the thread end before Python does: a thread that is cut off inside torch crashes the
            # process.
            self._thread = threading.Thread(
                target=self._work, args=(self._halt, done), name="minikv-engine", daemon=True
            )
            weakref.finalize(self._thread, _let_it_end, self._halt, done)
            self._thread.start()

    def step(self) -> bool:
        """Compute one step here and return whether anything is left. Does nothing while the thread runs."""
        with self._turn:
            if self._busy:
                return True
            if not self._run.open:
                self._run.begin()
            try:
                self._run.advance()
            except Exception as error:
                self._run.fail(error)
            self._publish([self._run.picture()])
            return self._run.open

    def pause(self) -> None:
        """Ask the thread to end after its step, without waiting: ``start`` and ``step`` go on from there."""
        with self._turn:
            if self._busy:
                self._abort = False
                self._halt.set()

    def halt(self) -> None:
        """Ask the thread to abort the rest after its step, without waiting; without a thread, abort here."""
        with self._turn:
            self._abort = True
            self._halt.set()
            if not self._busy and self._run.open:
                self._run.abort()
                self._publish([self._run.picture()])

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, ``timeout`` seconds at most; return whether it has."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        return not self.running

    def _work(self, halt: threading.Event, done: threading.Event) -> None:
        try:
            self._compute(halt)
            last = self._run.picture()  # before the turn: it may have to wait for the LLM
            with self._turn:
                self._busy = False
                self._publish([*(one for one in self._unseen if one.steps < last.steps), last])
        finally:
            done.set()

    def _compute(self, halt: threading.Event) -> None:
        run, shown = self._run, self._clock()
        self._unseen = []
        try:
            while run.open and not halt.is_set():
                run.advance()
                self._unseen = [*self._unseen[1 - MOST :], run.picture(running=True)]
                if run.open and (self.speed or self._clock() - shown >= INTERVAL):
                    if not self._publish(self._unseen):
                        halt.set()
                    self._unseen, shown = [], self._clock()
                    if self.speed:
                        halt.wait(1 / self.speed)
            if run.open and self._abort:
                run.abort()
        except BaseException as error:
            run.fail(error)


def _let_it_end(halt: threading.Event, done: threading.Event) -> None:
    """Make the thread end after its step; if it has ended already, return at once."""
    halt.set()
    done.wait()
