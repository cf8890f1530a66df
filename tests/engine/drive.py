"""Drives a scheduler and a fake model step by step, and looks at everything after each step."""

from collections import Counter

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.engine import EventLog, Events, FinishReason, Scheduler, SequenceStatus
from minikv.engine.ext.drafts import Drafts
from minikv.engine.ext.offload import Offload
from tests.engine.fake_model import Broken, FakeModel, generate


class Clock:
    """Simulated seconds: every look at it moves it on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.125
        return self.now


class Engine:
    """``groups``: one (blocks, window) for each KV cache group; ``host_blocks`` of each on the host, used where the
    ``rates`` say so; ``prompt_lookup``: drafts of a decode at most.
    """

    def __init__(self, groups, block_size=4, host_blocks=0, rates=None, prompt_lookup=0, **limits):
        self.manager = BlockManager(
            [KVCacheGroup(*group) for group in groups],
            block_size,
            host_blocks=HostBlocks(host_blocks, block_size, len(groups)),
        )
        self.log, block_bytes = EventLog(), [100 + k for k in range(len(groups))]
        self.drafts, self.events = Drafts(prompt_lookup), Events(self.log, block_bytes)
        self.offload = Offload(block_bytes, rates)
        self.scheduler = Scheduler(
            self.manager,
            clock=Clock(),
            extensions=[self.drafts, self.offload, self.events],
            **limits,
        )
        self.model = FakeModel(self.manager)
        self.requests = {}  # every request that was ever accepted
        self.steps = []

    def add(self, request_id, prompt, params, salt=""):
        self.requests[request_id] = self.scheduler.add(request_id, prompt, params, salt)
        return self.requests[request_id]

    def step(self, fail_at=None, inside=None):
        """One step; ``inside`` is called while it is open. Returns the sequences or requests that ended."""
        step = self.scheduler.schedule()
        self.check_step(step)
        try:
            tokens = self.model.forward(step, self.requests.__getitem__, fail_at)
        except Broken as error:
            ended = self.scheduler.fail(step, error)
        else:
            if inside is not None:
                inside()
            ended = self.scheduler.finish(step, tokens)
        self.steps.append(step)
        self.check()
        return ended

    def run(self, most=10_000):
        for _ in range(most):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"not done after {most} steps: a livelock")

    def check_step(self, step):
        scheduler = self.scheduler
        assert scheduler.open_step is step
        assert bool(step.items) == scheduler.has_work, "a step without progress"
        assert step.num_tokens <= scheduler.max_batched_tokens
        assert len({item.id for item in step.items}) == len(step.items)
        assert all(item.tokens for item in step.items), "a sequence without a query"
        for group in range(len(self.manager.pools)):
            slots = [slot for slot in step.batch.slot_mapping[group].tolist() if slot >= 0]
            assert len(set(slots)) == len(slots), "two tokens in one slot"
        running = [scheduler.sequence(seq_id) for seq_id in scheduler.running]
        assert sum(1 + len(seq.pending) for seq in running) <= scheduler.max_num_seqs
        for item in step.items:
            seq = scheduler.sequence(item.id)
            assert item.start == seq.num_computed, "positions are those of the whole sequence"
            known = item.end - item.unconfirmed
            assert list(item.tokens[: len(item.tokens) - item.unconfirmed]) == seq.tokens[item.start : known]
            assert (known == len(seq.tokens)) == bool(item.samples)
            assert not item.unconfirmed or (item.decode and not step.preempted)
            assert item.unconfirmed <= self.drafts.most
            assert seq.num_output + item.unconfirmed < seq.params.max_tokens
            assert not set(item.guesses) & set(seq.params.stop_token_ids)
        assert not {item.id for item in step.items} & set(step.preempted)

    def check(self):
        """Between two steps: the manager holds exactly the running sequences, each with what is computed."""
        self.manager.check_invariants()
        scheduler = self.scheduler
        assert set(self.manager.sequences()) == set(scheduler.running)
        for seq_id in scheduler.running:
            seq = scheduler.sequence(seq_id)
            assert seq.status is SequenceStatus.RUNNING
            assert self.manager.num_tokens(seq_id) == seq.num_computed == seq.num_placed
        for queue in (scheduler.waiting, scheduler.running):
            orders = [scheduler.sequence(seq_id).order for seq_id in queue]
            assert orders == sorted(orders)
        swapped = set()
        for seq in map(scheduler.sequence, scheduler.waiting):
            assert seq.status is SequenceStatus.WAITING
            assert seq.num_computed == seq.num_placed
            swapped |= {seq.id} if seq.num_computed else set()  # it lies on the host, or nowhere
        assert set(self.manager.host_blocks.sequences) == swapped
        assert not self.manager.host_blocks.pinned, "only a step holds host blocks without a sequence"
        if not scheduler.has_work:
            self.check_empty()

    def check_empty(self):
        """Every block is back."""
        assert not self.manager.sequences()
        pools = (*self.manager.pools, *self.manager.host_pools)
        assert all(pool.num_free == pool.num_blocks for pool in pools)

    def check_outputs(self):
        """Whatever finished has the tokens of one-at-a-time generation, whatever did not a beginning of them."""
        reasons = Counter()
        for request in self.requests.values():
            for seq in request.sequences:
                due = generate(
                    request.prompt, request.params, request.salt, seq.id.sample, self.model.windows
                )
                reasons[seq.finish_reason] += 1
                if seq.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                    assert seq.output == due, seq.id
                    stopped = due[-1] in request.params.stop_token_ids
                    assert (seq.finish_reason is FinishReason.STOP) == stopped
                else:
                    assert seq.finish_reason is not None
                    assert seq.output == due[: seq.num_output]
        return reasons
