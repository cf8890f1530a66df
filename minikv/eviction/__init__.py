"""Eviction: a KV cache that keeps the tokens that matter, under a decoder's own generate(). Lessons 14 and 15.

``install_kv_eviction`` makes a model's own ``generate`` evict; a ``Policy`` says which tokens stay, a ``Budget`` how
many. ``PagedEviction`` does it on blocks, ``LLM(eviction=EvictionConfig(...))`` in the engine.
"""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.eviction.hf.cache import EvictingCache
    from minikv.eviction.hf.handle import EvictionHandle
    from minikv.eviction.hf.install import (
        eviction_of,
        install_kv_eviction,
        remove_kv_eviction,
        reset_eviction_scores,
    )
    from minikv.eviction.hf.layer import EvictingLayer
    from minikv.eviction.hf.report import EvictionReport, eviction_report
    from minikv.eviction.paged.eviction import PagedEviction
    from minikv.eviction.policies.budget import Budget
    from minikv.eviction.policies.echo import Echo, EchoLayers
    from minikv.eviction.policies.expected import ExpectedAttention
    from minikv.eviction.policies.from_keys import CUR, LagKV, Leverage
    from minikv.eviction.policies.layered import Layered, measure_layers
    from minikv.eviction.policies.literature import (
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
    from minikv.eviction.policies.policy import Needs, Policy, Seen, View
    from minikv.eviction.policies.sampled import Sampled
    from minikv.eviction.study.trace import EvictionTrace, trace_eviction

_HOME = {
    "Budget": "policies.budget",
    "Echo": "policies.echo",
    "EchoLayers": "policies.echo",
    "CUR": "policies.from_keys",
    "ExpectedAttention": "policies.expected",
    "LagKV": "policies.from_keys",
    "Layered": "policies.layered",
    "Leverage": "policies.from_keys",
    "Sampled": "policies.sampled",
    "measure_layers": "policies.layered",
    "EvictingCache": "hf.cache",
    "EvictingLayer": "hf.layer",
    "EvictionHandle": "hf.handle",
    "H2O": "policies.literature",
    "KeyDiff": "policies.literature",
    "Knorm": "policies.literature",
    "Needs": "policies.policy",
    "POLICIES": "policies.literature",
    "PagedEviction": "paged.eviction",
    "Policy": "policies.policy",
    "PyramidKV": "policies.literature",
    "Random": "policies.literature",
    "Seen": "policies.policy",
    "SnapKV": "policies.literature",
    "StreamingLLM": "policies.literature",
    "TOVA": "policies.literature",
    "View": "policies.policy",
    "EvictionReport": "hf.report",
    "EvictionTrace": "study.trace",
    "eviction_of": "hf.install",
    "eviction_report": "hf.report",
    "install_kv_eviction": "hf.install",
    "policy_of": "policies.literature",
    "remove_kv_eviction": "hf.install",
    "reset_eviction_scores": "hf.install",
    "trace_eviction": "study.trace",
}

__all__ = [
    "CUR",
    "H2O",
    "POLICIES",
    "TOVA",
    "Budget",
    "Echo",
    "EchoLayers",
    "EvictingCache",
    "EvictingLayer",
    "EvictionHandle",
    "EvictionReport",
    "EvictionTrace",
    "ExpectedAttention",
    "KeyDiff",
    "Knorm",
    "LagKV",
    "Layered",
    "Leverage",
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
