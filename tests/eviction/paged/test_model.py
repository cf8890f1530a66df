"""A model on blocks that evicts, against the same model on a dense cache with what was evicted masked."""

from dataclasses import replace

import pytest
import torch

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache import PagedKVCache
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.from_keys import CUR, LagKV, Leverage
from minikv.eviction.policies.literature import H2O, TOVA, KeyDiff, Knorm, Random, SnapKV, StreamingLLM
from minikv.models import Batch, bind_model, load, recall_documents, seen_window
from minikv.plan import CacheSpec
from tests.eviction.paged.reference import Masked
from tests.longer import every_value

POLICIES = {
    "random": Random(3),
    "streaming": StreamingLLM(),
    "h2o": H2O(),
    "h2o mean": H2O(reduce="mean", group="mean"),
    "h2o decay": H2O(reduce="decay", decay=0.9),
    "snapkv": SnapKV(queries=4, kernel=3),
    "tova": TOVA(),
    "knorm": Knorm(),
    "keydiff": KeyDiff(),
    "leverage": Leverage(),
    "cur": CUR(),
    "lagkv": LagKV(),
}
# Tokens that each of two sequences computes in each step: prompts in chunks, a chunk beside a decode, decodes.
STEPS = [(31, 20), (12, 1), (1, 30), (1, 1), (9, 1), *[(1, 1)] * 8]


@pytest.fixture(scope="module", params=["tiny-gqa", "tiny-mla"])
def models(request):
    """The same weights twice: one is bound to blocks, the other gets the reference's attention."""
    return [load(request.param, device="cpu").model for _ in range(2)]


def texts_of(steps=STEPS):
    documents = recall_documents(2, seed=5)
    rows = [list(map(int, document.tokens)) for document in documents]
    return [row[: sum(step[number] for step in steps)] for number, row in enumerate(rows)]


class OnBlocks:
    """``texts`` on blocks, computed as ``steps`` says."""

    def __init__(self, model, policy, budget, *, block_size=4, num_blocks=200, **options):
        spec = CacheSpec.from_config(model.config, kv_dtype="fp32")
        self.cache = PagedKVCache(spec, num_blocks, block_size)
        windows = [seen_window(self.cache, group) for group in range(len(self.cache.kv_cache_groups))]
        self.full = windows.index(None)
        self.manager = BlockManager([KVCacheGroup(num_blocks, window) for window in windows], block_size)
        self.adapter = bind_model(model, self.cache)
        self.eviction = PagedEviction(self.cache, self.manager, policy, budget=budget, model=model, **options)
        self.done = {}

    def forward(self, new):
        """The next tokens of some sequences, {name: ids}: the logits of the last one of each, [B, vocabulary]."""
        for name, ids in new.items():
            if name not in self.done:
                self.manager.allocate(name, ids)
                self.eviction.add(name)
                self.done[name] = 0
            else:
                self.manager.append_tokens(name, ids)
            self.done[name] += len(ids)
        names, counts = list(new), [len(ids) for ids in new.values()]
        groups = range(len(self.cache.kv_cache_groups))
        lengths = [[self.manager.length(name, group) for name in names] for group in groups]
        tables = [self.tables(names, group) for group in groups]
        ends = [self.done[name] for name in names]
        positions = [at for end, count in zip(ends, counts, strict=True) for at in range(end - count, end)]
        batch = Batch.build(self.cache, tables, lengths, counts, positions)
        batch = replace(batch, observer=self.eviction.observer(names, counts))
        logits = self.adapter.forward([token for ids in new.values() for token in ids], batch)
        for name in names:
            self.manager.commit(name)
        return logits

    def tables(self, names, group):
        rows = [self.manager.block_table(name, group) for name in names]
        width = max(map(len, rows))
        return [row + [-1] * (width - len(row)) for row in rows]


def both(models, policy, budget, steps=STEPS, scope="layer", texts=None, **options):
    """Every step on both; yields (paged, references, logits of the first, of the second), after the evictions."""
    paged = OnBlocks(models[0], policy, budget, scope=scope, **options)
    texts = texts_of(steps) if texts is None else texts
    references = [Masked(models[1], policy, budget, scope) for _ in texts]
    texts = [iter(text) for text in texts]
    for counts in steps:
        new = {name: [next(texts[name]) for _ in range(count)] for name, count in enumerate(counts)}
        got = paged.forward(new)
        want = torch.stack([references[name].forward(ids) for name, ids in new.items()])
        due = paged.eviction.due(new)
        paged.eviction.evict(due)
        for name in due:
            references[name].evict()
        paged.manager.check_invariants()
        yield paged, references, got, want
    paged.adapter.unbind()


def holds_the_same(paged, references, budget):
    for name, reference in enumerate(references):
        assert paged.manager.length(name, paged.full) <= budget.peak_resident
        for layer in reference.kept:
            for head, positions in enumerate(paged.eviction.positions(name, layer).tolist()):
                assert sorted(positions) == reference.holds(layer, head), (name, layer, head)


@pytest.mark.parametrize("policy", POLICIES)
def test_compaction_equals_masking(models, policy):
    budget = Budget(2, 14, 6)
    for paged, references, got, want in both(models, POLICIES[policy], budget):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        holds_the_same(paged, references, budget)


@pytest.mark.parametrize(("block_size", "evict_every"), every_value([1, 3, 16], [1, 5]))
def test_whatever_the_block_size_and_however_seldom_it_evicts(models, block_size, evict_every):
    budget = Budget(4, 10, 7, evict_every)
    for paged, references, got, want in both(models, H2O(), budget, block_size=block_size):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        holds_the_same(paged, references, budget)


@pytest.mark.parametrize("policy", ["random", "h2o", "snapkv", "keydiff"])
def test_every_head_keeps_its_own(policy):
    models = [load("tiny-gqa", device="cpu").model for _ in range(2)]
    budget, differ = Budget(2, 12, 5, 2), False
    for paged, references, got, want in both(models, POLICIES[policy], budget, scope="head"):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        holds_the_same(paged, references, budget)
        differ = differ or references[0].holds(0, 0) != references[0].holds(0, 1)
    assert differ, "no head kept anything of its own"


def test_a_budget_for_everything_changes_nothing(models):
    everything = Budget(4, 1000, 8)
    for paged, _, got, want in both(models, H2O(), everything, STEPS[:6]):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        assert paged.manager.length(0) == paged.manager.num_tokens(0)


def test_each_query_head_gives_each_of_its_queries_once(models):
    """The mass that H2O has summed up: group size times queries, as long as nothing is gone."""
    paged = [each[0] for each in both(models, H2O(), Budget(4, 1000, 8), STEPS[:4])][-1]
    config = models[0].config
    for layer in range(config.num_hidden_layers):
        heads = paged.cache.layer(layer).k.shape[2]
        state = paged.eviction.records.read("state", layer, [0, 1], 60)
        queries = torch.tensor([sum(step[number] for step in STEPS[:4]) for number in (0, 1)])
        group = config.num_attention_heads // heads
        want = (group * queries).view(2, 1).expand(2, heads).float()
        torch.testing.assert_close(state.sum(-1), want, rtol=1e-5, atol=1e-3)


def test_chunks_of_a_prompt_are_scored_as_the_whole_prompt_is(models):
    """With a weight for the age of a query, too: nothing depends on how a prompt is cut."""
    text, states = texts_of()[0][:48], []
    for cuts in ([48], [20, 28], [1, 46, 1]):
        paged, rest = OnBlocks(models[0], H2O(reduce="decay", decay=0.95), Budget(4, 1000, 8)), iter(text)
        for cut in cuts:
            paged.forward({"a": [next(rest) for _ in range(cut)]})
        states.append(
            torch.stack([paged.eviction.records.read("state", layer, ["a"], 48).sum(1) for layer in (0, 1)])
        )
        paged.adapter.unbind()
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=1e-5, atol=1e-5)
