"""What lesson 16 shows and says beside its exercises: a kept output, a sharded model, what is pinned and by whom."""

import pytest
import torch

from minikv.course.lessons.l16 import SMALL
from minikv.course.lessons.l16.culprit import culprit
from minikv.course.lessons.l16.evidence import end_of, without_the_kept
from minikv.course.lessons.l16.suspects import parallel_plan, small_model, suspect_parallel
from minikv.errors import ArgumentError
from minikv.memory import AllocatorSettings, CachingAllocator
from minikv.plan import CacheSpec
from minikv.units import MIB


def test_expandable_segments_hide_what_is_pinned():
    """What the lesson warns of: the counter stays 0, and what is cached beside live blocks cannot go back."""
    allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=True))
    addresses = [allocator.malloc(4 * MIB) for _ in range(40)]
    for place, address in enumerate(addresses):
        if place % 5:
            allocator.free(address)
    allocator.empty_cache()
    usage = allocator.usage()
    assert allocator.memory_stats()["inactive_split_bytes.all.current"] == 0
    assert usage.reserved - usage.allocated == 40 * 4 * MIB * 4 // 5


def test_a_small_model_keeps_what_the_prediction_says():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
    for prompt in (10, 17, 25):
        tokens = torch.randint(1, 64, (3, prompt), generator=torch.Generator().manual_seed(0))
        out = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False,
            eos_token_id=None, pad_token_id=0, return_dict_in_generate=True,
        )  # fmt: skip
        held = sum(t.nbytes for layer in out.past_key_values.layers for t in (layer.keys, layer.values))
        assert held == CacheSpec.from_config(SMALL).bytes_for(prompt + 8 - 1, batch=3)


def test_a_sharded_model_keeps_nothing_and_answers_the_same():
    model, ids = small_model(), torch.arange(1, 11).reshape(2, 5)
    names = dict(model.named_modules())
    assert set(parallel_plan(2)) <= set(names)
    report, same = suspect_parallel(model, ids)
    assert same
    assert (report.kept, report.caches) == ((), ())
    assert not torch.distributed.is_initialized()
    sharded = {type(parameter.data).__name__ for parameter in model.parameters()}
    assert "DTensor" in sharded


def test_a_process_that_is_a_rank_already_is_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    with pytest.raises(ArgumentError) as caught:
        suspect_parallel(small_model(), torch.ones(2, 3, dtype=torch.long))
    assert "4" in str(caught.value)


@pytest.mark.parametrize("calculator", ["naive", "plan"])
def test_the_steps_of_the_culprit_end_as_it_says(calculator):
    story = culprit(calculator)
    assert end_of(story.steps, story.capacity, story.non_torch) == (story.stuck, story.extracted)


def test_letting_the_kept_tensors_go_leaves_nothing_pinned():
    story = culprit("naive")
    assert not story.extracted
    assert story.stuck > 6 * 10**9
    freed = without_the_kept(story.steps)
    assert len(freed) == len(story.steps) + 61
    stuck, extracted = end_of(freed, story.capacity, story.non_torch)
    assert extracted
    assert stuck < 2 * MIB, "only what rounding the weights' segment leaves"


def test_the_widget_of_the_lesson_ends_as_the_story_does():
    """Without the weights the map shows the same pinned segments, up to the rounding of the weights' own."""
    story = culprit("naive", num_layers=3, new_tokens=3)
    capacity, weights = story.capacity, story.steps[0]
    stuck, fits = end_of(story.steps[1:], capacity - weights.size, story.non_torch)
    assert not fits
    assert not story.extracted
    assert abs(stuck - story.stuck) < 2 * MIB
