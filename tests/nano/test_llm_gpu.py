"""nano on a GPU: its decode kernel under its own LLM, and the blocks that the GPU's free memory gives."""

import copy
import gc

import pytest
import torch

from minikv.nano import LLM, SamplingParams
from tests.engine.llm_world import reference
from tests.nano.drive import run

DEVICE = "cuda"
NEAR = 1e-3  # of two logits: rounding may take either
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("seed", range(4))
def test_random_workloads_give_what_generate_gives_on_a_cpu(model_type, seed):
    mine = reference(model_type)
    found = run(copy.deepcopy(mine.model).to(DEVICE), mine.prompts, seed)
    for prompt, params, output in found.answers:
        due, logits = mine.answer(prompt, params.max_tokens)
        pairs = enumerate(zip(output.token_ids, due, strict=True))
        differs = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
        if differs is not None:
            best = logits[differs].topk(2).values
            assert best[0] - best[1] < NEAR


def test_without_a_number_of_blocks_the_cache_takes_what_it_may_and_gives_it_back():
    model = copy.deepcopy(reference("llama").model).to(DEVICE)
    before = torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    may = (total - free + 256 * 2**20) / total
    llm = LLM(model, block_size=16, gpu_memory_utilization=may)
    assert 16 * 2**20 < llm.cache.nbytes <= 256 * 2**20
    assert torch.cuda.memory_allocated() - before >= llm.cache.nbytes
    found = llm.generate([[3, 1, 4]], SamplingParams(4, temperature=0))
    assert len(found[0].token_ids) == 4
    del llm
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 16 * 2**20
