"""LLM: seeds, tenants, forks, log-probabilities, and the forms of a prompt."""

import numpy as np
import pytest
import torch

from minikv.engine import SamplingParams
from minikv.errors import MiniKVError
from tests.engine.llm_world import check_between_steps, greedy, make, reference, run

LLAMA = "llama"


def drawn(**more):
    return SamplingParams(**{"temperature": 1.5, "max_tokens": 6, **more})


def tokens_of(outputs):
    return [[each.token_ids for each in out.completions] for out in outputs]


# Seeds


def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it():
    model = reference(LLAMA)
    mine = [drawn(seed=seed, n=1 + seed % 3, top_p=0.9) for seed in range(4)]
    with make(model.model) as llm:
        alone = [llm.generate(prompt, params)[0] for prompt, params in zip(model.prompts, mine, strict=False)]
    with make(model.model, num_blocks=12, max_batched_tokens=12) as llm:
        crowd = [drawn(max_tokens=12) for _ in range(4)]
        order = [3, 1, 0, 2]
        prompts = [model.prompts[i] for i in order] + model.prompts[4:8]
        together = llm.generate(prompts, [mine[i] for i in order] + crowd)
        assert any(each.num_preemptions for out in together for each in out.completions)
    assert tokens_of(together[:4]) == tokens_of(alone[i] for i in order)


def test_without_a_seed_the_llms_own_decides():
    model = reference(LLAMA)

    def generate(seed, twice=False):
        with make(model.model, seed=seed) as llm:
            out = llm.generate(model.prompts[:3], drawn())
            return tokens_of(llm.generate(model.prompts[:3], drawn()) if twice else out)

    assert generate(5) == generate(5)
    assert generate(5, twice=True) == generate(5, twice=True)
    different = [
        generate(5),
        generate(5, twice=True),
        generate(6),
        generate(None),
        generate(None),
        generate(2**60),
    ]
    assert len({str(tokens) for tokens in different}) == len(different)


def test_the_same_prompt_twice_without_a_seed_gives_two_answers():
    model = reference(LLAMA)
    with make(model.model, seed=0) as llm:
        first, second = llm.generate([model.prompts[0]] * 2, drawn())
    assert first.token_ids != second.token_ids


def test_samples_of_one_seed_differ():
    model = reference(LLAMA)
    with make(model.model) as llm:
        out = llm.generate(model.prompts[0], drawn(seed=1, n=6))[0]
        again = llm.generate(model.prompts[0], drawn(seed=1, n=2))[0]
    assert len({each.token_ids for each in out.completions}) == 6
    assert tokens_of([again]) == [tokens_of([out])[0][:2]], "sample i is the same, however many there are"


def test_a_refused_call_changes_no_seed():
    model = reference(LLAMA)
    with make(model.model, seed=3) as llm:
        expected = tokens_of(llm.generate(model.prompts[:2], drawn()))
    with make(model.model, seed=3) as llm:
        with pytest.raises(MiniKVError):
            llm.generate([*model.prompts[:2], [1] * 5000], drawn())
        assert tokens_of(llm.generate(model.prompts[:2], drawn())) == expected


# Tenants, forks


def test_tenants_never_share_a_block():
    """Whoever begins with cached tokens holds blocks that its own tenant filled last, and nobody else holds them."""
    model = reference(LLAMA)
    holder, hits = {}, {"a": 0, "b": 0}
    with make(model.model, num_blocks=40) as llm:
        waiting = [(number, prompt, "ab"[number % 2]) for number, prompt in enumerate(model.prompts * 3)]
        salts = {number: salt for number, _, salt in waiting}
        begun = set()
        while waiting or llm.has_work:
            for number, prompt, salt in waiting[:2]:
                llm.add_request(prompt, greedy(5), request_id=number, salt=salt)
            waiting = waiting[2:]
            llm.step()
            check_between_steps(llm)
            now = {}
            for seq in llm.snapshot().running:
                salt = salts[seq.id.request]
                if seq.id not in begun:
                    begun.add(seq.id)
                    shared = seq.tables[0][: seq.num_cached // 4]
                    assert all(holder[block] == salt for block in shared)
                    hits[salt] += len(shared)
                for block in seq.tables[0]:
                    assert now.setdefault(block, salt) == salt
            holder |= now
    assert min(hits.values()) > 20


def test_what_was_cached_is_counted():
    model = reference(LLAMA)
    prompt = model.prompts[-1]
    with make(model.model) as llm:
        first, other, again = [llm.generate(prompt, greedy(), salt=salt)[0] for salt in ("a", "b", "a")]
        assert [out.num_cached for out in (first, other, again)] == [0, 0, (len(prompt) - 1) // 4 * 4]
        both = llm.generate([prompt, prompt], greedy(), salt=["a", "c"])
        assert [out.num_cached for out in both] == [again.num_cached, 0]
        assert {out.token_ids for out in (first, other, again, *both)} == {first.token_ids}


def test_samples_share_the_blocks_of_their_prompt():
    model = reference(LLAMA)
    prompt = model.prompts[-1]  # 37 tokens: 9 full blocks and a part of another
    with make(model.model) as llm:
        llm.add_request(prompt, drawn(seed=2, n=4, max_tokens=6))
        llm.step()
        llm.step()
        tables = [seq.tables[0] for seq in llm.snapshot().running]
        full = len(prompt) // 4
        assert len(tables) == 4
        assert len({table[:full] for table in tables}) == 1
        assert len({table[full] for table in tables}) == 4, "each writes a block of its own"
        log = llm.scheduler.extensions[-1].emit
        taken = sum(event.bytes for event in log.of("allocate"))
        assert taken == (full + 4) * llm.cache.kv_cache_groups[0].block_bytes(4)
        outputs = run(llm)[1]
        assert [each.sample for each in next(iter(outputs.values())).completions] == [0, 1, 2, 3]


# Log-probabilities


@pytest.mark.parametrize(
    "params", [greedy(6, logprobs=3), drawn(seed=4, logprobs=3, top_k=5), greedy(3, logprobs=0)]
)
def test_logprobs_are_those_of_the_model(params):
    model = reference(LLAMA)
    prompt = model.prompts[9]
    with make(model.model) as llm:
        out = llm.generate([prompt, model.prompts[3]], params)[0]
    ids = torch.tensor([[*prompt, *out.token_ids]])
    with torch.no_grad():
        exact = model.model(ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
    assert len(out.logprobs) == len(out.token_ids) == params.max_tokens
    for token, told, row in zip(out.token_ids, out.logprobs, exact, strict=True):
        assert told.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert told.rank == 1 + int((row > row[token]).sum())
        best = row.topk(params.logprobs) if params.logprobs else None
        assert [token for token, _ in told.top] == ([] if best is None else best.indices.tolist())
        assert [value for _, value in told.top] == pytest.approx(
            [] if best is None else best.values.tolist(), abs=1e-4
        )


def test_nobody_pays_for_logprobs_that_nobody_asked_for():
    model = reference(LLAMA)
    with make(model.model) as llm:
        plain, asked = llm.generate(model.prompts[:2], [greedy(), greedy(logprobs=1)])
        assert plain.logprobs is None
        assert len(asked.logprobs) == 8


# Prompts


def test_prompts_may_be_arrays_and_tensors():
    model = reference(LLAMA)
    ids = model.prompts[5]
    forms = [
        ids,
        tuple(ids),
        np.array(ids),
        torch.tensor(ids),
        np.array(ids, np.uint8),
        [np.int64(i) for i in ids],
    ]
    due = [model.due(ids, greedy())[0]]
    with make(model.model) as llm:
        for form in forms:
            assert [list(out.token_ids) for out in llm.generate(form, greedy())] == due
            assert [list(out.token_ids) for out in llm.generate([form, form], greedy())] == due * 2
        assert [list(out.token_ids) for out in llm.generate(torch.tensor([ids, ids]), greedy())] == due * 2
        assert llm.generate([]) == []
        assert list(llm.stream([])) == []
