"""Beside: nano runs with a learner's parts, and at each of their calls nano's own runs on the same state.

Most wrong parts change no token: blocks freed in another order, another victim, a wrong number of bytes. So the result
of a part and the state after it are compared with those of nano's own. After its first difference nano's own replaces
the part, so that the others are judged on a right state; the finding says so.
"""

import contextlib
import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from minikv.course import guard
from minikv.course.compare import mismatch
from minikv.course.compare import shown as shown_value
from minikv.course.your_engine.assemble import assembled, part_in_nano
from minikv.course.your_engine.finding import Finding
from minikv.course.your_engine.parts import PART_OF, PARTS, Part
from minikv.course.your_engine.state import State, Taken, content_at, first_difference, is_same, narrowed
from minikv.nano.sequence import Sequence

KERNEL = "10.6"
ATTENTION = "10.5"
DIGEST = "09.3"
ALLOCATING = ("09.6", "11a.4")
KERNEL_CALLS = 6  # for each load: a call of the interpreted kernel takes tenths of a second
TILE = 32  # tokens that the kernel takes at a time: a fault of what it carries on shows in longer sequences


class Beside:
    """``theirs``: exercise's id -> the learner's callable. ``tell(task, call)``: which part runs now; "" for none.

    ``calls`` counts the calls of each part, nano's own included; ``findings`` holds the first finding of each wrong
    part, ``printed`` the first lines that each has printed. The caller sets ``load`` and ``step``. ``folder``: the
    working folder of the learner's code, which should not write there.
    """

    def __init__(
        self,
        theirs: Mapping[str, Any],
        tell: Callable[[str, int], None] = lambda task, call: None,
        lang: str = "en",
        folder: str | None = None,
    ):
        self._own = {part.task: part_in_nano(part) for part in PARTS}
        self.theirs = {task: unnested(callable_, self._own[task]) for task, callable_ in theirs.items()}
        self.calls: Counter[str] = Counter()
        self.findings: dict[str, Finding] = {}
        self.printed: dict[str, str] = {}
        self.load, self.step = "", 0
        self._tell, self._lang = tell, lang
        self._reference = False
        self._active = ("", 0)
        self._digests = _Digests()
        self._kernel_calls: Counter[str] = Counter()
        self._folder = folder
        self._files = _files_in(folder)
        self.runs_kernel = KERNEL in self.theirs and self._own[KERNEL] is not None  # none without Triton

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Assemble the parts into nano inside."""
        parts: dict[str, Any] = {part.task: self._wrapped(part) for part in PARTS if part.task != KERNEL}
        if KERNEL in self.theirs:
            parts[KERNEL] = self.theirs[KERNEL]
        with assembled(parts):
            yield

    def _wrapped(self, part: Part) -> Callable:
        own = self._own[part.task]
        if part.task == ATTENTION:
            return self._attention
        signature = inspect.signature(own)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._reference:
                return self._digests.known(own, *args) if part.task == DIGEST else own(*args, **kwargs)
            self.calls[part.task] += 1
            if part.task not in self.theirs:
                return own(*args, **kwargs)
            if part.task in self.findings:
                return self._nano(part, args, kwargs)
            return self._judged(part, signature.bind(*args, **kwargs).arguments, args, kwargs)

        return call

    def _nano(self, part: Part, args: tuple, kwargs: dict) -> Any:
        """Call nano's own in place of a wrong part. Its digests still replace the learner's earlier ones."""
        own = self._own[part.task]
        return self._digests.known(own, *args) if part.task == DIGEST else own(*args, **kwargs)

    def _judged(self, part: Part, arguments: Mapping[str, Any], args: tuple, kwargs: dict) -> Any:
        state = State(arguments)
        before = state.take()
        self._reference = True
        try:
            due = self._nano(part, args, kwargs)
        finally:
            self._reference = False
        after = state.take()
        state.put(before)
        outcome = self._call(part.task, lambda: self.theirs[part.task](*args, **kwargs))
        if isinstance(outcome, guard.Returned):
            got = outcome.value
            left = [before, after, state.take()]
            if part.task in ALLOCATING:
                blocks = getattr(args[0], "blocks", args[0])
                left = [_in_any_order(taken, blocks.block_size) for taken in left]
            found = self._compared(part.task, due, got, arguments) or _left(*left)
        else:
            got, found = None, raised(outcome, self._lang)
        found = found or self._touched()
        if not found:
            return got
        self._found(part.task, request=_request(arguments), **found)
        state.put(after)
        return due

    def _call(self, task: str, fn: Callable[[], Any]) -> guard.Returned | guard.Raised:
        """Call the learner's code: any exception is an outcome, and its output is kept."""
        sink, outer = guard.FirstLines(), self._active
        self._say_active(task, self.calls[task])
        try:
            with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
                return guard.outcome(fn)  # type: ignore[return-value]
        finally:
            self._say_active(*outer)
            if sink.text():
                self.printed.setdefault(task, sink.text())

    def _say_active(self, task: str, call: int) -> None:
        self._active = task, call
        self._tell(task, call)

    def _compared(self, task: str, due: Any, got: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        if task == DIGEST:
            return self._digests.compared(due, got)
        return _difference(task, due, got, arguments)

    def _touched(self) -> dict[str, Any] | None:
        """The files that the code has made or removed."""
        before, self._files = self._files, _files_in(self._folder)
        changed = sorted(before ^ self._files)
        return {"kind": "files", "what": ", ".join(changed)} if changed else None

    def _found(self, task: str, *, request: int | None = None, **found: Any) -> None:
        self.findings[task] = Finding(
            task, load=self.load, step=self.step, call=self.calls[task], request=request, **found
        )

    def _attention(self, *args: Any, **kwargs: Any) -> Any:
        """Attention in torch and, on some steps in which all sequences decode, the kernel on the same arguments.

        The step then uses the kernel's result, so that the tokens depend on it.
        """
        part, own = PART_OF[ATTENTION], self._own[ATTENTION]
        self.calls[ATTENTION] += 1
        arguments = inspect.signature(own).bind(*args, **kwargs).arguments
        if ATTENTION in self.theirs and ATTENTION not in self.findings:
            out = self._judged(part, arguments, args, kwargs)
        else:
            out = own(*args, **kwargs)
        batch, called = arguments["batch"], self._kernel_calls[self.load]
        wanted = called < (KERNEL_CALLS if int(batch.lengths.max()) > TILE else 2)
        if not (self.runs_kernel and batch.is_decode and wanted):
            return out
        self._kernel_calls[self.load] += 1
        return self._kernel(out, arguments, args, kwargs)

    def _kernel(self, out: Any, arguments: Mapping[str, Any], args: tuple, kwargs: dict) -> Any:
        from minikv.nano import attention

        self.calls[KERNEL] += 1
        state = State(arguments)
        before = state.take()
        _spoil_unused(arguments["batch"], arguments["k_cache"], arguments["v_cache"])
        given = state.take()
        outcome = self._call(KERNEL, lambda: attention.decode_on_gpu(*args, **kwargs))
        if isinstance(outcome, guard.Returned):
            found = _difference(ATTENTION, out, outcome.value, arguments) or _left(given, given, state.take())
        else:
            found = raised(outcome, self._lang)
        state.put(before)
        if not found:
            return outcome.value  # type: ignore[union-attr]
        assert KERNEL in self.theirs, f"nano's own kernel: {found}"
        if KERNEL not in self.findings:
            self._found(KERNEL, **found)
            attention.paged_decode_kernel = self._own[KERNEL]
        return out


def unnested(theirs: Any, own: Callable) -> Any:
    """``theirs``, but a call of the part within it reaches nano's own: ``BlockManager.free(self, seq)``."""
    if not callable(theirs) or own is None or not inspect.isroutine(own):
        return theirs  # a kernel is launched, not called
    inside = False

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return own(*args, **kwargs)
        inside = True
        try:
            return theirs(*args, **kwargs)
        except KeyboardInterrupt as error:  # the part raises it: this process has no keyboard
            raise RuntimeError("KeyboardInterrupt") from error
        finally:
            inside = False

    return call


class _Digests:
    """The learner's digest for each of nano's: any function that tells blocks apart is right."""

    def __init__(self) -> None:
        self._to_nano: dict[bytes, bytes] = {b"": b""}
        self._to_theirs: dict[bytes, bytes] = {b"": b""}

    def known(self, own: Callable, previous: bytes, tokens: Any) -> bytes:
        """The learner's digest of the same block, where there has been one; else nano's own."""
        digest = own(self._to_nano.get(previous, previous), tokens)
        return self._to_theirs.get(digest, digest)

    def compared(self, due: bytes, got: Any) -> dict[str, Any] | None:
        """The difference of ``got`` from ``due``, the result of ``known`` for this block; None where it is right."""
        if type(got) is not bytes:
            return {"kind": "no_bytes", "got": shown(got)}
        if due in self._to_nano:
            return None if got == due else {"kind": "another"}
        if got in self._to_nano:
            return {"kind": "same", "got": got.hex()}
        self._to_nano[got], self._to_theirs[due] = due, got
        return None


def _difference(task: str, due: Any, got: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The difference of a part's result from nano's own; None where it does not matter."""
    if due is None:  # a method that only changes its arguments
        return None
    if isinstance(due, Sequence):
        same = due is got
    elif task == "08.2":  # where nothing fits, any number below 1 is right
        same = mismatch(max(due, 0), max(got, 0) if type(got) is int else got) is None
    elif task == ATTENTION:
        same = _close(due, got)
    elif task == "11c.1" and isinstance(got, list | tuple) and len(got) == len(due):
        # The token after a chunk that is not the last of its prompt is known already.
        rows = [row for row, (seq, _, end) in enumerate(arguments["step"]) if end == len(seq.tokens)]
        same = mismatch([due[row] for row in rows], [got[row] for row in rows]) is None
    else:
        same = mismatch(due, got) is None
    if same:
        return None
    if not hasattr(due, "dtype"):
        return {"kind": "result", "due": shown(due), "got": shown(got)}
    if not hasattr(got, "dtype") or (due.shape, due.dtype) != (got.shape, got.dtype):
        return {"kind": "result", "due": _described(due), "got": _described(got)}
    what, due, got = narrowed("", due, got)
    return {"kind": "inside", "what": what, "due": shown(due), "got": shown(got)}


def _spoil_unused(batch: Any, *caches: Any) -> None:
    """Write NaN to all slots but those of the sequences' tokens: a kernel has to mask its reads beyond them."""
    for cache in caches:
        unused = cache.new_ones(cache.shape[:2], dtype=bool).flatten()
        for table, length in zip(batch.block_tables, batch.lengths.tolist(), strict=True):
            at = table.new_tensor(range(length))
            unused[table[at // cache.shape[1]] * cache.shape[1] + at % cache.shape[1]] = False
        cache.flatten(0, 1)[unused] = float("nan")


def shown(value: Any) -> str:
    """``value`` as text; a sequence is its request."""
    if isinstance(value, Sequence):
        return f"request {value.id}"
    if type(value) in (list, tuple) and any(isinstance(each, Sequence | tuple) for each in value):
        return (
            f"[{', '.join(map(shown, value))}]"
            if type(value) is list
            else f"({', '.join(map(shown, value))})"
        )
    return shown_value(value)


def _described(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return shown(value)
    return f"{type(value).__name__}{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _close(due: Any, got: Any) -> bool:
    """Whether two attention outputs are equal up to rounding."""
    if type(got) is not type(due) or got.shape != due.shape or got.dtype != due.dtype:
        return False
    return bool(((got - due).abs() <= 1e-4 + 1e-3 * due.abs()).all())


def _left(before: Taken, after: Taken, theirs: Taken) -> dict[str, Any] | None:
    """The first difference of the state after a part from that after nano's own."""
    found = first_difference(after, theirs)
    if found is None:
        return None
    what, due, got = found
    changed = is_same(content_at(before, what), content_at(after, what))
    return {"kind": "changed" if changed else "state", "what": what, "due": shown(due), "got": shown(got)}


def _in_any_order(taken: Taken, block_size: int) -> Taken:
    """The same with the fresh blocks of each sequence sorted: their order does not matter."""
    same = dict(taken)
    for name, (thing, content) in taken.items():
        if isinstance(thing, Sequence):
            table, copy = content["block_table"]
            found = content["num_cached"][1] // block_size
            if type(copy) is list and all(type(block) is int for block in copy):
                ordered = copy[:found] + sorted(copy[found:])
                same[name] = thing, {**content, "block_table": (table, ordered)}
    return same


def raised(outcome: Any, lang: str) -> dict[str, Any]:
    """The exception of a learner's code as the fields of a finding."""
    message = outcome.text(lang)
    said = f"{outcome.kind.__name__}: {message}" if message else outcome.kind.__name__
    return {"kind": "raised", "got": said, "line": outcome.line, "source": outcome.source}


def _files_in(folder: str | None) -> set[str]:
    return set(os.listdir(folder)) if folder and os.path.isdir(folder) else set()


def _request(arguments: Mapping[str, Any]) -> int | None:
    return next((value.id for value in arguments.values() if isinstance(value, Sequence)), None)
