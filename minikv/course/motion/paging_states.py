"""What paging does, recorded from a real ``BlockManager``: which blocks each sequence has after every call.

It needs the standard library alone: a page that has Python asks it too (``paging_nano``).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from minikv.blocks.pool import NULL_BLOCK
from minikv.course.widgets.parts import letters

if TYPE_CHECKING:
    from minikv.blocks import BlockManager
    from minikv.engine.core.step import Step
    from minikv.engine.llm import LLM
    from minikv.engine.sampling_params import SamplingParams

Kind = Literal["used", "shared", "cached", "empty"]
Said = tuple[str, Mapping[str, Any]]  # a sentence's key, and its values


class Held(NamedTuple):
    """A sequence: its name, a number for its look, its block table, and the ids of the tokens that are stored."""

    name: str
    number: int
    table: tuple[int, ...]
    ids: tuple[int, ...]


class BlockState(NamedTuple):
    """A block: what it is, the names of its holders, and the token ids in its slots, from the first."""

    kind: Kind
    owners: tuple[str, ...]
    ids: tuple[int, ...]


class Write(NamedTuple):
    """K and V of the token at ``position`` of a sequence went to ``slot``."""

    name: str
    position: int
    slot: int


class BlockCopy(NamedTuple):
    """The first ``tokens`` slots of block ``src`` were copied to block ``dst``."""

    src: int
    dst: int
    tokens: int


@dataclass(frozen=True)
class PagingState:
    """The pool after a call, and what the call did: ``found`` blocks were taken with the K and V that they had."""

    said: tuple[Said, ...]
    sequences: tuple[Held, ...]
    blocks: tuple[BlockState, ...]
    writes: tuple[Write, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    found: tuple[int, ...] = ()


class PagingStates:
    """The states of a pool of ``num_blocks`` blocks, each compared with the one before it."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.states: list[PagingState] = []
        self.title = "title"  # the key of a sentence: what a state is
        self._numbers: dict[str, int] = {}

    def add(
        self,
        said: Iterable[Said],
        sequences: Iterable[tuple[str, Sequence[int], Sequence[int]]],
        cached: Mapping[int, tuple[int, ...]],
        begins: Mapping[str, int],
        forks: Sequence[str] = (),
    ) -> None:
        """Add a state: ``sequences`` as name, block table and the ids that are stored; ``cached``: what can be found.

        ``begins`` has, for new sequences, the first token that was written: those before it were found in the
        prefix cache or, in the sequences ``forks``, are the parent's.
        """
        held = tuple(
            Held(name, self._numbers.setdefault(name, len(self._numbers)), tuple(table), tuple(ids))
            for name, table, ids in sequences
        )
        state = PagingState(tuple(said), held, self._blocks(held, cached))
        self.states.append(self._what_happened(state, begins, forks) if self.states else state)

    def say(self, said: Iterable[Said]) -> None:
        """Give the last state its sentences."""
        last = self.states[-1]
        self.states[-1] = PagingState(
            tuple(said), last.sequences, last.blocks, last.writes, last.copies, last.found
        )

    def _blocks(self, held: Sequence[Held], cached: Mapping[int, tuple[int, ...]]) -> tuple[BlockState, ...]:
        size, ids = self.block_size, dict(cached)
        owners: dict[int, list[str]] = {}
        for seq in held:
            for entry, block in enumerate(seq.table):
                if block != NULL_BLOCK:
                    owners.setdefault(block, []).append(seq.name)
                    mine = seq.ids[entry * size : (entry + 1) * size]
                    ids[block] = max(ids.get(block, ()), mine, key=len)  # the holder that is further

        def kind(block: int) -> Kind:
            if block in owners:
                return "shared" if len(owners[block]) > 1 else "used"
            return "cached" if block in cached else "empty"

        return tuple(
            BlockState(kind(block), tuple(owners.get(block, ())), ids.get(block, ()))
            for block in range(self.num_blocks)
        )

    def _what_happened(
        self, state: PagingState, begins: Mapping[str, int], forks: Sequence[str]
    ) -> PagingState:
        """Compare with the state before: which slots were written, which blocks copied, which found."""
        size, before = self.block_size, {seq.name: seq for seq in self.states[-1].sequences}
        writes: list[Write] = []
        copies: list[BlockCopy] = []
        found: list[int] = []
        for seq in state.sequences:
            old = before.get(seq.name)
            known = len(old.ids) if old else begins.get(seq.name, 0)
            if old is None and seq.name not in forks:
                found += seq.table[: known // size]
            for entry, block in enumerate(seq.table):
                if block == NULL_BLOCK:
                    continue
                first = entry * size
                if old and entry < len(old.table) and old.table[entry] not in (block, NULL_BLOCK):
                    copies.append(BlockCopy(old.table[entry], block, min(size, len(old.ids) - first)))
                writes += [
                    Write(seq.name, place, block * size + place - first)
                    for place in range(max(known, first), min(len(seq.ids), first + size))
                ]
        return PagingState(
            state.said, state.sequences, state.blocks, tuple(writes), tuple(copies), tuple(found)
        )


class PagingRecorder(PagingStates):
    """Calls ``manager`` and records its first KV cache group after each call; ``states[0]`` is the group as it was.

    ``allocate``, ``append``, ``fork`` and ``free`` are the manager's. A forward would follow the first two, so both end
    in a ``commit``. ``take`` records what other code did.
    """

    def __init__(self, manager: "BlockManager"):
        super().__init__(manager.pools[0].num_blocks, manager.block_size)
        self.manager = manager
        self.take((("start", {"blocks": manager.pools[0].num_blocks, "size": manager.block_size}),))

    def allocate(self, name: str, tokens: Sequence[int]) -> None:
        """Begin a sequence with ``tokens``."""
        cached = self.manager.allocate(name, tokens).num_cached
        self.manager.commit(name)
        blocks = self.manager.block_table(name)
        found = cached // self.manager.block_size
        values = dict(name=name, tokens=len(tokens), blocks=blocks, cached=cached, rest=len(tokens) - cached)
        said = ("allocate_found", {**values, "found": blocks[:found]}) if found else ("allocate", values)
        self.take((said,), begins={name: cached})

    def append(self, name: str, token: int) -> None:
        """Append a token; a shared last block is copied first."""
        size, taken = self.manager.block_size, len(self.manager.block_table(name))
        copies = [copy for copy in self.manager.append(name, token) if copy.kv_cache_group == 0]
        self.manager.commit(name)
        place, table = self.manager.num_tokens(name) - 1, self.manager.block_table(name)
        entry = place // size
        slot = int(self.manager.slot_mapping(name, place, place + 1)[0])
        values = dict(
            name=name, token=token, place=place, entry=entry, block=table[entry], slot=slot, size=size
        )
        before: list[Said] = [("copy", {"src": copy.src, "dst": copy.dst}) for copy in copies]
        if len(table) > taken:
            before.append(("grow", {"name": name, "block": table[entry]}))
        self.take((*before, ("append", values)))

    def fork(self, parent: str, child: str) -> None:
        """Begin ``child`` with the blocks of ``parent``."""
        self.manager.fork(parent, child)
        said = ("fork", {"name": parent, "child": child, "blocks": self.manager.block_table(child)})
        self.take((said,), begins={child: self.manager.num_tokens(child)}, forks=[child])

    def free(self, name: str) -> None:
        """End a sequence."""
        before = self.states[-1].blocks
        held = [block for block in self.manager.block_table(name) if block != NULL_BLOCK]
        self.manager.free(name)
        self.take(())
        now = [self.states[-1].blocks[block].kind for block in held if before[block].owners == (name,)]
        values = dict(cached=now.count("cached"), empty=now.count("empty"), held=len(held) - len(now))
        self.say([("free", {"name": name, **values})])

    def take(
        self,
        said: Iterable[Said],
        *,
        sequences: Sequence[tuple[Hashable, str, int]] | None = None,
        begins: Mapping[str, int] | None = None,
        forks: Sequence[str] = (),
    ) -> None:
        """Record the manager as it is now; ``begins`` and ``forks`` are ``add``'s.

        ``sequences`` are those to show: id, name, and how many of its tokens are stored; None: all of the
        manager's, whole.
        """
        manager = self.manager
        if sequences is None:
            sequences = [(name, str(name), manager.num_tokens(name)) for name in manager.sequences()]
        held = [
            (name, manager.block_table(seq_id), manager.tokens(seq_id)[:stored].tolist())
            for seq_id, name, stored in sequences
        ]
        pool = manager.pools[0]
        cached = {content.block: tuple(memoryview(content.tokens).cast("q")) for content in pool.cached()}
        self.add(said, held, cached, begins or {}, forks)


def record_generate(
    llm: "LLM", prompts: Sequence[Any], params: "SamplingParams | Sequence[SamplingParams]"
) -> PagingRecorder:
    """Run ``prompts`` through ``llm`` and record its block manager in every step.

    Sequences are A, B, ...; those of a request that has several are A1, A2, ...
    """
    each = [params] * len(prompts) if not isinstance(params, Sequence) else list(params)
    recorder = PagingRecorder(llm.manager)
    asked = [llm.add_request(prompt, one, pieces=False) for prompt, one in zip(prompts, each, strict=True)]

    def name(seq_id: Any) -> str:
        number = asked.index(seq_id.request)
        return letters(number) + (str(seq_id.sample + 1) if each[number].n > 1 else "")

    def look(step: "Step") -> None:
        """Record the blocks that the step's forward reads and writes: a sequence that ends in it still has them."""
        stored = {item.id: item.end for item in step.items}
        running = llm.scheduler.running_sequences
        recorder.take(
            (),
            sequences=[(seq.id, name(seq.id), stored.get(seq.id, seq.num_computed)) for seq in running],
            begins={name(item.id): item.start for item in step.items},
            forks=[name(seq.id) for seq in running if seq.id.sample],
        )
        before, now = recorder.states[-2:]
        had = {seq.name for seq in before.sequences}
        preempted = [name(seq_id) for seq_id in llm.scheduler.waiting if name(seq_id) in had]
        recorder.say(step_said(len(recorder.states) - 1, before, now, preempted))

    schedule = llm.scheduler.schedule

    def watched() -> "Step":
        step = schedule()
        look(step)
        return step

    llm.scheduler.schedule = watched  # type: ignore[method-assign]
    try:
        while llm.has_work:
            llm.step()
    finally:
        del llm.scheduler.schedule  # the class's own again
    recorder.take((("all_ended", {}),), sequences=())
    recorder.title = "title_generate"
    return recorder


def step_said(
    step: int, before: PagingState, state: PagingState, preempted: Sequence[str] = ()
) -> list[Said]:
    """Return the sentences of a step between two states. ``preempted`` have given up their blocks in it."""
    computed = Counter(write.name for write in state.writes)
    said: list[Said] = [("step", {"step": step, "tokens": sum(computed.values()), "each": computed})]
    said += [("found", {"blocks": list(state.found)})] if state.found else []
    said += [("copy", {"src": copy.src, "dst": copy.dst}) for copy in state.copies]
    names = {seq.name for seq in state.sequences}
    ended = [seq.name for seq in before.sequences if seq.name not in names and seq.name not in preempted]
    said += [("ended", {"names": ended})] if ended else []
    return said + ([("preempted", {"names": list(preempted)})] if preempted else [])
