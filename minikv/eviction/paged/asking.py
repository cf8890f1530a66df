"""What a policy on blocks learns of the queries themselves, in a second pass over the keys. Lesson 14.

A paged kernel gives each cached token the sum of its probabilities. The largest of them, what a query would look at
some places later, and the distribution of queries are no sums: they are computed from the queries and the keys of one
sequence after the other, by the functions that ``install_kv_eviction`` calls. A layer's keys are copied for that, which
a decode step reads once more.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minikv.errors import ArgumentError
from minikv.eviction.hf.observe import Logits, column_stats
from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.policies.echo import echo_stats, turned_on
from minikv.eviction.policies.expected import expected_stats, query_moments
from minikv.eviction.policies.policy import Needs, Policy, View
from minikv.models.observer import Asked

if TYPE_CHECKING:
    from minikv.eviction.paged.records import TokenRecords


def takes_largest(policy: Policy) -> bool:
    """Return whether ``policy`` joins probabilities by their largest, over queries or over heads."""
    return Needs.PROBS in policy.needs and "max" in (policy.over_queries, policy.over_group)


def needs_queries(policy: Policy) -> bool:
    """Return whether sums of probabilities are not enough for ``policy``."""
    return takes_largest(policy) or bool(policy.needs & Needs.QUERIES)


def query_bytes(policy: Policy, dim: int) -> int:
    """Return the bytes that a query head of ``dim`` leaves in the record of a sequence and layer."""
    elements = dim if Needs.ECHO in policy.needs else (dim + 1) ** 2 if Needs.EXPECTED in policy.needs else 0
    return elements * torch.float32.itemsize


@dataclass(frozen=True, eq=False)
class Asking:
    """The second pass for ``policy``; ``turning`` where it turns queries. ``hows``: how each layer makes logits."""

    policy: Policy
    turning: Rotary | None
    hows: dict[int, Logits] = field(default_factory=dict)
    query_heads: dict[int, int] = field(default_factory=dict)

    def hear(
        self,
        records: "TokenRecords",
        seq_ids: Sequence[Hashable],
        layer: int,
        asked: Asked,
        pairs: Iterable[tuple[Tensor, Tensor]],
        ends: Sequence[int],
        *,
        own: bool,
    ) -> list[list[Tensor]]:
        """Return what ``Policy.observe`` gets, one after the other: for each sequence [heads, its tokens].

        ``pairs``: see ``Asked.pairs``. ``ends``: the position behind each sequence's last token. What later forwards,
        or an eviction, need of the queries goes into ``records``. ``own``: the keys are this layer's. Else no eviction
        asks for the distribution of its queries.
        """
        needs = self.policy.needs if own else self.policy.needs & ~Needs.EXPECTED
        if not takes_largest(self.policy) and not needs & Needs.QUERIES:
            return []
        self.query_heads[layer] = asked.query.shape[1]
        how = self.hows[layer] = Logits(asked.scale, asked.softcap, asked.sinks)
        rope_at_end = asked.kv.v.shape[3] if asked.latent else None
        largest: list[Tensor] = []
        echoes: list[Tensor] = []
        for name, (query, key), end in zip(seq_ids, pairs, ends, strict=True):
            heads = key.shape[1]
            if takes_largest(self.policy):
                options = {"mask": None, "counted": None, "policy": self.policy, "heads": heads}
                largest.append(column_stats(query, key, how, **options)[0])
            if Needs.ECHO in needs:
                asking, counted = self._before(records, name, layer, query)
                if self.turning is not None:
                    asking = turned_on(asking, self.turning, self.policy.echo_shift, rope_at_end)
                options = {"valid": None, "policy": self.policy, "heads": heads}
                echoes.append(echo_stats(asking, counted, key, how, **options)[0])
            if Needs.EXPECTED in needs:
                assert self.turning is not None
                places = torch.arange(end - query.shape[2], end, device=query.device)[None]
                moments = query_moments(query, places, self.turning, rope_at_end)
                known = records.read_queries(layer, [name], moments.shape[1:])
                records.write_queries(layer, [name], known + moments)
        return [each for each in (largest, echoes) if each]

    def expected(
        self, records: "TokenRecords", seq_ids: Sequence[Hashable], layer: int, view: View
    ) -> Tensor:
        """Return [B, heads, S]: what later queries may be expected to give to the tokens of ``view``.

        Raises ``ArgumentError`` for a layer of which no forward has told the queries.
        """
        assert self.turning is not None
        if layer not in self.hows:
            raise ArgumentError("eviction_not_observed", policy=type(self.policy).__name__, layer=layer)
        key = torch.cat((view.keys, view.values), -1) if view.latent else view.keys
        rope_at_end = view.values.shape[-1] if view.latent else None
        heads, (_, kv_heads, _, dim) = self.query_heads[layer], key.shape
        moments = records.read_queries(layer, seq_ids, (heads, dim + 1, dim + 1))
        newest = view.positions[:, 0].amax(-1, keepdim=True)
        ahead = newest + torch.arange(1, 1 + self.policy.expected_over, device=key.device)
        options = {"valid": view.valid, "heads": kv_heads}
        return expected_stats(moments, ahead, key, self.hows[layer], self.turning, rope_at_end, **options)

    def _before(
        self, records: "TokenRecords", name: Hashable, layer: int, query: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the queries [1, Hq, n, D] of the tokens before these, and [1, n]: False where there was none."""
        last = records.read_queries(layer, [name], query.shape[1:2] + query.shape[3:])
        records.write_queries(layer, [name], query[:, :, -1])
        before = torch.cat((last.unsqueeze(2), query[:, :, :-1]), 2)
        counted = torch.ones(1, query.shape[2], dtype=torch.bool, device=query.device)
        counted[:, 0] = last.any()
        return before, counted
