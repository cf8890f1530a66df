"""nano.LLM as a person uses it: texts, ends, draws, streams, and what it refuses."""

from collections import Counter

import pytest
import torch

import minikv
from minikv.errors import ArgumentError, ConfigError, RequestTooLargeError
from minikv.nano import LLM, SamplingParams
from minikv.nano.kv_cache import block_bytes, num_blocks_that_fit, token_bytes
from minikv.nano.runner import draw
from tests.models.running import World

FACTS = "ada paris the old cat sleeps ben oslo ? "
GREEDY = SamplingParams(3, temperature=0)


@pytest.fixture(scope="module")
def llm():
    return LLM("tiny-gqa", num_blocks=64, block_size=4)


def test_it_recalls_facts_and_finds_the_prefix_again(llm):
    first, second = llm.generate([FACTS + "ada", FACTS + "ben"], GREEDY)
    assert first.text.split()[0] == "paris"
    assert second.text.split()[0] == "oslo"
    again = llm.generate(FACTS + "ben", GREEDY)
    assert again[0].num_cached == 8
    assert again[0].token_ids == second.token_ids


def test_a_stream_is_the_text_in_pieces(llm):
    pieces = list(llm.stream(FACTS + "ben", SamplingParams(9, temperature=0)))
    assert len(pieces) == 9
    assert "".join(pieces) == llm.generate(FACTS + "ben", SamplingParams(9, temperature=0))[0].text


def test_a_stream_that_is_left_gives_its_blocks_back(llm):
    stream = llm.stream(FACTS + "ben", SamplingParams(9, temperature=0))
    next(stream)
    assert llm.scheduler.running
    stream.close()
    assert not llm.scheduler.running
    assert len(llm.scheduler.blocks.free_blocks) == 64


def test_an_end_of_sequence_token_ends_it_unless_it_is_ignored(llm):
    tokens = llm.generate(FACTS + "ben", SamplingParams(6, temperature=0))[0].token_ids
    own, llm.eos = llm.eos, frozenset([tokens[2]])
    try:
        stopped, ignored = llm.generate(
            [FACTS + "ben"] * 2,
            [SamplingParams(6, temperature=0), SamplingParams(6, temperature=0, ignore_eos=True)],
        )
    finally:
        llm.eos = own
    assert (stopped.token_ids, stopped.finish_reason) == (tokens[: tokens.index(tokens[2]) + 1], "stop")
    assert (ignored.token_ids, ignored.finish_reason) == (tokens, "length")


def test_a_seed_repeats_its_draws_whatever_runs_beside():
    alone = LLM("tiny-gqa", num_blocks=64, block_size=4)
    asked = [SamplingParams(12, temperature=1.5, seed=seed) for seed in range(8)]
    expected = [alone.generate(FACTS, params)[0].token_ids for params in asked]
    assert len({tuple(tokens) for tokens in expected}) > 4, "seeds differ"
    crowded = LLM("tiny-gqa", num_blocks=12, block_size=4, max_num_batched_tokens=16)
    assert [each.token_ids for each in crowded.generate([FACTS] * 8, asked)] == expected
    assert crowded.scheduler.num_preemptions


def test_draws_follow_the_probabilities_and_top_p_cuts_the_unlikely():
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0])
    probabilities = (logits / 0.8).softmax(-1)
    seen = Counter(draw(logits, SamplingParams(temperature=0.8, seed=seed), 5) for seed in range(4000))
    for token, probability in enumerate(probabilities.tolist()):
        spread = (probability * (1 - probability) / 4000) ** 0.5
        assert abs(seen[token] / 4000 - probability) < 5 * spread
    few = SamplingParams(temperature=0.8, top_p=0.75)  # token 1 alone has 0.73, so token 2 is needed
    assert {draw(logits, few, position) for position in range(300)} == {1, 2}
    assert {draw(logits, SamplingParams(temperature=0.8, top_p=1e-9), i) for i in range(50)} == {1}


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("gpt_oss", "sinks"),
        ("qwen3_next", "linear"),
        ("bloom", "by itself"),
        ("gemma4_text", "different sizes"),
        ("deepseek_v32", "indexed"),
        ("nemotron", "arguments"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(model_type, words):
    model = World.bare(model_type)
    own = model.config._attn_implementation
    with pytest.raises(ConfigError, match=words) as refused:
        LLM(model, num_blocks=8)
    assert refused.value.code == "nano_cannot"
    assert model.config._attn_implementation == own, "a model that was refused is as it was"


def test_what_does_not_fit_is_refused_with_the_numbers(llm):
    with pytest.raises(RequestTooLargeError, match="256"):
        llm.generate([[1] * 250], SamplingParams(8))
    assert llm.generate([[1] * 250], SamplingParams(7))[0].finish_reason == "length"
    for prompt in ([], [True], [1.0], [-1], [196]):
        with pytest.raises(ArgumentError):
            llm.generate([prompt])
    for wrong in (
        {"max_tokens": 0},
        {"temperature": -1},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.5},
    ):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            SamplingParams(**wrong)
    with pytest.raises(RequestTooLargeError):
        llm.generate([FACTS, [1] * 300])
    assert not llm.scheduler.waiting, "of a list with one that is refused, none waits"
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="num_blocks"):
            LLM("tiny-gqa")
    with pytest.raises(ArgumentError, match="num_blocks"):
        LLM("tiny-gqa", num_blocks=0)
    for prompts, params in ((5, None), (None, None), ([[1], [2]], [SamplingParams()])):
        with pytest.raises(ArgumentError):
            llm.generate(prompts, params)
    with pytest.raises(ArgumentError, match="block_size"):
        LLM("tiny-gqa", num_blocks=8, block_size=0)


def test_its_arithmetic_is_the_planners():
    """Bytes of a token, of a block and of the whole cache; for an MLA model those of expanded K and V."""
    for name, layout in (("tiny-gqa", "hf"), ("tiny-mla", "hf-expanded")):
        engine = LLM(name, num_blocks=10, block_size=4)
        layers, layer = engine.spec.layers, engine.spec.layers[0]
        token = token_bytes(len(layers), layer.kv_heads, layer.k_dim, layer.v_dim, 4)
        spec = minikv.CacheSpec.from_config(engine.model.config, layout=layout, kv_dtype="fp32")
        assert token == spec.bytes_for(1)
        assert block_bytes(token, 4) == spec.block_bytes(4)
        assert engine.cache.nbytes == 10 * spec.block_bytes(4)


def test_the_formula_is_the_planners():
    gib = 2**30
    assert num_blocks_that_fit(80 * gib, 0.9, 35 * gib, 45 * gib, 35 * gib, gib) == 27
    assert num_blocks_that_fit(8 * gib, 0.9, 7 * gib, 9 * gib, 6 * gib, gib) < 0
