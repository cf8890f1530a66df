"""Planner: one step is put together here. Who is served, who gives blocks back, and who is admitted."""

from bisect import insort
from collections.abc import Iterator

from minikv.blocks import NULL_BLOCK, BlockManager, Match
from minikv.engine.capacity import cheapest_victim, outstanding_blocks, peak_blocks
from minikv.engine.evicting import Keeping
from minikv.engine.offload import Cost, Offload
from minikv.engine.prompt_lookup import propose
from minikv.engine.reporter import Reporter
from minikv.engine.sequence import Sequence, State
from minikv.engine.step_plan import Plan
from minikv.errors import OutOfBlocksError


class Planner:
    """The queue and the running sequences, both in order of arrival, on a manager that nobody else uses.

    Three rules are methods of their own, for a subclass that decides otherwise: ``choose_victim``, ``owed_blocks`` and
    ``draft_tokens``.
    """

    def __init__(
        self,
        manager: BlockManager,
        max_num_seqs: int,
        max_batched_tokens: int,
        report: Reporter,
        offload: Offload,
        prompt_lookup: int = 0,
        evicting: Keeping | None = None,
    ):
        self.manager = manager
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.prompt_lookup = prompt_lookup
        self.evicting = Keeping() if evicting is None else evicting
        self._report = report
        self._offload = offload
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []  # exactly those that the manager has

    def choose_victim(self, candidates: list[Sequence], asked: int) -> Sequence | None:
        """Whom of ``candidates`` to preempt, so that ``asked`` blocks get free in every kind.

        They are all who are younger than the one that lacks blocks, at least one, the oldest first. If it frees too
        few, there is another call for the others. None: nobody, and whoever lacks blocks waits; the oldest may not be
        left to wait, or no request would ever end.
        """
        return cheapest_victim(self.manager, candidates, asked)

    def owed_blocks(self, kind: int) -> int:
        """Blocks of one kind that the running sequences still need: nobody is admitted to them."""
        most_tokens = self.evicting.most_tokens if self.evicting.evicts else None
        return outstanding_blocks(self.manager, self._running, kind, most_tokens)

    def draft_tokens(self, seq: Sequence, most: int) -> list[int]:
        """At most ``most`` tokens that may follow those of ``seq``. A wrong one costs its computation, no more."""
        return propose(self.manager.tokens(seq.id), most)

    def _plan(self, now: float) -> Plan:
        """The next step. If it raises anything, whatever it had taken is given back."""
        plan = Plan(self.max_batched_tokens)
        try:
            self._serve_running(plan, now)
            if not plan.preempted:  # what was just taken from a younger one is not for the youngest
                self._admit(plan, now)
                if self.prompt_lookup:
                    self._guess(plan, now)
            self._report.save(now, self._offload.save_evicted())
        except BaseException:
            self._undo(now)
            raise
        return plan

    def _undo(self, now: float) -> None:
        """Whoever holds slots that were never computed, or never filled, starts again; nothing is lost but time."""
        for seq in list(self._running):
            moved = seq in self._offload.returned or self.evicting.is_planned(seq)
            if moved or self.manager.num_tokens(seq.id) != seq.num_computed:
                self._preempt(seq, now)
        self.evicting.take()
        known = {seq.id for seq in self._running}
        for seq_id in set(self.manager.sequences()) - known:  # allocated, but not yet running
            self.manager.free(seq_id)
        self._offload.settle(arrived=False)

    def _serve_running(self, plan: Plan, now: float) -> None:
        """A token for each decode, the rest of the budget for the prefills, the oldest first."""
        # Mostly neither, and then the loop asks for neither: it runs once a token.
        evicts, listens = self.evicting.evicts, self._report.listens
        singles = sum([seq.missing == 1 for seq in self._running])  # each of them is sure of its token
        for place, seq in _while_it_shrinks(self._running):
            missing = len(seq.tokens) - seq.num_computed
            singles -= missing == 1
            want = min(missing, plan.budget - singles)
            while want > 0:
                start = seq.num_computed
                try:
                    want = self._make_room(seq, want, now) if evicts else want
                    before = self._report.free_blocks() if listens else ()
                    end = start + (1 if want == 1 else max(1, min(want, self._room(seq))))
                    if end == start + 1:
                        copies = self.manager.append(seq.id, seq.tokens[start])
                    else:
                        copies = self.manager.append_tokens(seq.id, seq.tokens[start:end])
                except OutOfBlocksError as error:
                    asked = int(error.values["asked"])  # type: ignore[call-overload]
                    younger = self._running[place + 1 :]
                    victim = self.choose_victim(younger, asked) if younger else None
                    if victim is None:
                        break  # it keeps what it has, and waits for a block
                    singles -= victim.missing == 1
                    self._preempt(victim, now, self._cost(victim))
                    plan.preempted.append(victim)
                    want = min(missing, plan.budget - singles)
                    continue
                plan.copies += copies
                plan.put(seq, start, end, decode=missing == 1 and seq.num_output > 0)
                if listens:
                    self._report.grow(now, seq, end - start, before)
                break

    def _make_room(self, seq: Sequence, want: int, now: float) -> int:
        """Let ``seq`` evict where it is due; returns how many of ``want`` tokens it may compute now."""
        most = self.evicting.until_stop(seq)
        if self.evicting.is_due(seq):
            before = self._report.free_blocks()
            self._report.forget(now, seq, self.evicting.plan(seq), before)
        return min(want, most)

    def _cost(self, seq: Sequence) -> Cost | None:
        """What it costs to preempt ``seq``; None: only a recompute. Blocks that an eviction has yet to fill stay."""
        may_swap = not (self.evicting.is_planned(seq) or self.evicting.is_due(seq))
        return self._offload.cost(seq) if may_swap else None

    def _peak(self, seq: Sequence, window: int | None) -> int:
        """The most blocks that ``seq`` needs for the tokens that it has, in a kind with that ``window``."""
        tokens = len(seq.tokens)
        if window is None:
            tokens = self.evicting.most_tokens(seq, tokens)
        return peak_blocks(tokens, window, self.manager.block_size)

    def _in_last_block(self, seq: Sequence, num_tokens: int) -> int:
        """How many more fit behind ``num_tokens`` tokens of ``seq`` in the kind of layer where that is fewest."""
        size = self.manager.block_size
        return min(-num_tokens % size, -(num_tokens - self.evicting.lost(seq)) % size)

    def _room(self, seq: Sequence) -> int:
        """Tokens that fit into the last block of ``seq`` and the free ones. A prefill's last block is its own."""
        size = self.manager.block_size
        return self._in_last_block(seq, seq.num_placed) + size * min(
            pool.num_free for pool in self.manager.pools
        )

    def _admit(self, plan: Plan, now: float) -> None:
        """Take from the queue, in order, while there are seats, budget and blocks for the whole sequence."""
        seats = self.max_num_seqs - sum(1 + len(seq.pending) for seq in self._running)
        while self._waiting and plan.budget:
            seq = self._waiting[0]
            seats -= 1 + len(seq.pending)
            if seats < 0:
                break
            if seq.swapped:
                if not self._bring_back(plan, seq, now):
                    break
                continue
            salt = self.evicting.salt(seq)
            stop = self.evicting.first_stop(seq)  # what is cached behind it is of no use
            found = self.manager.match(seq.tokens if stop >= len(seq.tokens) else seq.tokens[:stop], salt)
            room = self._room_for(seq, found)
            if room < 1:
                break
            end = min(len(seq.tokens), stop, found.num_tokens + min(plan.budget, room))
            taken = self.manager.allocate(seq.id, seq.tokens[:end], salt)
            # What allocate() has found counts, not what any search before it had.
            seq.num_computed = taken.num_cached
            if seq.num_cached is None:
                seq.num_loaded = taken.num_loaded
            self._start(seq)
            self.evicting.note("add", seq.id)
            plan.put(seq, taken.num_cached, end, decode=False)
            size = self.manager.block_size
            new = -(-end // size) - taken.num_cached // size
            self._offload.load(taken.loads)
            self._report.hit(now, seq, taken)
            self._report.allocate(now, seq, end - taken.num_cached, (new,) * len(self.manager.pools))

    def _room_for(self, seq: Sequence, found: Match) -> int:
        """Tokens behind the cached prefix that a waiting sequence could have now; 0 if it has to wait longer.

        Beside others it waits until all that it has fits, with what they still need: else it would soon be preempted.
        """
        size, fewest = self.manager.block_size, self.manager.pools[0].num_blocks
        for number, (pool, kind) in enumerate(zip(self.manager.pools, self.manager.kinds, strict=True)):
            hits = [block for block in found.tables[number] if block != NULL_BLOCK]
            free = pool.num_free - pool.count_free(hits)
            if self._running:
                need = self._peak(seq, kind.window) - len(hits) + len(seq.pending)
                if need > free - self.owed_blocks(number):
                    return 0
            fewest = min(fewest, free - (len(found.host[number]) if found.host else 0))
        return fewest * size

    def _bring_back(self, plan: Plan, seq: Sequence, now: float) -> bool:
        """A swapped sequence gets device blocks and goes on where it was; False if it has to wait longer."""
        room = self._room_to_return(seq)
        if room < 1:
            return False
        start, decode = seq.num_computed, seq.decoding
        end = min(len(seq.tokens), start + min(plan.budget, room))
        self._report.swap_in(now, seq, self._offload.swap_in(seq))
        self._start(seq)
        self.evicting.note("restore", seq.id)
        end = start + self._make_room(seq, end - start, now)
        before = self._report.free_blocks()
        plan.copies += self.manager.append_tokens(seq.id, seq.tokens[start:end])
        plan.put(seq, start, end, decode)
        self._report.grow(now, seq, end - start, before)
        return True

    def _room_to_return(self, seq: Sequence) -> int:
        """Tokens that a swapped sequence could compute now; 0 or less if it has to wait longer, as in ``_room_for``."""
        size, rooms = self.manager.block_size, []
        held = self.manager.host_blocks_of(seq.id)
        for number, (pool, kind) in enumerate(zip(self.manager.pools, self.manager.kinds, strict=True)):
            if self._running:
                peak = self._peak(seq, kind.window)
                need = max(held[number], peak) + len(seq.pending)
                if need > pool.num_free - self.owed_blocks(number):
                    return 0
            rooms.append(pool.num_free - held[number])
        return self._in_last_block(seq, seq.num_computed) + size * min(rooms)

    def _guess(self, plan: Plan, now: float) -> None:
        """Drafts behind the decodes, of the budget and the blocks that nobody else needs, in this step or the next."""
        size, pools = self.manager.block_size, self.manager.pools
        spare = [pool.num_free - self.owed_blocks(kind) for kind, pool in enumerate(pools)]
        for place, seq in enumerate(plan.seqs):
            if not plan.items[place].decode:
                continue
            room = -seq.num_placed % size + size * max(0, min(spare))
            left = seq.params.max_tokens - seq.num_output - 1  # the step brings a token that is no draft
            most = min(self.prompt_lookup, plan.budget, left, room)
            if most < 1:
                continue
            drafts = self.draft_tokens(seq, most)
            stops = seq.params.stop_token_ids
            drafts = drafts[: next((at for at, token in enumerate(drafts) if token in stops), most)]
            if not drafts:
                continue
            free, before = [pool.num_free for pool in pools], self._report.free_blocks()
            plan.copies += self.manager.append_tokens(seq.id, drafts)
            spare = [many - had + pool.num_free for many, had, pool in zip(spare, free, pools, strict=True)]
            plan.guess(place, seq, drafts)
            self._report.grow(now, seq, len(drafts), before)

    def _roll_back(self, seq: Sequence, drafted: int, accepted: int, now: float) -> None:
        """Take the refused drafts back: before the commit, so that nothing of them can ever be found as a prefix."""
        refused = drafted - accepted
        if refused:
            before = self._report.free_blocks()
            seq.num_placed -= refused
            self.manager.truncate(seq.id, seq.num_placed)
            self._report.rollback(now, seq, refused, before)
        seq.num_drafted += drafted
        seq.num_accepted += accepted

    def _start(self, seq: Sequence) -> None:
        """``seq`` holds blocks from now on."""
        if self._waiting and self._waiting[0] is seq:
            del self._waiting[0]
        insort(self._running, seq, key=lambda each: each.order)
        seq.state = State.RUNNING

    def _preempt(self, seq: Sequence, now: float, cost: Cost | None = None) -> None:
        """Take the blocks of ``seq``; it waits in its place. It computes its tokens again, unless a swap costs less."""
        before = self._report.free_blocks()
        moved = self._offload.swap_out(seq) if cost is not None and cost.swaps else None
        self._report.preempt(now, seq, cost, moved)
        if moved is None:
            self._release(seq, now)
            seq.num_computed = seq.num_placed = 0
        else:
            self._running.remove(seq)
            self.evicting.note("save", seq.id)
            self._report.free(now, seq, before)
        seq.state = State.WAITING
        seq.num_preemptions += 1
        insort(self._waiting, seq, key=lambda each: each.order)

    def _release(self, seq: Sequence, now: float) -> None:
        """The one place where a sequence gives its blocks back."""
        before = self._report.free_blocks()
        self.manager.free(seq.id)
        self.evicting.note("remove", seq.id)
        self._running.remove(seq)
        self._report.free(now, seq, before)


def _while_it_shrinks(running: list[Sequence]) -> Iterator[tuple[int, Sequence]]:
    """Each with its place, though those behind it may be taken away meanwhile."""
    place = 0
    while place < len(running):
        yield place, running[place]
        place += 1
