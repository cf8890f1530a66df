"""Extension: the interface through which features join the engine. The core only calls hooks.

    Scheduler(manager, extensions=[...])      Runner(adapter, extensions=[...])

A feature overrides the hooks that it needs; a hook that no extension overrides is never called. Hooks are called in the
order of the list of extensions. ``salt``, ``resident``, ``limit`` and ``prefix`` get the result of the one before them;
of ``keep``, ``resume`` and ``unsettled`` the first True counts. Only ``limit``, ``before_step``, ``flush`` may raise.
A feature that needs more than hooks replaces a part: another loop, another ``Runner.compute``.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any
from weakref import proxy

from minikv.errors import ArgumentError

if TYPE_CHECKING:
    from minikv.engine.core.scheduler import Scheduler
    from minikv.engine.core.sequence import Sequence
    from minikv.engine.core.step import Step, StepPlan


class Extension:
    """The null object: it has every hook, and none changes anything."""

    scheduler: "Scheduler" = None  # type: ignore[assignment]  # until it is attached

    def attach(self, scheduler: "Scheduler") -> None:
        """Join ``scheduler``, which is complete but for its extensions.

        Raises ``ArgumentError`` where that is impossible, for instance for an extension of another scheduler.
        """
        if self.scheduler is not None:
            raise ArgumentError("extension_attached", name=type(self).__name__)
        # The reference is a weak one: without a cycle, dropping the scheduler frees its memory at once.
        self.scheduler = proxy(scheduler)

    # How many tokens a sequence may have, and which prefixes it may share.

    def salt(self, seq: "Sequence", salt: str) -> str:
        """Return the salt under which ``seq`` looks up cached prefixes and publishes its own."""
        return salt

    def resident(self, num_tokens: int, seq: "Sequence | None" = None) -> int:
        """Return the most slots that ``num_tokens`` tokens of a sequence take at once in a group without a window.

        ``seq`` None: any sequence, also during its prompt.
        """
        return num_tokens

    def limit(self, seq: "Sequence", num_tokens: int) -> int:
        """Return how many of the next ``num_tokens`` tokens ``seq`` may compute in this step; 0: it waits.

        For a running sequence the hook may first free some of its blocks, or raise ``OutOfBlocksError``. For a waiting
        one it changes nothing.
        """
        return num_tokens

    def prefix(self, seq: "Sequence", found: Any, stop: int) -> tuple[Any, int]:
        """Return the ``Match`` that a waiting ``seq`` takes, ``found`` or a shorter one, and its first chunk's end."""
        return found, stop

    def may_reserve(self, seq: "Sequence") -> bool:
        """Return whether ``seq`` may get a slot for its next token before the newest one is known."""
        return True

    # Preemption: the K and V of a sequence may be kept elsewhere.

    def keep(self, seq: "Sequence", facts: dict[str, Any]) -> bool:
        """Take the blocks of ``seq``, which is preempted, and keep their content; return whether that was done.

        If not, its tokens are computed again. ``facts`` collects keywords for the "preempt" change.
        """
        return False

    def resume(self, seq: "Sequence", plan: "StepPlan") -> bool:
        """Give ``seq``, kept by ``keep``, blocks again and put it into ``plan``; False: it has to wait longer."""
        return False

    # A step: planned, open, ended.

    def on_change(self, change: str, seq: "Sequence | None", num_tokens: int, **facts: Any) -> None:
        """React to a change in the core, or in another extension.

        Changes of ``num_tokens`` tokens of ``seq``: arrive, admit (``found``: an ``Allocation``), allocate, truncate,
        preempt (``kept``, and the facts of ``keep``), free, first, end. Changes without a number: commit, fork
        (``child``), and drop, for a sequence that ends while it waits. Extensions add changes of their own.
        """

    def before_step(self, plan: "StepPlan") -> None:
        """Add tokens, copies and ``plan.work`` for the extension's device to ``plan``, which has the core's."""

    def after_step(self, step: "Step | None", tokens: "Mapping[Any, Seq[int]] | None") -> None:
        """React to a computed ``step``, which is still in ``open_steps``.

        ``tokens`` are the new ones of each sequence, not yet appended to it. None: the step has failed. ``step`` None:
        a plan was abandoned, and everything it took has been freed.
        """

    def unsettled(self, seq: "Sequence", work: Mapping[str, Any]) -> bool:
        """Return whether the blocks of ``seq`` are complete only after a step with that ``work`` was computed."""
        return False

    def flush(self) -> None:
        """Report to the outside; the scheduler is consistent and may be called. May raise."""

    # The device.

    def before_writes(self, step: "Step") -> None:
        """Read what ``step`` will overwrite; nothing of the step is written yet."""

    def before_copies(self, step: "Step") -> None:
        """Write what ``step`` will read; its copies and its forward come later."""

    def on_batch(self, step: "Step", batch: Any) -> Any:
        """Return ``batch``, the ``minikv.models.Batch`` of ``step``, or another one in its place."""
        return batch

    def after_forward(self, step: "Step", seconds: float) -> None:
        """React to the tokens of ``step``, ``seconds`` after a launch with no other step beside it."""


def overriding(extensions: Iterable[Extension], hook: str) -> tuple[Callable[..., Any], ...]:
    """Return the methods with that name in the extensions that override it."""
    idle = getattr(Extension, hook)
    return tuple(getattr(each, hook) for each in extensions if getattr(type(each), hook) is not idle)
