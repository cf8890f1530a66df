"""Classes that keep their states elsewhere than in the cache they are given: MiniMax, RecurrentGemma."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from minikv.engine import GenerationFailedError
from minikv.models.measured import measure
from minikv.plan import CacheSpec
from tests.engine.llm_world import Reference, greedy, make, run
from tests.models.running import World


def held_elsewhere(model, cache) -> list[torch.Tensor]:
    """The states that a ``generate`` has left: in a list beside the cache's layers, or in the model's modules."""
    modules = [
        vars(module).get(name) for module in model.modules() for name in ("conv1d_state", "recurrent_states")
    ]
    return [
        each for each in [*getattr(cache, "linear_cache", []), *modules] if isinstance(each, torch.Tensor)
    ]


def left_behind(model) -> list[torch.Tensor]:
    """The states that a forward loop of the caller's own has in the modules."""
    with torch.no_grad():
        model(input_ids=torch.tensor([[3, 1, 2]]), use_cache=True)
    return held_elsewhere(model, None)


def check_unchanged(model, before, copies) -> None:
    now = held_elsewhere(model, None)
    assert len(before) == len(now) > 0
    assert all(one is other for one, other in zip(before, now, strict=True))
    assert all(map(torch.equal, now, copies))


@pytest.mark.parametrize("model_type", ["minimax", "recurrent_gemma"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_planned_bytes_are_those_that_generate_holds(model_type, dtype):
    """Planned from the config, without weights."""
    model = World.bare(model_type).to(dtype)
    spec = CacheSpec.from_config(model.config.to_dict() | {"dtype": str(dtype).removeprefix("torch.")})
    cache = model.generate(
        torch.arange(1, 14)[None], max_new_tokens=4, pad_token_id=0, return_dict_in_generate=True
    ).past_key_values
    kv = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    states = held_elsewhere(model, cache)
    held = sum(each.nbytes for each in [*states, *kv] if each is not None)
    assert spec.bytes_for(13 + 4 - 1) == measure(model).bytes_for(13 + 4 - 1) == held
    assert spec.constant_state_bytes == sum(each.nbytes for each in states) > 0


def test_states_in_modules_pass_from_no_text_to_another():
    """Not even to a text of one token, for which transformers' own class goes on from an earlier one's."""
    mine = Reference("recurrent_gemma", World.bare("recurrent_gemma"), answers=False)
    with make(mine.model, reads="gather") as llm:
        before = left_behind(mine.model)
        copies = [each.clone() for each in before]
        outputs = llm.generate([[5], [9, 4], [7], [5]], greedy(), progress=False)
        check_unchanged(mine.model, before, copies)
    for out in outputs:
        mine.model(input_ids=torch.tensor([[1]]), use_cache=False)  # its class forgets what generate has left
        mine.check(out, greedy())


def test_a_forward_that_fails_leaves_the_modules_as_they_were(monkeypatch):
    mine = Reference("recurrent_gemma", World.bare("recurrent_gemma"), answers=False)
    with make(mine.model, reads="gather") as llm:
        before = left_behind(mine.model)
        copies = [each.clone() for each in before]
        with monkeypatch.context() as patch:
            patch.setattr(mine.model.model.layers[-1].mlp_block, "forward", None)
            with pytest.raises(GenerationFailedError):
                llm.generate([[1, 2, 3], [4, 5]], greedy(), progress=False)
        check_unchanged(mine.model, before, copies)
        out = llm.generate([6, 7, 8], greedy(), progress=False)[0]
    mine.check(out, greedy())


def test_of_two_threads_one_has_its_states_in_the_modules_at_a_time():
    mine = Reference("recurrent_gemma", World.bare("recurrent_gemma"), answers=False)
    inside, seen, others = Event(), [], []
    with make(mine.model) as one, make(mine.model) as two, ThreadPoolExecutor(1) as pool:
        for llm, prompt in ((one, [1, 2, 3]), (two, [4, 5, 6, 7])):
            llm.add_request(prompt, greedy(4))

        def enter(module, args):
            if others:
                inside.set()
            else:
                others.append(None)
                others[0] = pool.submit(run, two)
                seen.append(inside.wait(0.1))  # that long without a sign of the other

        with mine.model.model.layers[1].register_forward_pre_hook(enter):
            outputs = [*run(one)[1].values(), *others[0].result()[1].values()]
    assert seen == [False]
    assert inside.is_set()
    for out in outputs:
        mine.check(out, greedy(4))


def test_a_window_of_minimax_is_the_masks_alone():
    """Its own cache keeps every token, and so do the blocks, which cannot be read in place with a window then."""
    mine = Reference(
        "minimax",
        World.bare("minimax", sliding_window=7, layer_types=["full_attention", "linear_attention"] * 3),
        answers=False,
    )
    with make(mine.model) as llm:
        assert llm.adapter.reads == "gather"
        assert all(layer.window is None for layer in llm.cache.spec.layers)
        for out in llm.generate(mine.prompts[:8], greedy(), progress=False):
            mine.check(out, greedy())
