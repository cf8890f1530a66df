"""Many requests at once. Lesson 11a.

``core/`` is the engine without any feature, ``ext/`` has the features, and ``serve/`` surrounds the loop of steps. The
deciding parts need no torch, so the same scheduler runs on a real or a simulated clock. Every name loads on first use.
"""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.engine.core.extension import Extension
    from minikv.engine.core.rules import Rules
    from minikv.engine.core.runner import Runner
    from minikv.engine.core.scheduler import Scheduler
    from minikv.engine.core.sequence import FinishReason, Request, Sequence, SequenceId, SequenceStatus
    from minikv.engine.core.step import Scheduled, Step, StepArrays
    from minikv.engine.ext.events import Event, EventLog, Events, StepEvent
    from minikv.engine.ext.eviction import EvictionConfig
    from minikv.engine.llm import LLM
    from minikv.engine.outputs import (
        Completion,
        GenerationFailedError,
        RequestOutput,
        StepOutput,
        Timing,
        Token,
    )
    from minikv.engine.sampler import SamplerOutput, TokenLogprobs
    from minikv.engine.sampling_params import SamplingParams
    from minikv.engine.serve.metrics import Metrics, Percentiles, summary
    from minikv.engine.serve.view import EngineView, SequenceView

_NAMES = {
    "core.extension": "Extension",
    "core.rules": "Rules",
    "core.runner": "Runner",
    "core.scheduler": "Scheduler",
    "core.sequence": "FinishReason Request Sequence SequenceId SequenceStatus",
    "core.step": "Scheduled Step StepArrays",
    "ext.events": "Event EventLog Events StepEvent",
    "ext.eviction": "EvictionConfig",
    "llm": "LLM",
    "outputs": "Completion GenerationFailedError RequestOutput StepOutput Timing Token",
    "sampler": "SamplerOutput TokenLogprobs",
    "sampling_params": "SamplingParams",
    "serve.metrics": "Metrics Percentiles summary",
    "serve.view": "EngineView SequenceView",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "LLM",
    "Completion",
    "EngineView",
    "Event",
    "EventLog",
    "Events",
    "EvictionConfig",
    "Extension",
    "FinishReason",
    "GenerationFailedError",
    "Metrics",
    "Percentiles",
    "Request",
    "RequestOutput",
    "Rules",
    "Runner",
    "SamplerOutput",
    "SamplingParams",
    "Scheduled",
    "Scheduler",
    "Sequence",
    "SequenceId",
    "SequenceStatus",
    "SequenceView",
    "Step",
    "StepArrays",
    "StepEvent",
    "StepOutput",
    "Timing",
    "Token",
    "TokenLogprobs",
    "summary",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
