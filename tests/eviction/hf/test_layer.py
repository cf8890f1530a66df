"""EvictingLayer alone: what it counts, what it stores, and what it does with its batch."""

import copy

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction import Budget, EvictingLayer, StreamingLLM, policy_of
from minikv.eviction.hf.attention import seen_keys
from minikv.eviction.hf.rules import LayerRules

HEADS, DIM = 2, 8


def layer_of(policy="streaming", *, budget=3, n_sink=2, n_recent=4, evict_every=1, scope="head", **options):
    own = Budget(n_sink, budget, n_recent, evict_every)
    return EvictingLayer(LayerRules(policy_of(policy), own, scope, **options))


def feed(layer, tokens, rows=2, first=0, device="cpu"):
    """Append tokens whose key is their number; returns what attention would see."""
    numbers = torch.arange(first, first + tokens, device=device).float()
    states = numbers.view(1, 1, -1, 1).expand(rows, HEADS, -1, DIM)
    seen = layer.update(states, -states)
    if layer.state is not None:
        layer.observe(torch.ones(rows, HEADS, layer.resident, device=device))
    layer.evict()
    return seen


def numbers_of(layer):
    """The tokens of every row and head, in order; asserts that keys, values and positions agree."""
    assert torch.equal(layer.keys, -layer.values)
    places = layer.positions.expand(layer.keys.shape[:3])
    assert torch.equal(layer.keys[..., 0].long(), places)
    return places.sort(-1).values.tolist()


@pytest.mark.parametrize("evict_every", [1, 2, 5])
@pytest.mark.parametrize("prompt", [1, 8, 9, 10, 60])
def test_both_bounds_hold_and_the_storage_is_no_larger(prompt, evict_every):
    layer = layer_of(evict_every=evict_every)
    budget = layer.rules.budget
    total = 0
    for new in (prompt, *[1] * 40):
        keys, _ = feed(layer, new, first=total)
        total += new
        assert keys.shape[2] <= budget.peak_resident + new, "one forward's tokens on top, within the forward"
        assert layer.resident <= budget.peak_resident
        assert layer.get_seq_length() == total
        assert layer.get_mask_sizes(3) == (layer.resident + 3, total - layer.resident)
        slot = 2 * HEADS * (2 * DIM * 4 + 8)
        assert layer.storage_bytes <= slot * (budget.peak_resident + 1)
    assert layer.resident > budget.capacity - 1
    recent = list(range(total - 4, total))
    for head in (head for row in numbers_of(layer) for head in row):
        assert head[:2] == [0, 1]
        assert head[-4:] == recent


def test_an_eviction_of_one_token_makes_no_storage_anew():
    layer = layer_of("h2o")
    feed(layer, 30)
    where = layer.keys.untyped_storage().data_ptr()
    for step in range(20):
        feed(layer, 1, first=30 + step)
        assert layer.keys.untyped_storage().data_ptr() == where
        numbers_of(layer)


def test_state_stays_with_its_token():
    """The state of a token is the number of forwards that saw it, whichever slots it went through."""
    layer = layer_of("h2o", evict_every=3)
    total = 0
    for new in (20, 1, 1, 1, 1, 1, 6, 1, 1, 1, 1):
        states = torch.arange(total, total + new).float().view(1, 1, -1, 1).expand(2, HEADS, -1, DIM)
        layer.update(states, -states)
        total += new
        ones = torch.zeros(2, HEADS, layer.resident)
        # A token gives itself its number, once a forward
        ones[:] = layer.positions.expand(2, HEADS, layer.resident)
        layer.observe(ones)
        layer.evict()
    places = layer.positions.expand(2, HEADS, layer.resident)
    assert ((layer.state % places.clamp(min=1)) == 0).all()
    layer.forget_scores()
    assert not layer.state.any()


@pytest.mark.parametrize("policy", ["streaming", "h2o"])
def test_rows_can_be_picked_repeated_and_reordered(policy):
    layer = layer_of(policy)
    valid = torch.ones(3, 9, dtype=torch.bool)
    valid[1, :4] = False
    layer.expect(valid)
    feed(layer, 9, rows=3)
    layer.positions.copy_(layer.positions + torch.tensor([0, 100, 200]).view(3, 1, 1))  # to tell rows apart
    rows = layer.positions[:, 0].clone()
    layer.reorder_cache(torch.tensor([2, 0, 0]))
    assert torch.equal(layer.positions[:, 0], rows[[2, 0, 0]])
    layer.batch_repeat_interleave(2)
    assert torch.equal(layer.positions[:, 0], rows[[2, 2, 0, 0, 0, 0]])
    layer.batch_select_indices(torch.tensor([True, False, True, False, False, True]))
    assert torch.equal(layer.positions[:, 0], rows[[2, 0, 0]])
    assert layer.keys.shape[0] == layer.values.shape[0] == 3


def test_padding_is_counted_a_row():
    layer = layer_of(budget=50)
    valid = torch.arange(10) >= torch.tensor([[0], [7]])
    layer.expect(valid[:, :5])
    feed(layer, 5)
    layer.expect(valid[:, 5:])
    feed(layer, 5, first=5)
    layer.expect(torch.ones(2, 1, dtype=torch.bool))
    feed(layer, 1, first=10)
    assert layer.positions[0, 0].tolist() == list(range(11))
    assert layer.positions[1, 0].tolist() == [-1] * 7 + [0, 1, 2, 3]
    assert layer.valid.sum(-1).tolist() == [11, 4]
    layer.reorder_cache(torch.tensor([1, 1]))
    layer.expect(torch.ones(2, 1, dtype=torch.bool))
    feed(layer, 1, first=11)
    assert layer.positions[:, 0, -1].tolist() == [4, 4]


def test_who_sees_whom():
    layer = layer_of(budget=50)
    layer.expect(torch.tensor([[False, False, True], [True, True, True]]))
    feed(layer, 3)
    expected = [[[1, 1, 1], [1, 1, 1], [0, 0, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert seen_keys(layer)[:, 0].long().tolist() == expected, (
        "a query of padding sees all: its output is not read"
    )
    layer.expect(torch.ones(2, 2, dtype=torch.bool))
    feed(layer, 2, first=3)
    assert seen_keys(layer)[0, 0].long().tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    plain = layer_of(budget=50)
    feed(plain, 4)
    feed(plain, 1, first=4)
    assert seen_keys(plain) is None


def test_after_reset_another_batch_and_another_device():
    """The meta device stands for another one: what is made there says so."""
    layer = layer_of("h2o")
    feed(layer, 30)
    for rows, device in ((3, "cpu"), (2, "meta")):
        layer.reset()
        assert (layer.resident, layer.get_seq_length(), layer.storage_bytes) == (0, 0, 0)
        layer.update(*[torch.ones(rows, HEADS, 5, DIM, device=device)] * 2)
        assert layer.state.shape == (rows, HEADS, 5)
        assert {layer.state.device.type, layer.positions.device.type, layer.keys.device.type} == {device}


def test_a_copy_goes_its_own_way():
    layer = layer_of("h2o")
    feed(layer, 30)
    other = copy.deepcopy(layer)
    before = numbers_of(other)
    feed(layer, 1, first=30)
    assert numbers_of(other) == before
    assert other.rules is layer.rules
    feed(other, 1, first=30)
    assert numbers_of(other) == numbers_of(layer)


def test_only_after_a_prompt_where_told_so():
    layer = layer_of(when="prefill")
    feed(layer, 30)
    assert layer.resident == 9
    for step in range(5):
        feed(layer, 1, first=30 + step)
    assert layer.resident == 14
    feed(layer, 3, first=35)
    assert layer.resident == 9


def test_refusals():
    layer = layer_of()
    feed(layer, 9)
    states = torch.ones(2, HEADS, 1, DIM)
    for code, do in {
        "eviction_batch": lambda: layer.update(states[:1], states[:1]),
        "eviction_device": lambda: layer.update(states.to("meta"), states.to("meta")),
        "eviction_grad": lambda: layer.update(states.clone().requires_grad_(), states),
        "eviction_crop": lambda: layer.crop(-1),
        "eviction_empty_layer": lambda: layer_of().positions,
    }.items():
        before = (layer.resident, layer.get_seq_length(), numbers_of(layer))
        with pytest.raises(ArgumentError) as refused:
            do()
        assert refused.value.code == code
        assert refused.value.text("zh")
        assert before == (layer.resident, layer.get_seq_length(), numbers_of(layer)), "nothing has changed"
    layer.crop(0)


def test_a_score_of_another_shape_is_refused():
    class Wrong(StreamingLLM):
        def score(self, view):
            return super().score(view)[..., 1:]

    layer = layer_of(Wrong())
    with pytest.raises(ArgumentError) as refused:
        feed(layer, 30)
    assert refused.value.code == "cache_shape"
