"""The profile of a step: the parts are there, do not overlap, and make the step."""

import pytest

from benchmarks.engine_cases import ModelShape
from benchmarks.step_parts import PARTS, Watch, measure

SHAPE = ModelShape("one layer", 1, 256, 512, 4, 2, 64, 512)  # wide enough for packed weights


def test_a_part_has_its_own_time_without_that_of_the_parts_it_calls():
    ticks = iter(range(100))
    watch = Watch(lambda: float(next(ticks)))
    inner = watch.of("inner", lambda: None)  # 1 tick each

    def call():
        inner()
        inner()

    watch.of("outer", call)()
    assert watch.seconds == {"inner": 2.0, "outer": 3.0}  # 0 to 5 in all
    failing = watch.of("failing", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing()
    watch.of("outer", inner)()
    assert watch.seconds == {"inner": 3.0, "outer": 5.0, "failing": 1.0}


def test_every_part_of_a_step_is_met():
    seconds = measure(SHAPE, sequences=3, steps=2)
    assert list(seconds) == list(PARTS)
    assert all(each > 0 for each in seconds.values()), seconds
