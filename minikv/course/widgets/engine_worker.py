"""Worker: computes an ``EngineRun`` in a thread, and hands out a picture of it five times a second at most."""

import threading
import time
import weakref
from collections.abc import Callable

from minikv.course.widgets.engine_picture import Picture
from minikv.course.widgets.engine_run import EngineRun

INTERVAL = 0.2  # seconds


class Worker:
    """``publish`` gets each picture, the last one always, and says whether anybody still looks; if not, the run ends.

    Every method may be called from any thread. One thread at a time computes.
    """

    def __init__(
        self,
        run: EngineRun,
        publish: Callable[[Picture], bool],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._run, self._publish, self._clock = run, publish, clock
        self._turn = threading.RLock()  # held while somebody begins or ends to compute, and for a single step
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None
        self._busy = False

    @property
    def running(self) -> bool:
        """Whether the thread computes. When it no longer does, the last picture has been handed out."""
        with self._turn:
            return self._busy

    def start(self) -> None:
        """Go on in the background, or begin again after the end. While it runs already this does nothing."""
        with self._turn:
            if self._busy:
                return
            if not self._run.open:
                self._run.begin()
            self._busy, self._halt = True, threading.Event()
            self._publish(self._run.picture(running=True))
            done = threading.Event()
            # A daemon, so that a kernel that ends does not wait for the run, only for the step that it is in: a thread
            # that is cut off inside torch takes the process down.
            self._thread = threading.Thread(
                target=self._work, args=(self._halt, done), name="minikv-engine", daemon=True
            )
            weakref.finalize(
                self._thread, _let_it_end, self._halt, done
            )  # at the end of Python at the latest
            self._thread.start()

    def step(self) -> bool:
        """Compute one step here, and say whether anything is left. While the thread runs it does nothing."""
        with self._turn:
            if self._busy:
                return True
            if not self._run.open:
                self._run.begin()
            try:
                self._run.advance()
            except Exception as error:
                self._run.fail(error)
            self._publish(self._run.picture())
            return self._run.open

    def halt(self) -> None:
        """Ask the thread to abort what is left after its step, and wait for nothing; without a thread, abort here."""
        self._halt.set()
        with self._turn:
            if not self._busy and self._run.open:
                self._run.abort()
                self._publish(self._run.picture())

    def wait(self, timeout: float | None = None) -> bool:
        """Until the thread has ended, ``timeout`` seconds at most; whether it has."""
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
                self._publish(last)
        finally:
            done.set()

    def _compute(self, halt: threading.Event) -> None:
        run, shown = self._run, self._clock()
        try:
            while run.open and not halt.is_set():
                run.advance()
                if run.open and self._clock() - shown >= INTERVAL:
                    if not self._publish(run.picture(running=True)):
                        halt.set()
                    shown = self._clock()
            if run.open:
                run.abort()
        except BaseException as error:
            run.fail(error)


def _let_it_end(halt: threading.Event, done: threading.Event) -> None:
    """The thread ends after its step; once it has, this returns at once."""
    halt.set()
    done.wait()
