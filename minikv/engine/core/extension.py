"""Extension: where a feature joins the engine. The core calls hooks, and does not know what stands behind them.

    Scheduler(manager, extensions=[...])      Runner(adapter, extensions=[...])

A feature overrides the hooks that it needs; those that no extension overrides are never called. Hooks are called in the
order of the list of extensions. ``salt``, ``resident`` and ``limit`` get what the one before them has returned; of
``keep``, ``resume`` and ``unsettled`` the first True counts. Only ``limit``, ``before_step`` and ``flush`` may raise.
What is no hook replaces a part instead: another loop, another ``Runner.compute``.
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
    """The null object: every hook is here, and changes nothing."""

    scheduler: "Scheduler" = None  # type: ignore[assignment]  # until it is attached

    def attach(self, scheduler: "Scheduler") -> None:
        """Join ``scheduler``, which is complete but for its extensions. Raises ``ArgumentError`` where it cannot, as
        where it has joined another one.
        """
        if self.scheduler is not None:
            raise ArgumentError("extension_attached", name=type(self).__name__)
        # A proxy makes no circle: a scheduler that is dropped gives its memory back at once.
        self.scheduler = proxy(scheduler)

    # How many tokens a sequence may have, and which prefixes it may share.

    def salt(self, seq: "Sequence", salt: str) -> str:
        """The salt under which ``seq`` looks for cached prefixes and publishes its own."""
        return salt

    def resident(self, num_tokens: int, seq: "Sequence | None" = None) -> int:
        """How many of a sequence's ``num_tokens`` tokens take slots at once, at most, where no window is.

        ``seq`` None: of any sequence, prompts included.
        """
        return num_tokens

    def limit(self, seq: "Sequence", num_tokens: int) -> int:
        """How many of the next ``num_tokens`` tokens ``seq`` may compute in this step; 0: it waits.

        A sequence that runs may give blocks back first, or raise ``OutOfBlocksError``. For one that waits nothing
        changes.
        """
        return num_tokens

    def may_reserve(self, seq: "Sequence") -> bool:
        """Whether ``seq`` may get a slot for its next token before the newest one is known."""
        return True

    # Preemption: K and V of a sequence may be kept elsewhere.

    def keep(self, seq: "Sequence", facts: dict[str, Any]) -> bool:
        """Take the blocks of ``seq``, which is preempted, and keep what is in them; False: its tokens are computed
        again. ``facts`` collects what ``on_change`` is told of it.
        """
        return False

    def resume(self, seq: "Sequence", plan: "StepPlan") -> bool:
        """Give ``seq``, which ``keep`` has kept, its blocks again, and put it into ``plan``; False: not yet."""
        return False

    # A step: planned, open, ended.

    def on_change(self, change: str, seq: "Sequence | None", num_tokens: int, **facts: Any) -> None:
        """Something has changed in the core, or in an extension that says so.

        With the ``num_tokens`` of ``seq`` that it is about: arrive, admit (``found``: an ``Allocation``), allocate,
        truncate, preempt (``kept``, and what ``keep`` has added), free, first, end. Without: commit, fork (``child``),
        and drop, of a sequence that ends while it waits. Extensions add changes of their own.
        """

    def before_step(self, plan: "StepPlan") -> None:
        """``plan`` is complete but for what extensions add: tokens, copies, and ``plan.work`` for their devices."""

    def after_step(self, step: "Step | None", tokens: "Mapping[Any, Seq[int]] | None") -> None:
        """``step``, still in ``open_steps``, was computed: ``tokens`` are the new ones of each sequence, which are not
        among its own yet. No tokens: it has failed. No step: a plan came to nothing, and what it took is given back.
        """

    def unsettled(self, seq: "Sequence", work: Mapping[str, Any]) -> bool:
        """Whether the blocks of ``seq`` hold what they should only once a step with that ``work`` was computed."""
        return False

    def flush(self) -> None:
        """The scheduler is in order, and may be called: tell the outside what has happened. May raise."""

    # The device.

    def before_writes(self, step: "Step") -> None:
        """Before anything of ``step`` is written: what it overwrites can be read."""

    def before_copies(self, step: "Step") -> None:
        """Before the copies and the forward of ``step``: what it reads can be written."""

    def on_batch(self, step: "Step", batch: Any) -> Any:
        """The ``minikv.models.Batch`` of ``step``, or another one instead."""
        return batch

    def after_forward(self, step: "Step", seconds: float) -> None:
        """The tokens of ``step`` are on the host, ``seconds`` after it was launched with no other beside it."""


def overriding(extensions: Iterable[Extension], hook: str) -> tuple[Callable[..., Any], ...]:
    """The methods of that name which do something."""
    idle = getattr(Extension, hook)
    return tuple(getattr(each, hook) for each in extensions if getattr(type(each), hook) is not idle)
