"""Every ``LLM`` inside of ``overlapping`` launches steps ahead, as on a GPU, on one of two stand-ins for a device.

``Prompt`` computes a step when it is launched. ``Late`` computes as late as any device may: when somebody waits for a
token, and then in the order of the launches. So it sees whether the host changes an array that was handed over, or
needs a number that is not there yet; and a row that was dropped is computed after its blocks have gone to others.
"""

import functools
from contextlib import contextmanager
from unittest.mock import patch

from minikv.engine import SamplingParams, factory
from minikv.engine.core.runner import Runner
from tests.engine.llm_world import make


class Work:
    """A step that was launched."""

    def __init__(self, device, step, call):
        self.device, self.step, self.call = device, step, call
        self.drawing = self.error = None

    def compute(self):
        try:
            self.drawing = self.call()
        except BaseException as error:
            self.error = error

    @property
    def token_ids(self):
        """Nobody but a later step on the device may ask."""
        assert self.drawing is not None, "a step ahead of one that failed"
        return self.drawing.token_ids

    def read(self):
        self.device.notes.append(("read", self.step))
        self.device.reach(self)
        if self.error is not None:
            raise self.error
        return self.drawing.read()


class Prompt:
    """``notes`` are ("launch" or "read", step) in their order."""

    def __init__(self):
        self.notes = []

    def launch(self, work):
        work.drawing = work.call()

    def reach(self, work):
        pass

    def launched(self):
        return [step for what, step in self.notes if what == "launch"]

    def ahead(self):
        """The steps ahead."""
        return [step for step in self.launched() if (step.batch.sources is not None)]


class Late(Prompt):
    def __init__(self):
        super().__init__()
        self.queue = []

    def launch(self, work):
        self.queue.append(work)

    def reach(self, work):
        while self.queue:
            first = self.queue.pop(0)
            first.compute()
            if first is work:
                return
        raise AssertionError("read twice, or never launched")


@contextmanager
def overlapping(device):
    """Yields ``device``, ``Prompt()`` or ``Late()``, on which every LLM of the block runs."""
    run = Runner.run

    def noted(runner, step, params, draws, before=None):
        assert (before is None) != (step.batch.sources is not None)
        device.notes.append(("launch", step))
        work = Work(device, step, lambda: run(runner, step, params, draws, before))
        device.launch(work)
        return work

    with patch.object(factory, "can_overlap", lambda adapter: True), patch.object(Runner, "run", noted):
        yield device


DEVICES = {"prompt": Prompt, "late": Late}


def drawn(**more):
    """Other than the small model's likeliest tokens those that it draws are hardly ever the same."""
    return SamplingParams(temperature=2, max_tokens=12, seed=290, **more)


@functools.cache
def without(model):
    """The 12 tokens that are ``drawn`` for the reference's prompt 7 where nothing is ahead."""
    with make(model.model) as llm:
        llm.overlaps = False
        tokens = llm.generate(model.prompts[7], drawn())[0].token_ids
    assert len(set(tokens)) == 12, "a stop token is met where it is meant"
    return tokens
