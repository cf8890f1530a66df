"""Behind the last attention only the rows with logits are computed, and they have every bit that they had."""

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from minikv import LLM, SamplingParams
from minikv.models import attention, cpu_modules
from minikv.models.wanted import behind_attention, forward, wanted

SIZES = {"vocab_size": 512, "hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 4}
MLP = {"intermediate_size": 512, "num_key_value_heads": 2}
FAMILIES = {
    "Llama": (LlamaForCausalLM, LlamaConfig(**SIZES, **MLP)),
    "Gemma 2": (Gemma2ForCausalLM, Gemma2Config(**SIZES, **MLP, head_dim=96, sliding_window=8)),
    "Cohere, MLP beside attention": (CohereForCausalLM, CohereConfig(**SIZES, **MLP)),
    "GPT-NeoX": (GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES, intermediate_size=512)),
}
PROMPTS = [list(range(1, 40)), list(range(5, 22)), [7, 8, 9], list(range(1, 30))]


@pytest.fixture
def rows(monkeypatch):
    """How many rows each product in C had."""
    counts: list[int] = []

    def count(name, call):
        def counted(x, *args):
            counts.append(x.shape[-2])
            return call(x, *args)

        monkeypatch.setattr(cpu_modules, name, counted)

    for name in ("_product", "_gated"):
        count(name, getattr(cpu_modules, name))
    return counts


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_logprobs_are_the_same_and_fewer_rows_are_computed(name, rows, monkeypatch):
    torch.manual_seed(0)
    family, config = FAMILIES[name]
    model = family(config).eval()
    model.generation_config.eos_token_id = None
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)

    def answers():
        rows.clear()
        with LLM(model, num_blocks=64, max_num_seqs=4, max_batched_tokens=32) as llm:
            return [(out.token_ids, out.logprobs) for out in llm.generate(PROMPTS, params, progress=False)]

    found, computed = answers(), sum(rows)
    monkeypatch.setattr(attention, "behind_attention", lambda: None)
    expected = answers()
    if not computed:
        pytest.skip("no weight is packed here")
    assert computed < sum(rows)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    for (_, mine), (_, others) in zip(found, expected, strict=True):
        for one, other in zip(mine, others, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


def test_a_hook_sees_every_row(rows):
    torch.manual_seed(0)
    family, config = FAMILIES["Llama"]
    model, seen = family(config).eval(), []
    prompt = torch.tensor([PROMPTS[0][:20]])
    with torch.no_grad():
        expected = model.model(prompt).last_hidden_state[0]
    model.model.norm.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    with LLM(model, num_blocks=64) as llm:
        llm.generate(prompt.tolist(), SamplingParams(max_tokens=1), progress=False)
    torch.testing.assert_close(seen[-1], expected, rtol=1e-4, atol=1e-4)


def test_an_error_in_a_forward_leaves_all_rows_asked_for():
    x = torch.ones(1, 4, 2)

    def fails():
        with forward(4, torch.tensor([1])):
            assert torch.equal(wanted(torch.clone, x), x)
            behind_attention()
            assert wanted(torch.clone, x)[0, :, 0].tolist() == [0, 1, 0, 0]
            assert torch.equal(wanted(torch.clone, x[:, :3]), x[:, :3])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert torch.equal(wanted(torch.clone, x), x)
