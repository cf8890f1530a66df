"""Many requests at once. The parts here need no torch: the same scheduler runs on a real or a simulated clock."""

from minikv.engine.events import Event, EventLog, StepEvent
from minikv.engine.metrics import Metrics, Percentiles, summary
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.scheduler import Scheduler
from minikv.engine.sequence import FinishReason, Request, Sequence, SequenceId, State
from minikv.engine.step import Batch, Scheduled, Step

__all__ = [
    "Batch",
    "Event",
    "EventLog",
    "FinishReason",
    "Metrics",
    "Percentiles",
    "Request",
    "SamplingParams",
    "Scheduled",
    "Scheduler",
    "Sequence",
    "SequenceId",
    "State",
    "Step",
    "StepEvent",
    "summary",
]
