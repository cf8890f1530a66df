"""``parametrize`` in one item: for a property of hundreds of things, each of which is looked at in a moment."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def in_turn(names: str, values: Iterable[Any]) -> Callable[[Callable], Callable]:
    """Run the test once for each of ``values``, as ``pytest.mark.parametrize(names, values)`` does, in one item.

    Fixtures are made once for all of them. The first failure ends the item, and says which value it was.
    """
    arguments = [name.strip() for name in names.split(",")]
    rows = [value if len(arguments) > 1 else (value,) for value in values]
    assert rows, "no value would be looked at"

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for row in rows:
                given = dict(zip(arguments, row, strict=True))
                try:
                    test(**given, **fixtures)
                except BaseException as error:
                    error.add_note(f"with {given}"[:500])
                    raise

        run.turns = len(rows) * getattr(test, "turns", 1)  # tests/costs.py
        left = inspect.signature(test).parameters
        run.__signature__ = inspect.Signature([left[name] for name in left if name not in arguments])
        return run

    return decorate
