"""What the tests of the engine widget share: a small model, LLMs on it, and steps that wait."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import minikv
from minikv import LLM, SamplingParams
from minikv.course.widgets import EngineWidget
from tests.models.running import World

WIDGETS = Path(minikv.__file__).parent / "course" / "widgets"
STEM = list(range(1, 11))
PROMPTS = [[*STEM, number] for number in range(20, 26)]
GREEDY = SamplingParams(temperature=0, max_tokens=5)
SECONDS = 60  # for what takes none


def bare_model():
    return World.bare("llama", num_hidden_layers=2)


@contextmanager
def llms(model) -> Iterator:
    """``make(num_blocks=...)``: an LLM on ``model``, closed after the test."""
    made = []

    def one(**changes):
        for llm in made:
            llm.close()  # one cache at a time is bound to the model
        sizes = dict(num_blocks=40, block_size=4, max_num_seqs=4, max_batched_tokens=16, max_model_len=64)
        made.append(LLM(changes.pop("model", model), **{**sizes, **changes}, seed=1))
        return made[-1]

    yield one
    for llm in made:
        llm.close()


class Gate:
    """Holds the LLM's steps back, all but the first ``free`` and what ``let`` allows. ``reached``: one is held."""

    def __init__(self, llm, free: int = 0):
        self._step, self._allowed, self.reached = llm.step, threading.Semaphore(free), threading.Event()
        llm.step = self

    def __call__(self):
        if not self._allowed.acquire(blocking=False):
            self.reached.set()
            assert self._allowed.acquire(timeout=SECONDS)
        return self._step()

    def let(self, steps: int) -> None:
        self._allowed.release(steps)


def finish(widget: EngineWidget) -> EngineWidget:
    widget.start()
    assert widget.wait(SECONDS)
    return widget


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "minikv-engine"]


def nothing_held(llm) -> bool:
    llm.manager.check_invariants()
    return all(pool.num_used == 0 for pool in llm.manager.pools) and not llm.has_work


def look(widget: EngineWidget) -> list[tuple]:
    """Name and state of each row, with its tokens: cached, computed, to compute, generated."""
    return [(row["name"], row["state"], *row["parts"]) for row in widget.view["rows"]]
