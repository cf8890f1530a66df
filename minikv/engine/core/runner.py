"""Runner: computes a step: the copies, one forward, and a token for each sequence that is due. Lesson 11a."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
import torch

from minikv.engine.adjusted import Asked
from minikv.engine.core.extension import Extension, overriding
from minikv.engine.core.step import Step
from minikv.engine.sampler import SampledTokens, draw
from minikv.engine.staging import send
from minikv.errors import ArgumentError
from minikv.models import ATTENTION, Adapter, Batch

Compute = Callable[["Runner", Step, torch.Tensor | None], torch.Tensor]


class Runner:
    """The only part of the engine that computes. It runs the scheduler's step with the model on its cache.

    The host waits for a GPU once a step, for its tokens or its end, and once more for each list of block copies.
    ``compute(runner, step, sampled)`` returns the logits of a step: it is ``forward``, or a function around it.
    """

    def __init__(self, adapter: Adapter, extensions: Seq[Extension] = ()):
        self.adapter = adapter
        self.compute: Compute = Runner.forward
        self._before_writes = overriding(extensions, "before_writes")
        self._before_copies = overriding(extensions, "before_copies")
        self._on_batch = overriding(extensions, "on_batch")

    # Not inference_mode: tensors that a model keeps from its first forward must be usable outside too.
    @torch.no_grad()
    def run(
        self,
        step: Step,
        params: Seq[Asked],
        draws: Seq[float],
        before: SampledTokens | None = None,
    ) -> SampledTokens:
        """Sample a token for each sequence in ``step.sampled``, with its ``params`` and its uniform number in
        ``draws``.

        An item with unconfirmed tokens gets one for each of its rows in ``step.batch.last``, each with its own params
        and number. On a GPU everything is queued when this returns; ``read`` waits. A step with sources takes its
        tokens from ``before``, the step before it, whether or not they have been read.

        Everything is queued on one stream. So a step may overwrite what an earlier one reads: that step's logits, and
        blocks that have been given to other sequences since.
        """
        self._check_bound()
        logits = self.compute(self, step, None if before is None else before.token_ids)
        rows: list[int] = []
        # Row numbers of the logits: an item has one row for its last token and one for each unconfirmed token. The
        # samples of one prompt all read the same row.
        end = 0
        for item in step.items:
            start, end = end, end + item.unconfirmed + 1
            for _ in item.samples:
                rows += range(start, end)
        # A step without rows computes only part of a prompt. The host still waits for it, or its time would count as
        # the next step's.
        if not rows:
            logits = logits[:0]
        elif rows != list(range(len(logits))):
            logits = logits[send([np.array(rows, np.int64)], logits.device)[0]]
        return draw(logits, params, draws)

    @torch.no_grad()
    def forward(self, step: Step, sampled: torch.Tensor | None = None) -> torch.Tensor:
        """Run the copies and the forward; return [rows, vocabulary], the logits of ``step.batch.last``.

        A reader of the logits must be queued before the next step, which may overwrite them. A step with sources takes
        its tokens from ``sampled`` [rows], int64 on the device, the tokens of the step before it.
        """
        self.prepare(step)
        known, sources = step.batch.token_ids, step.batch.sources
        (token_ids,) = send([known if sources is None else sources], self.adapter.cache.device)
        if sampled is not None:
            token_ids = sampled.index_select(0, token_ids)
        return self.adapter.forward(token_ids, self.batch(step))

    def prepare(self, step: Step) -> None:
        """Do all writes that precede the forward of ``step``."""
        for before in (*self._before_writes, *self._before_copies):
            before(step)
        for group in range(len(self.adapter.cache.kv_cache_groups)):
            pairs = [(copy.src, copy.dst) for copy in step.copies if copy.kv_cache_group == group]
            if pairs:
                src, dst = zip(*pairs, strict=True)
                self.adapter.cache.copy_blocks(group, src, dst)

    def batch(self, step: Step) -> Batch:
        """Return the step's arrays as tensors on the cache's device, without checks: the scheduler made them."""
        arrays, cache, num_groups = step.batch, self.adapter.cache, len(step.batch.block_tables)
        counts = np.diff(arrays.query_starts).tolist(), arrays.lengths.tolist()
        plain = [arrays.positions, arrays.lengths, arrays.query_starts, arrays.last]
        held = [] if arrays.absent is None else [arrays.lengths - absent for absent in arrays.absent]
        positions, lengths, query_starts, last, *each = send(
            [*plain, *arrays.slot_mapping, *arrays.block_tables, *held], cache.device
        )
        batch = Batch(
            cache=cache,
            positions=positions,
            slots=tuple(each[:num_groups]),
            block_tables=tuple(each[num_groups : 2 * num_groups]),
            lengths=tuple(each[2 * num_groups :]) or (lengths,) * num_groups,
            query_starts=query_starts,
            last=last,
            max_queries=max(counts[0]),
            max_position=max(counts[1]) - 1,
            counts=counts,
        )
        for on_batch in self._on_batch:
            batch = on_batch(step, batch)
        return batch

    def _check_bound(self) -> None:
        """Raise if the model has its own attention again, which would silently read only the new tokens."""
        found = self.adapter.model.config._attn_implementation
        if self.adapter.reads == "paged" and found != ATTENTION:
            raise ArgumentError("llm_attention", name=self.adapter.cache.spec.name, found=found)
