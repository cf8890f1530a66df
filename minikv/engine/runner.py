"""Runner: computes a step. The copies, one forward, and a token for each sequence that is due. Lesson 11."""

from collections.abc import Sequence as Seq

import numpy as np
import torch

from minikv.engine.sampler import Sampled, sample
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.step import Step
from minikv.errors import ArgumentError
from minikv.models import ATTENTION, Adapter, Batch


class Runner:
    """The only part of the engine that computes: what the scheduler decides, and the model on its cache carries out."""

    def __init__(self, adapter: Adapter):
        self.adapter = adapter

    @torch.no_grad()  # not inference_mode: what a model keeps from its first forward has to be of use outside too
    def run(self, step: Step, params: Seq[SamplingParams], draws: Seq[float]) -> Sampled:
        """One token for each sequence in ``step.sampled``, drawn as its ``params`` and its number in ``draws`` say."""
        self._check_bound()
        logits = self.logits(step)
        rows = [row for row, item in enumerate(step.items) for _ in item.samples]
        if not rows:
            return Sampled([], [])
        if rows != list(range(len(logits))):
            logits = logits[torch.tensor(rows, dtype=torch.long, device=logits.device)]
        return sample(logits, params, draws)

    @torch.no_grad()
    def logits(self, step: Step) -> torch.Tensor:
        """The copies and the forward: [items, vocabulary], the logits of each item's last token."""
        for kind in range(len(self.adapter.cache.kinds)):
            pairs = [(copy.src, copy.dst) for copy in step.copies if copy.kind == kind]
            if pairs:
                src, dst = zip(*pairs, strict=True)
                self.adapter.cache.copy_blocks(kind, src, dst)
        return self.adapter.forward(step.batch.token_ids, self.batch(step))

    def _check_bound(self) -> None:
        """The model's own attention would read the new tokens only, and say nothing."""
        found = self.adapter.model.config._attn_implementation
        if self.adapter.reads == "paged" and found != ATTENTION:
            raise ArgumentError("llm_attention", name=self.adapter.cache.spec.name, found=found)

    def batch(self, step: Step) -> Batch:
        """The step's arrays as tensors where the cache is. The scheduler made them, so they are not checked again."""
        arrays, cache = step.batch, self.adapter.cache

        def there(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).to(cache.device)

        lengths, starts = there(arrays.lengths), arrays.query_starts
        return Batch(
            cache=cache,
            positions=there(arrays.positions),
            slots=tuple(there(slots) for slots in arrays.slot_mapping),
            block_tables=tuple(there(table) for table in arrays.block_tables),
            lengths=(lengths,) * len(arrays.block_tables),
            query_starts=there(starts),
            last=there(starts[1:].astype(np.int64) - 1),
            max_queries=int(np.diff(starts).max()),
            max_position=int(arrays.positions.max()),
        )
