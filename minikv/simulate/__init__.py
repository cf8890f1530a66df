"""A fleet on paper: the engine's own scheduler and block manager on a clock made of the roofline. Lesson 17. No torch.

>>> from minikv.simulate import Fleet, Trace, TraceRequest, simulate
>>> trace = Trace("two", (TraceRequest(0.0, 700, 9, (4, 5)), TraceRequest(1.5, 600, 3, (4, 6))))
>>> fleet = Fleet.plan("Llama-3.1-8B", "H200", replicas=1)
>>> outcome = simulate(trace, fleet)
>>> outcome.cached_tokens.tolist()                     # the first 512 tokens of the second prompt
[0, 512]
"""

from minikv.simulate.arrival import Arrival
from minikv.simulate.assumptions import IDEAL, Assumptions
from minikv.simulate.calibrate import Calibration, MeasuredStep, calibrate, measured_steps
from minikv.simulate.fleet import Fleet, simulate
from minikv.simulate.formats import read_azure, read_mooncake, read_trace, write_mooncake
from minikv.simulate.hit_rate import cached_tokens, hit_rate, hit_rates
from minikv.simulate.load import Load
from minikv.simulate.outcome import Answers, LittlesLaw, Outcome, ReplicaTotals, Tier
from minikv.simulate.replica import Replica
from minikv.simulate.router import ROUTERS, LeastLoaded, PrefixAware, RoundRobin, Router
from minikv.simulate.step_time import StepSeconds, StepTime
from minikv.simulate.sweep import Fewest, SweepRow, Target, fewest, sweep
from minikv.simulate.trace import Trace, TraceRequest
from minikv.simulate.verdict import bottleneck

__all__ = [
    "IDEAL",
    "ROUTERS",
    "Answers",
    "Arrival",
    "Assumptions",
    "Calibration",
    "Fewest",
    "Fleet",
    "LeastLoaded",
    "LittlesLaw",
    "Load",
    "MeasuredStep",
    "Outcome",
    "PrefixAware",
    "Replica",
    "ReplicaTotals",
    "RoundRobin",
    "Router",
    "StepSeconds",
    "StepTime",
    "SweepRow",
    "Target",
    "Tier",
    "Trace",
    "TraceRequest",
    "bottleneck",
    "cached_tokens",
    "calibrate",
    "fewest",
    "hit_rate",
    "hit_rates",
    "measured_steps",
    "read_azure",
    "read_mooncake",
    "read_trace",
    "simulate",
    "sweep",
    "write_mooncake",
]
