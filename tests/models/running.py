"""A small random model, what ``generate`` makes of some prompts, and the same through a cache of blocks in batches.

``World.run`` drives BlockManager, PagedKVCache and Adapter as an engine does, and compares every token and every logit
with the model's own ``generate``, one prompt at a time; ``World.run_on`` does so with any cache.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedConfig

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache import PagedKVCache, Pages
from minikv.models import Adapter, Batch, bind_model, measure, seen_window
from minikv.plan import CacheSpec
from tests.plan.small_models import small_config, small_model

NEW_TOKENS = 6
TIE = 1e-5  # a reference gap of the two best logits under it may go either way
TOLERANCE = 1e-4
SPREAD = 0.12


@dataclass
class Result:
    """What a run saw: the largest difference of two logits, ties, tokens computed, and forwards."""

    difference: float = 0.0
    ties: int = 0
    computed: int = 0
    forwards: int = 0


class World:
    """A model of ``model_type``, or of that config, in float32 and the reference: tokens and logits of every prompt."""

    def __init__(self, model_type: str | PreTrainedConfig, prompts: list[list[int]] | None = None, **changes):
        self.model = self.bare(model_type, **changes)
        random = np.random.default_rng(7)
        lengths = (1, 5, 37, 12)
        self.prompts = prompts or [random.integers(1, 97, n).tolist() for n in lengths]
        self.spec = measure(self.model, kv_dtype="fp32")
        self.reference = [self._generate(prompt) for prompt in self.prompts]

    @staticmethod
    def bare(model_type: str | PreTrainedConfig, **changes):
        """The model alone, without an end-of-sequence token."""
        config = small_config(model_type, **changes) if isinstance(model_type, str) else model_type
        model = small_model(config)
        model.generation_config.eos_token_id = None
        sharpen(model)
        return model

    def _generate(self, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
        out = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
        )
        return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float()

    def manager(self, cache: Pages) -> BlockManager:
        windows = [seen_window(cache, group) for group in range(len(cache.kv_cache_groups))]
        groups = [KVCacheGroup(*pool) for pool in zip(cache.num_blocks, windows, strict=True)]
        return BlockManager(groups, cache.block_size)

    def run(
        self,
        block_size: int,
        *,
        reads: str = "auto",
        chunk: int | None = None,
        spec: CacheSpec | None = None,
        num_blocks: int | None = None,
    ) -> Result:
        """All prompts at once, ``chunk`` tokens of each a step (None: a whole prompt), then decode together."""
        blocks = num_blocks or sum(-(-(len(p) + NEW_TOKENS) // block_size) for p in self.prompts) + 2
        return self.run_on(PagedKVCache(spec or self.spec, blocks, block_size), reads=reads, chunk=chunk)

    def run_on(
        self, cache: Pages, *, reads: str = "auto", chunk: int | None = None, junk: float = 1e4
    ) -> Result:
        """``run`` with this cache, every element of which is ``junk`` before."""
        poison(cache, junk)
        adapter = bind_model(self.model, cache, reads=reads)
        result = Result()
        try:
            self.steps(adapter, self.manager(cache), chunk, result)
        finally:
            adapter.unbind()
        return result

    def steps(self, adapter: Adapter, manager: BlockManager, chunk: int | None, result: Result) -> None:
        """Answer every prompt, and free it."""
        made: list[list[int]] = [[] for _ in self.prompts]
        done = [0] * len(self.prompts)  # tokens whose K and V are stored
        waiting = set(range(len(self.prompts)))
        while waiting:
            step = []
            for seq in sorted(waiting):
                tokens = self.prompts[seq] + made[seq]
                end = len(tokens) if chunk is None else min(len(tokens), done[seq] + chunk)
                if seq not in manager.sequences():
                    first = manager.match(self.prompts[seq]).num_tokens
                    end = len(tokens) if chunk is None else min(len(tokens), first + chunk)
                    done[seq] = manager.allocate(seq, tokens[:end]).num_cached
                else:
                    assert not manager.append_tokens(seq, tokens[done[seq] : end])
                step.append((seq, done[seq], end, tokens[done[seq] : end]))
            logits = forward(adapter, manager, step)
            result.forwards += 1
            result.computed += sum(len(new) for *_, new in step)
            for row, (seq, _, end, _) in enumerate(step):
                manager.commit(seq)
                done[seq] = end
                if end < len(self.prompts[seq]):
                    continue
                if not self._agrees(seq, made[seq], logits[row], result) or len(made[seq]) == NEW_TOKENS:
                    waiting.remove(seq)
            manager.check_invariants()
        for seq in manager.sequences():
            manager.free(seq)
        assert all(pool.num_free == pool.num_blocks for pool in manager.pools)

    def resume(self, adapter: Adapter, manager: BlockManager, said: list[list[int]]) -> None:
        """Recompute prompts with what was said already; the next logits are those of the reference."""
        step = [(seq, 0, len(tokens), tokens) for seq, tokens in enumerate(said)]
        logits = forward(adapter, manager, step)
        for seq, tokens in enumerate(said):
            made = tokens[len(self.prompts[seq]) :]
            assert self._agrees(seq, made, logits[seq], Result())

    def fork_and_step(self, adapter: Adapter, manager: BlockManager, prompt: list[int]) -> None:
        """Both prompts begin with ``prompt``: it is computed once, forked, and each end is computed behind it."""
        manager.allocate("stem", prompt)
        forward(adapter, manager, [("stem", 0, len(prompt), prompt)])
        manager.commit("stem")
        for seq, tokens in enumerate(self.prompts):
            manager.fork("stem", seq)
            copies = manager.append_tokens(seq, tokens[len(prompt) :])
            assert copies, "the last block is shared"
            for copy in copies:
                adapter.cache.copy_blocks(copy.kv_cache_group, [copy.src], [copy.dst])
        ends = [
            (seq, len(prompt), len(tokens), tokens[len(prompt) :]) for seq, tokens in enumerate(self.prompts)
        ]
        logits = forward(adapter, manager, ends)
        for seq in range(len(self.prompts)):
            assert self._agrees(seq, [], logits[seq], Result())

    def prefill_in_chunks(self, adapter: Adapter, chunk: int = 6) -> torch.Tensor:
        """The logits behind every prompt, [prompts, vocabulary], ``chunk`` tokens a forward, one prompt at a time."""
        manager, logits = self.manager(adapter.cache), []
        for seq, prompt in enumerate(self.prompts):
            for start in range(0, len(prompt), chunk):
                end = min(len(prompt), start + chunk)
                if start:
                    manager.append_tokens(seq, prompt[start:end])
                else:
                    manager.allocate(seq, prompt[:end])
                last = forward(adapter, manager, [(seq, start, end, prompt[start:end])])
                manager.commit(seq)
            logits.append(last[0])
        return torch.stack(logits)

    def _agrees(self, seq: int, made: list[int], logits: torch.Tensor, result: Result) -> bool:
        """Take the next token. False after a tie that went the other way: from there on nothing is comparable."""
        tokens, expected = self.reference[seq]
        place = len(made)
        difference = float((logits.float() - expected[place]).abs().max())
        result.difference = max(result.difference, difference)
        assert difference < TOLERANCE, f"prompt {seq}, new token {place}: logits differ by {difference}"
        made.append(int(logits.argmax()))
        if made[-1] == tokens[place]:
            return True
        best = expected[place].topk(2).values
        assert best[0] - best[1] < TIE, f"prompt {seq}, new token {place}: {made[-1]} is not {tokens[place]}"
        result.ties += 1
        return False


@functools.cache
def world(model_type: str) -> World:
    """One for each model in a test run: a model that is bound to a cache is unbound again."""
    return World(model_type)


def forward(adapter: Adapter, manager: BlockManager, step: list) -> torch.Tensor:
    """The logits of ``step``, a list of (sequence, first position, end, the tokens between)."""
    rows = [manager.sequences().index(seq) for seq, *_ in step]
    groups = range(len(adapter.cache.kv_cache_groups))
    batch = Batch.build(
        adapter.cache,
        [manager.block_tables(group)[rows] for group in groups],
        np.array([[manager.length(seq, group) for seq, *_ in step] for group in groups]),
        np.array([end - start for _, start, end, _ in step]),
    )
    for group in groups:
        mapping = [manager.slot_mapping(seq, start, end, group) for seq, start, end, _ in step]
        assert batch.slots[group].tolist() == np.concatenate(mapping).tolist()
    return adapter.forward([token for *_, new in step for token in new], batch)


def sharpen(model: torch.nn.Module) -> None:
    """Larger weights: at the usual 0.02 attention is almost a mean, and a wrong key would change no token."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # xLSTM's gates begin shut, and ZAYA's keys at a scale of 0.
            if name.endswith(("sinks", "gate_preact.weight", "gate_preact.bias", "qk_norm.temp")):
                parameter.normal_(generator=generator)
            elif parameter.dim() > 1:
                parameter.mul_(SPREAD / parameter.std().clamp(min=1e-9))


def poison(cache: Pages, junk: float = 1e4) -> None:
    """Nonsense in every block: what nobody stored must not count."""
    for number, layer in enumerate(cache.spec.layers):
        if layer.token_bytes:
            held = cache.layer(number)
            for tensor in (held.k, held.v, held.k_scale, held.v_scale):
                if tensor is not None:
                    tensor.fill_(junk)
