"""Slots of states: their bytes, copies between them, and what is refused."""

import pytest
import torch

from minikv.cache import StatePages, StateShape, StateSlots
from minikv.errors import ArgumentError, DoesNotFitError
from minikv.plan import CacheSpec
from minikv.plan.spec.layers import LayerSpec

SHAPES = (
    StateShape(0, "conv", 0, (6, 3), torch.bfloat16),
    StateShape(0, "recurrent", 0, (2, 4, 5), torch.float32),
    StateShape(3, "conv", 1, (6, 3), torch.bfloat16),
)


def test_a_slot_has_the_bytes_of_its_states():
    slots = StateSlots(SHAPES, 4)
    assert slots.slot_bytes == 2 * 6 * 3 * 2 + 2 * 4 * 5 * 4
    assert slots.nbytes == 4 * slots.slot_bytes == sum(slots.tensor(shape).nbytes for shape in SHAPES)


def test_all_slots_are_read_before_one_is_written():
    slots = StateSlots(SHAPES, 4)
    for shape in SHAPES:
        slots.tensor(shape).copy_(torch.arange(4).view(4, *[1] * len(shape.shape)).expand(4, *shape.shape))
    slots.copy([0, 1], [1, 2])
    for shape in SHAPES:
        assert slots.tensor(shape).flatten(1)[:, 0].tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize(("src", "dst"), [([0], [4]), ([-1], [0]), ([0, 1], [2]), ([0, 1], [2, 2])])
def test_a_copy_between_other_slots_is_refused(src, dst):
    with pytest.raises(ArgumentError):
        StateSlots(SHAPES, 4).copy(src, dst)


def test_more_than_the_device_has_is_refused():
    with pytest.raises(DoesNotFitError) as caught:
        StateSlots([StateShape(0, "conv", 0, (2**20, 2**20), torch.float32)], 8)
    assert caught.value.code == "states_no_room"
    assert caught.value.text("zh") != caught.value.text("en")


def test_pages_without_bytes_are_for_models_without_kv():
    spec = CacheSpec((LayerSpec("linear", state_bytes=8),) * 2, kv_dtype="fp32")
    pages = StatePages(spec, 3, 100, "cpu")
    assert (pages.num_blocks, pages.block_size, pages.nbytes) == ((3 * 7,), 16, 0)
    for call in (pages.layer, lambda layer: pages.gather(layer, [0], 1)):
        with pytest.raises(ArgumentError) as caught:
            call(0)
        assert caught.value.code == "cache_no_kv"
    with pytest.raises(ArgumentError) as caught:
        StatePages(CacheSpec((LayerSpec("full", 1, 4, 4),)), 3, 100, "cpu")
    assert caught.value.code == "states_have_tokens"
    pages.close()
    assert pages.closed
