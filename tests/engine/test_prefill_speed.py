"""How fast a recompute is: what the engine's own steps say of it, and what they do not."""

from types import SimpleNamespace

import pytest

from minikv.engine.ext.offload import PrefillSpeed


def step(tokens, decodes=0, out=(), back=()):
    work = {name: pairs for name, pairs in (("swap_out", out), ("swap_in", back)) if pairs}
    return SimpleNamespace(num_tokens=tokens, num_decode=decodes, work=work)


def test_small_steps_say_nothing():
    """Each step here takes 10 ms and 0.1 ms a token: a few tokens behind a cached prefix are no measure."""
    speed = PrefillSpeed()
    assert speed.after(step(8, decodes=8), 0.01) is None
    for tokens in (4, 4, 4, 500, 500, *[4] * 20):
        found = speed.after(step(tokens), 0.01 + tokens / 10_000)
    assert found == pytest.approx(500 / 0.06)


def test_transfers_do_not_count():
    speed = PrefillSpeed()
    assert speed.after(step(100), 0.1) == 1000
    for more in ({"out": (((0, 0),),)}, {"back": (((0, 0),),)}, {"decodes": 10}):
        assert speed.after(step(100, **more), 10.0) == 1000


def test_a_first_step_that_compiles_is_forgotten():
    speed = PrefillSpeed()
    assert speed.after(step(2000), 10.0) == 200
    assert speed.after(step(500), 0.5) == 1000, "though no step is ever as large again"
    for _ in range(2):
        found = speed.after(step(1500), 1.0)
    assert found == 1500
