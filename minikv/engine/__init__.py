"""Many requests at once. Lesson 11a.

The parts that decide need no torch: the same scheduler runs on a real or a simulated clock. Those that compute (``LLM``
and what it gives back) load on first use.
"""

from typing import TYPE_CHECKING

from minikv.engine.events import Event, EventLog, StepEvent
from minikv.engine.evicting import EvictionParams
from minikv.engine.outputs import Completion, GenerationFailedError, RequestOutput, StepOutput, Timing, Token
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.scheduler import Scheduler
from minikv.engine.sequence import FinishReason, Request, Sequence, SequenceId, State
from minikv.engine.serve.metrics import Metrics, Percentiles, summary
from minikv.engine.serve.view import EngineView, SequenceView
from minikv.engine.step import Batch, Scheduled, Step
from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.engine.llm import LLM
    from minikv.engine.runner import Runner
    from minikv.engine.sampler import Sampled, TokenLogprobs

_HOME = {"LLM": "llm", "Runner": "runner", "Sampled": "sampler", "TokenLogprobs": "sampler"}

__all__ = [
    "LLM",
    "Batch",
    "Completion",
    "EngineView",
    "Event",
    "EventLog",
    "EvictionParams",
    "FinishReason",
    "GenerationFailedError",
    "Metrics",
    "Percentiles",
    "Request",
    "RequestOutput",
    "Runner",
    "Sampled",
    "SamplingParams",
    "Scheduled",
    "Scheduler",
    "Sequence",
    "SequenceId",
    "SequenceView",
    "State",
    "Step",
    "StepEvent",
    "StepOutput",
    "Timing",
    "Token",
    "TokenLogprobs",
    "summary",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
