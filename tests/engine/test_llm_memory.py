"""Decoding allocates nothing that stays: not in 150 steps, and not from one request to the next."""

import gc
import warnings

import pytest
import torch

from tests.engine.llm_world import check_empty, greedy, make, reference, tensor_bytes
from tests.models.running import World

STEPS = 150
WARM_UP = 40


def test_tensor_bytes_sees_what_is_kept():
    before = tensor_bytes()
    kept = [torch.zeros(1000)]
    view = kept[0][10:]
    assert tensor_bytes() == before + 4000
    kept.clear()
    assert tensor_bytes() == before + 4000, "a view keeps it"
    del view
    assert tensor_bytes() == before


@pytest.mark.parametrize("options", [{}, {"cache": "linear", "num_blocks": 4}])
def test_150_decode_steps_add_no_byte(options):
    model = reference("llama", answers=False, max_position_embeddings=1024)
    with make(model.model, max_model_len=600, emit=None, **{"num_blocks": 600, **options}) as llm:
        arena = llm.cache.arena if "cache" not in options else llm.cache.linear.arena
        for prompt in model.prompts[:3]:
            llm.add_request(prompt, greedy(WARM_UP + STEPS + 2))
        for _ in range(WARM_UP):
            llm.step()
        before, lent = tensor_bytes(), arena.report()
        for _ in range(STEPS):
            assert len(llm.step().tokens) == 3
        assert tensor_bytes() == before
        assert arena.report() == lent


def test_finished_failed_and_refused_requests_leave_no_tensor(monkeypatch):
    model = reference("llama")

    def work():
        llm.generate(model.prompts, greedy(4, logprobs=2))
        stream = llm.stream(model.prompts, greedy(6))
        next(stream)
        stream.close()
        with monkeypatch.context() as patch:
            patch.setattr(llm.runner, "run", lambda *args: torch.zeros(5) @ torch.zeros(6))
            llm.add_request(model.prompts[0])
            out = llm.step()
        assert out.finished[0].finish_reason == "error"
        llm.abort(llm.add_request(model.prompts[1]))
        llm.step()
        return out

    with make(model.model, emit=None) as llm:
        outputs = [work()]
        before = tensor_bytes()
        outputs += [work() for _ in range(3)]
        assert tensor_bytes() == before
        check_empty(llm)


def test_close_gives_the_cache_back():
    model = reference("llama")
    before = tensor_bytes()
    llm = make(model.model, num_blocks=500)
    nbytes = llm.cache.nbytes
    assert tensor_bytes() >= before + nbytes
    llm.generate(model.prompts[:2], greedy(3))
    llm.close()
    assert tensor_bytes() <= before + 64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model_type", ["llama", "mistral", "deepseek_v3"])
def test_150_decode_steps_add_no_byte_on_a_gpu(model_type):
    """And the tokens are those of ``generate`` on the GPU."""
    model = World.bare(model_type, max_position_embeddings=1024, num_hidden_layers=2).to("cuda")
    prompts = [[5, 6, 7], list(range(1, 40)), [9] * 17]
    due = [
        model.generate(
            torch.tensor([prompt], device="cuda"), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
        for prompt in prompts
    ]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        llm = make(model, max_model_len=600, num_blocks=600, block_size=16, emit=None)
    # In float32 torch's product of experts looks at their shares, so a step of these cannot be captured.
    waits = [each for each in said if "No CUDA graphs" in str(each.message)]
    assert not waits or model_type == "deepseek_v3"
    with llm:
        outputs = llm.generate(prompts, greedy(8))
        assert [list(out.token_ids) for out in outputs] == [
            tokens[0, len(prompt) :].tolist() for prompt, tokens in zip(prompts, due, strict=True)
        ]
        for prompt in prompts:
            llm.add_request(prompt, greedy(WARM_UP + STEPS + 2))
        for _ in range(WARM_UP):
            llm.step()
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(STEPS):
            assert len(llm.step().tokens) == 3
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
