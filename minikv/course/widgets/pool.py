"""The pool widget: a real ``BlockManager`` behind buttons, with each block's owners, shared and cached blocks.

Every press is one operation of the manager and one step of the picture, so the slider goes back through all of them.
An operation that the manager refuses is reported in the readout: it is part of the lesson.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import traitlets

from minikv.blocks import BlockManager
from minikv.course.widgets.base import source
from minikv.course.widgets.blocks import LATEST, BlocksWidget, SequenceBlocks
from minikv.errors import ArgumentError, MiniKVError, UnknownNameError, check_count
from minikv.i18n import text

# Tokens of the new requests, in turn: on, below and above the multiples of a block of 4.
PROMPTS = (6, 9, 4, 11)
OWN_TOKENS = 3  # tokens that a request with a shared prefix adds of its own
MAX_BLOCKS = 64  # with more, a cell has no room for its words
HISTORY = 60  # steps that the slider goes back: all of them are sent with every press
ENDED = 6  # ended sequences that can still be requested again

Said = tuple[str, dict[str, object]] | MiniKVError


class PoolWidget(BlocksWidget):
    """The pool of ``manager``: ``num_blocks`` (at most 64) blocks of ``block_size`` tokens, empty at first.

    ``lang`` is "en" or "zh". ``act`` does what a button does. Raises ``ArgumentError`` as ``BlocksWidget`` does.
    """

    _esm = source("pool.js") + BlocksWidget._esm
    _css = BlocksWidget._css + source("pool.css")

    targets: Any = traitlets.List().tag(sync=True)

    def __init__(self, lang: str = "en", *, num_blocks: int = 24, block_size: int = 4):
        check_count("num_blocks", num_blocks)
        if num_blocks > MAX_BLOCKS:
            raise ArgumentError("out_of_range", what="num_blocks", value=num_blocks, low=0, high=MAX_BLOCKS)
        self._actions: dict[str, Callable[[], list[Said]]] = {
            "step": self._step_all, "new": self._new, "reset": self._reset,
        }  # fmt: skip
        self._aimed: dict[str, Callable[[str], list[Said]]] = {
            "share": self._share, "fork": self._fork, "free": self._free,
        }  # fmt: skip
        super().__init__(lang, num_blocks=num_blocks, block_size=block_size)
        self._reset()
        self._show([("idle", {})])
        self.on_msg(self._pressed)

    def act(self, action: str, sequence: str = "") -> None:
        """Do what the button does: "step", "new", "reset"; for one ``sequence``: "share", "fork", "free".

        An operation that the manager refuses becomes the note of the step. Raises ``ArgumentError`` for another action.
        """
        known = [*self._actions, *self._aimed]
        if action not in known:
            raise ArgumentError("unknown_choice", what="action", value=action, known=", ".join(known))
        with self._turn, self.hold_sync():
            try:
                if action in self._actions:
                    said = self._actions[action]()
                else:
                    said = self._aimed[action](sequence) if sequence else [("idle", {})]
            except MiniKVError as refusal:
                said = [refusal]
            self._show(said)

    def _pressed(self, widget: Any, content: Any, buffers: Any) -> None:
        if content.get("action") in {*self._actions, *self._aimed}:
            self.act(content["action"], str(content.get("sequence") or ""))

    def _form(self, lang: str) -> dict[str, Any]:
        buttons = {
            "actions": [[name, text(f"widgets_pool.{name}", lang)] for name in self._actions],
            "aimed": [[name, text(f"widgets_pool.{name}", lang)] for name in self._aimed],
            "target": text("widgets_pool.target", lang),
        }
        return {**super()._form(lang), "title": text("widgets_pool.title", lang), **buttons}

    def _photo_traits(self) -> dict[str, Any]:
        return {**super()._photo_traits(), "targets": self.targets}

    # The buttons' operations. A forward would follow each of them, so each ends with commit().

    def _reset(self) -> list[Said]:
        self.manager = BlockManager(self._num_blocks, self._block_size)
        self._tokens: dict[str, list[int]] = {}  # of every sequence, also of ended ones
        self._ended: list[str] = []
        self._next_token = 0
        self._looks.clear()
        self.frames = []
        return [("reset", {})]

    def _new(self) -> list[Said]:
        return self._ask(self._fresh(PROMPTS[len(self._tokens) % len(PROMPTS)]))

    def _share(self, sequence: str) -> list[Said]:
        if sequence not in self._tokens:
            raise UnknownNameError("unknown_sequence", sequence=sequence, count=len(self.manager.sequences()))
        return self._ask([*self._tokens[sequence], *self._fresh(OWN_TOKENS)])

    def _ask(self, tokens: list[int]) -> list[Said]:
        name, before = self._name(), self._pool_stats().evictions
        got = self.manager.allocate(name, tokens)
        self.manager.commit(name)
        self._tokens[name] = tokens
        found = self.manager.block_table(name)[: got.num_cached // self._block_size]
        counts = dict(tokens=got.num_tokens, cached=got.num_cached, computed=got.num_tokens - got.num_cached)
        asked = ("new", dict(name=name, blocks=str(found), **counts))
        if not found:
            asked = ("new_alone", dict(name=name, tokens=got.num_tokens))
        stats = self.manager.stats()
        hits: dict[str, object] = dict(hit=stats.hit_tokens, asked=stats.asked_tokens)
        return [asked, ("hits", hits), *self._evicted(before)]

    def _step_all(self) -> list[Said]:
        before = self._pool_stats().evictions
        grown: list[str] = []
        copied: list[Said] = []
        stuck: list[Said] = []
        for name in self._running():
            token = self._fresh(1)
            try:
                copies = self.manager.append(name, token[0])
            except MiniKVError as refusal:
                stuck.append(("stuck", dict(name=name, error=refusal)))
                continue
            self.manager.commit(name)
            self._tokens[name] += token
            grown.append(name)
            copied += [("copy", dict(name=name, src=copy.src, dst=copy.dst)) for copy in copies]
        if not grown and not stuck:
            return [("idle", {})]
        steps: list[Said] = [("step", dict(names=grown))] if grown else []
        return [*steps, *copied, *self._evicted(before), *stuck]

    def _fork(self, sequence: str) -> list[Said]:
        child = self._name()
        self.manager.fork(sequence, child)
        self._tokens[child] = list(self._tokens[sequence])
        blocks = len(self.manager.block_table(child))
        return [("fork", dict(name=sequence, child=child, blocks=blocks))]

    def _free(self, sequence: str) -> list[Said]:
        table, before = self.manager.block_table(sequence), self._pool_stats()
        self.manager.free(sequence)
        self._ended = [*self._ended, sequence][-ENDED:]
        after = self._pool_stats()
        cached = after.cached - before.cached
        empty = after.free - before.free - cached
        held = len(table) - cached - empty
        return [("free", dict(name=sequence, held=held, cached=cached, empty=empty))]

    def _evicted(self, before: int) -> Iterator[Said]:
        count = self._pool_stats().evictions - before
        if count:
            yield "evicted", dict(count=count)

    def _pool_stats(self) -> Any:
        return self.manager.stats().pools[0]

    def _fresh(self, count: int) -> list[int]:
        """Return tokens that no other sequence has."""
        first = self._next_token
        self._next_token += count
        return list(range(first, self._next_token))

    def _name(self) -> str:
        """Return A, B, ..., Z, A2, ...; the name of an ended sequence is not used again."""
        turn, letter = divmod(len(self._tokens), 26)
        return chr(ord("A") + letter) + (str(turn + 1) if turn else "")

    # The parts of the view.

    def _running(self) -> list[str]:
        """Return the running sequences, the oldest first."""
        running = set(self.manager.sequences())
        return [name for name in self._tokens if name in running]

    def _show(self, said: Sequence[Said]) -> None:
        manager, pool = self.manager, self.manager.pools[0]
        rows = [
            SequenceBlocks(name, tuple(manager.block_table(name)), manager.num_tokens(name))
            for name in self._running()
        ]
        cached = [b for b in range(pool.num_blocks) if not pool.ref_count(b) and pool.is_published(b)]
        note = ("" if self._lang == "zh" else " ").join(_say(one, self._lang) for one in said)
        if len(self.frames) == HISTORY:
            self.frames = self.frames[1:]
        self.add_step(rows, note, cached=cached)
        self.step = LATEST
        self.targets = self._choices(self._lang)

    def _choices(self, lang: str) -> list[list[str]]:
        ended = [[name, text("widgets_pool.ended", lang, name=name)] for name in self._ended]
        return [[name, name] for name in self._running()] + ended


def _say(said: Said, lang: str) -> str:
    """Return one sentence. A value that is an error gets the reader's language; a list is joined."""
    if isinstance(said, MiniKVError):
        return said.text(lang)
    key, values = said
    return text(
        f"widgets_pool.said_{key}", lang, **{name: _word(value, lang) for name, value in values.items()}
    )


def _word(value: object, lang: str) -> object:
    if isinstance(value, MiniKVError):
        return value.text(lang)
    return text("widgets_pool.names_joint", lang).join(value) if isinstance(value, list) else value
