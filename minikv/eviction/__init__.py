"""What to forget: a KV cache that keeps the tokens that matter, under a decoder's own generate(). Lessons 14 and 15.

``install_kv_eviction`` makes a model's own ``generate`` forget; a ``Policy`` says which tokens stay, a ``Budget`` how
many. ``PagedEviction`` does it on blocks, ``LLM(eviction=EvictionParams(...))`` in the engine.
"""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.eviction.budget import Budget
    from minikv.eviction.cache import EvictingCache
    from minikv.eviction.echo import Echo
    from minikv.eviction.handle import Eviction
    from minikv.eviction.install import (
        eviction_of,
        install_kv_eviction,
        remove_kv_eviction,
        reset_eviction_scores,
    )
    from minikv.eviction.layer import EvictingLayer
    from minikv.eviction.layered import Layered, measure_layers
    from minikv.eviction.paged import PagedEviction
    from minikv.eviction.policies import (
        H2O,
        POLICIES,
        TOVA,
        KeyDiff,
        Knorm,
        PyramidKV,
        Random,
        SnapKV,
        StreamingLLM,
        policy_of,
    )
    from minikv.eviction.policy import Needs, Policy, Seen, View
    from minikv.eviction.report import EvictionReport, eviction_report
    from minikv.eviction.sampled import Sampled
    from minikv.eviction.trace import EvictionTrace, trace_eviction

_HOME = {
    "Budget": "budget",
    "Echo": "echo",
    "Layered": "layered",
    "Sampled": "sampled",
    "measure_layers": "layered",
    "EvictingCache": "cache",
    "EvictingLayer": "layer",
    "Eviction": "handle",
    "H2O": "policies",
    "KeyDiff": "policies",
    "Knorm": "policies",
    "Needs": "policy",
    "POLICIES": "policies",
    "PagedEviction": "paged",
    "Policy": "policy",
    "PyramidKV": "policies",
    "Random": "policies",
    "Seen": "policy",
    "SnapKV": "policies",
    "StreamingLLM": "policies",
    "TOVA": "policies",
    "View": "policy",
    "EvictionReport": "report",
    "EvictionTrace": "trace",
    "eviction_of": "install",
    "eviction_report": "report",
    "install_kv_eviction": "install",
    "policy_of": "policies",
    "remove_kv_eviction": "install",
    "reset_eviction_scores": "install",
    "trace_eviction": "trace",
}

__all__ = [
    "H2O",
    "POLICIES",
    "TOVA",
    "Budget",
    "Echo",
    "EvictingCache",
    "EvictingLayer",
    "Eviction",
    "EvictionReport",
    "EvictionTrace",
    "KeyDiff",
    "Knorm",
    "Layered",
    "Needs",
    "PagedEviction",
    "Policy",
    "PyramidKV",
    "Random",
    "Sampled",
    "Seen",
    "SnapKV",
    "StreamingLLM",
    "View",
    "eviction_of",
    "eviction_report",
    "install_kv_eviction",
    "measure_layers",
    "policy_of",
    "remove_kv_eviction",
    "reset_eviction_scores",
    "trace_eviction",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
