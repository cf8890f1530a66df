"""Drives a scheduler with two steps open, as ``OverlapLoop`` does on a GPU, and looks at everything after each step."""

from dataclasses import replace

import numpy as np
import pytest

from minikv.blocks import UNKNOWN
from minikv.engine.ext.overlap import schedule_next
from minikv.errors import ArgumentError
from tests.engine.drive import Engine
from tests.engine.fake_model import Broken


class Flight:
    """A step on the device: it has computed it, and what ``launch`` or ``read`` shall raise waits here."""

    def __init__(self, step, tokens, error=None):
        self.step, self.tokens, self.error = step, tokens, error


class AheadEngine(Engine):
    """``Engine`` with two steps open: the second is on the device before anybody has seen the first one's tokens."""

    flight = None
    ahead = 0

    def launch(self, step, before=None, fail_at=None):
        shown = step
        if before is not None:  # as a device does: out of its memory into the forward
            tokens = np.array(before.tokens, np.int64)[step.batch.sources]
            pairs = zip(step.items, tokens.tolist(), strict=True)
            items = tuple(item._replace(tokens=(token,)) for item, token in pairs)
            shown = replace(step, items=items, batch=replace(step.batch, token_ids=tokens))
        try:
            return Flight(step, self.model.forward(shown, self.owners.__getitem__, fail_at))
        except Broken as error:
            return Flight(step, None, error)

    def step(self, fail_at=None, fail_ahead=None, inside=None):
        """One step to its end, and before it the launch of the one behind."""
        flight, self.flight = self.flight, None
        self.owners = dict(self.requests)  # an id may be used again meanwhile
        if flight is None:
            step = self.scheduler.schedule()
            self.check_step(step)
            flight = self.launch(step, fail_at=fail_at)
        behind = schedule_next(self.scheduler) if flight.error is None else None
        if behind is not None:
            self.check_ahead(flight.step, behind)
            self.flight = self.launch(behind, flight, fail_ahead)
            self.ahead += 1
        if inside is not None:
            inside()
        return self.end(flight)

    def end(self, flight):
        if flight.error is None:
            ended = self.scheduler.finish(flight.step, flight.tokens)
        else:
            ended, self.flight = self.scheduler.fail(flight.step, flight.error), None
        self.steps.append(flight.step)
        self.land()
        self.check()
        return ended

    def land(self):
        """What ``LLMEngine`` does: a step that nobody wants any more holds no blocks."""
        while self.scheduler.open_step is not None and not self.scheduler.open_step_is_wanted:
            flight, self.flight = self.flight, None
            self.steps.append(flight.step)
            if flight.error is None:
                assert not self.scheduler.finish(flight.step, flight.tokens)
            else:
                assert not self.scheduler.fail(flight.step, flight.error)

    def check_ahead(self, step, behind):
        scheduler = self.scheduler
        assert scheduler.open_step is step
        assert len(scheduler.open_steps) == 2
        assert behind.batch.sources is not None
        assert behind.number == step.number + 1
        assert behind.items
        assert behind.copies == behind.preempted == ()
        assert not {"swap_out", "swap_in"} & behind.work.keys()
        assert not scheduler.waiting
        rows = {item.id: row for row, item in enumerate(step.items)}
        for item, source in zip(behind.items, behind.batch.sources.tolist(), strict=True):
            assert rows[item.id] == source
            assert step.sampled[source] == item.id
            assert (item.tokens, item.decode, item.samples) == ((UNKNOWN,), True, (item.id,))
            assert item.start == step.items[source].end
            seq = scheduler.sequence(item.id)
            assert not seq.ended
            assert seq.num_output + 2 <= seq.params.max_tokens
            assert self.manager.tokens(item.id)[-1] == UNKNOWN
        for group in range(len(self.manager.pools)):
            both = [*step.batch.slot_mapping[group].tolist(), *behind.batch.slot_mapping[group].tolist()]
            slots = [slot for slot in both if slot >= 0]
            assert len(set(slots)) == len(slots), "two tokens in one slot"
        with pytest.raises(ArgumentError):
            scheduler.finish(behind, [0] * len(behind.items))
        assert schedule_next(scheduler) is None, "two are enough"

    def check(self):
        if self.scheduler.open_step is None:
            super().check()
            return
        self.manager.check_invariants()
        step, scheduler = self.scheduler.open_step, self.scheduler
        assert scheduler.has_work
        held = {seq.id for seq in scheduler.running_sequences}
        assert set(self.manager.sequences()) == held
        rows = {item.id: item for item in step.items}
        assert held == rows.keys()
        assert set(scheduler.running) == {seq.id for seq in scheduler.running_sequences if not seq.ended}
        for item in step.items:
            assert self.manager.num_tokens(item.id) == item.end
            seq = next(seq for seq in scheduler.running_sequences if seq.id == item.id)
            if not seq.ended:
                assert (seq.num_computed, seq.num_placed) == (item.start, item.end)
                assert self.manager.tokens(item.id).tolist() == seq.tokens, "it is known now"
