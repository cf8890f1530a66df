"""Runner: computes a step. The copies, one forward, and a token for each sequence that is due. Lesson 11."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
import torch

from minikv.engine.graphs import DecodeGraphs, Eager
from minikv.engine.sampler import Sampled, sample
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.staging import send
from minikv.engine.step import Step
from minikv.errors import ArgumentError
from minikv.models import ATTENTION, Adapter, Batch


class Runner:
    """The only part of the engine that computes: what the scheduler decides, and the model on its cache carries out.

    ``graphs`` are the decode steps that were captured; ``why_eager`` says why there are none. The host waits for a GPU
    once a step, for its tokens or its end, and once more for each list of blocks that are copied or swapped.
    ``transfer`` carries out a step's swaps.
    """

    def __init__(self, adapter: Adapter):
        self.adapter = adapter
        self.graphs: DecodeGraphs | None = None
        self.why_eager: Eager | None = None
        self.transfer: Callable[[Step], None] | None = None

    def use(self, graphs: DecodeGraphs | Eager) -> None:
        """Replay these decode steps from now on, or know why every step is computed."""
        self.graphs = graphs if isinstance(graphs, DecodeGraphs) else None
        self.why_eager = graphs if isinstance(graphs, Eager) else None

    @torch.no_grad()  # not inference_mode: what a model keeps from its first forward has to be of use outside too
    def run(
        self,
        step: Step,
        params: Seq[SamplingParams],
        draws: Seq[float],
        meanwhile: Callable[[], object] | None = None,
    ) -> Sampled:
        """One token for each sequence in ``step.sampled``, drawn as its ``params`` and its number in ``draws`` say.

        Of an item with drafts one for each row of it in ``step.batch.last``, each with its params and its number.
        ``meanwhile`` is called when all is queued, while a GPU computes; what it raises fails the step.
        """
        self._check_bound()
        logits = self.logits(step)
        rows: list[int] = []
        end = 0
        for item in step.items:
            start, end = end, end + item.drafts + 1
            for _ in item.samples:
                rows += range(start, end)
        if not rows:  # a part of a prompt: without this its time, and its errors, would be the next step's
            if logits.is_cuda:
                torch.cuda.current_stream(logits.device).synchronize()
            return Sampled([], [])
        if rows != list(range(len(logits))):
            logits = logits[send([np.array(rows, np.int64)], logits.device)[0]]
        return sample(logits, params, draws, meanwhile)

    @torch.no_grad()
    def logits(self, step: Step) -> torch.Tensor:
        """The swaps, the copies and the forward: [rows, vocabulary], the logits of ``step.batch.last``.

        Read them before the next step: a captured one writes into the same place.
        """
        if self.transfer is not None:
            self.transfer(step)
        for kind in range(len(self.adapter.cache.kinds)):
            pairs = [(copy.src, copy.dst) for copy in step.copies if copy.kind == kind]
            if pairs:
                src, dst = zip(*pairs, strict=True)
                self.adapter.cache.copy_blocks(kind, src, dst)
        if self.graphs is not None and self.graphs.takes(step.batch):
            return self.graphs.replay(step.batch)
        (token_ids,) = send([step.batch.token_ids], self.adapter.cache.device)
        return self.adapter.forward(token_ids, self.batch(step))

    def close(self) -> None:
        """Forget the captured steps; they hold addresses in the cache."""
        if self.graphs is not None:
            self.graphs.close()

    def _check_bound(self) -> None:
        """The model's own attention would read the new tokens only, and say nothing."""
        found = self.adapter.model.config._attn_implementation
        if self.adapter.reads == "paged" and found != ATTENTION:
            raise ArgumentError("llm_attention", name=self.adapter.cache.spec.name, found=found)

    def batch(self, step: Step) -> Batch:
        """The step's arrays as tensors where the cache is. The scheduler made them, so they are not checked again."""
        arrays, cache = step.batch, self.adapter.cache
        starts, kinds = arrays.query_starts, len(arrays.block_tables)
        plain = [arrays.positions, arrays.lengths, starts, arrays.last]
        positions, lengths, query_starts, last, *each = send(
            [*plain, *arrays.slot_mapping, *arrays.block_tables], cache.device
        )
        return Batch(
            cache=cache,
            positions=positions,
            slots=tuple(each[:kinds]),
            block_tables=tuple(each[kinds:]),
            lengths=(lengths,) * kinds,
            query_starts=query_starts,
            last=last,
            max_queries=int(np.diff(starts).max()),
            max_position=int(arrays.positions.max()),
        )
