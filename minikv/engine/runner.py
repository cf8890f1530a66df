"""Runner: computes a step. The copies, one forward, and a token for each sequence that is due. Lesson 11a."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial

import numpy as np
import torch

from minikv.engine.evict_step import StepEvictor
from minikv.engine.graphs import DecodeGraphs, Eager
from minikv.engine.sampler import Drawing, draw
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.staging import send
from minikv.engine.step import Step
from minikv.errors import ArgumentError
from minikv.models import ATTENTION, Adapter, Batch


class Runner:
    """The only part of the engine that computes: what the scheduler decides, and the model on its cache carries out.

    ``graphs`` are the decode steps that were captured; ``why_eager`` says why there are none. The host waits for a GPU
    once a step, for its tokens or its end, and once more for each list of blocks that are copied or swapped.
    ``transfer`` carries out a step's swaps, and ``evictor`` its evictions. Where it ``overlaps``, a step may be run
    before the tokens of the last one are read: a GPU goes from one to the other without waiting for the host.
    """

    def __init__(self, adapter: Adapter):
        self.adapter = adapter
        self.graphs: DecodeGraphs | None = None
        self.why_eager: Eager | None = None
        self.transfer: Callable[..., None] | None = None
        self.evictor: StepEvictor | None = None
        self.overlaps = adapter.cache.device.type == "cuda"

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
        before: Drawing | None = None,
    ) -> Drawing:
        """One token for each sequence in ``step.sampled``, drawn as its ``params`` and its number in ``draws`` say.

        Of an item with drafts one for each row of it in ``step.batch.last``, each with its params and its number. On a
        GPU all of it is queued when this returns, and the host waits in ``read``. A step ahead takes its tokens from
        ``before``, the step before it, whether or not anybody has read them.

        Everything is queued on one stream, so a step may write what an earlier one reads: the logits of a captured
        step, and blocks that belong to others since.
        """
        self._check_bound()
        logits = self.logits(step) if before is None else self.logits(step, before.token_ids)
        rows: list[int] = []
        end = 0
        for item in step.items:
            start, end = end, end + item.drafts + 1
            for _ in item.samples:
                rows += range(start, end)
        if (
            not rows
        ):  # a part of a prompt: it is waited for all the same, or its time would be the next step's
            logits = logits[:0]
        elif rows != list(range(len(logits))):
            logits = logits[send([np.array(rows, np.int64)], logits.device)[0]]
        return draw(logits, params, draws)

    @torch.no_grad()
    def logits(self, step: Step, sampled: torch.Tensor | None = None) -> torch.Tensor:
        """The swaps, the copies and the forward: [rows, vocabulary], the logits of ``step.batch.last``.

        What reads them has to be queued before the next step: a captured one writes into the same place. A step ahead
        takes its tokens from ``sampled`` [rows], int64 on the device, what the step before it has drawn.
        """
        evict = None if self.evictor is None else partial(self.evictor.before_forward, step)
        if self.transfer is not None:
            self.transfer(step, evict)
        elif evict is not None:
            evict()
        for kind in range(len(self.adapter.cache.kinds)):
            pairs = [(copy.src, copy.dst) for copy in step.copies if copy.kind == kind]
            if pairs:
                src, dst = zip(*pairs, strict=True)
                self.adapter.cache.copy_blocks(kind, src, dst)
        if self.graphs is not None and self.graphs.takes(step.batch):
            return self.graphs.replay(step.batch, sampled)
        known, sources = step.batch.token_ids, step.batch.sources
        (token_ids,) = send([known if sources is None else sources], self.adapter.cache.device)
        if sampled is not None:
            token_ids = sampled.index_select(0, token_ids)
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
        held = [] if arrays.evicted is None else [arrays.lengths - lost for lost in arrays.evicted]
        positions, lengths, query_starts, last, *each = send(
            [*plain, *arrays.slot_mapping, *arrays.block_tables, *held], cache.device
        )
        return Batch(
            cache=cache,
            positions=positions,
            slots=tuple(each[:kinds]),
            block_tables=tuple(each[kinds : 2 * kinds]),
            lengths=tuple(each[2 * kinds :]) or (lengths,) * kinds,
            query_starts=query_starts,
            last=last,
            max_queries=int(np.diff(starts).max()),
            max_position=int(arrays.positions.max()),
            observer=None if self.evictor is None else self.evictor.observer(step),
        )
