"""Parts of a learner's stand where nano's own stood, in every module of nano, and are gone afterwards."""

import importlib
import inspect

import pytest

from minikv.course.your_engine.assemble import assembled, part_in_nano
from minikv.course.your_engine.parts import PARTS

MODULES = [
    importlib.import_module(f"minikv.nano.{name}")
    for name in ("block_manager", "scheduler", "kv_cache", "runner", "attention", "llm")
]


def holders(thing) -> set[str]:
    """Where nano holds ``thing``: modules and classes."""
    places = [(module.__name__, module) for module in MODULES]
    places += [
        (f"{module.__name__}.{name}", value)
        for module in MODULES
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return {
        f"{where}.{name}" for where, place in places for name, held in vars(place).items() if held is thing
    }


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_stands_wherever_nano_holds_its_own_and_is_gone_afterwards(part):
    own = part_in_nano(part)
    if own is None:
        pytest.skip("no Triton here")
    due = holders(own)

    def theirs():
        """Not called."""

    with assembled({part.task: theirs}):
        assert part_in_nano(part) is theirs
        assert holders(theirs) == due
        assert not holders(own)
    assert holders(own) == due
    assert due
    assert not holders(theirs)


def test_all_are_taken_out_again_after_an_error():
    own = [part_in_nano(part) for part in PARTS]
    with pytest.raises(ZeroDivisionError), assembled({part.task: len for part in PARTS}):
        raise ZeroDivisionError
    assert [part_in_nano(part) for part in PARTS] == own


def test_each_part_is_a_function_of_nano_under_its_own_name():
    assert len({part.task for part in PARTS}) == len(PARTS) == 15
    for part in PARTS:
        own = part_in_nano(part)
        assert own is None or getattr(own, "__qualname__", own.__name__) == part.qualname
