"""Every example in a docstring runs, and says what it is shown to say."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import minikv

ROOM = Path(minikv.__file__).parent
WITH_EXAMPLES = sorted(path for path in ROOM.rglob("*.py") if ">>>" in path.read_text("utf-8"))


def test_there_are_examples():
    assert len(WITH_EXAMPLES) >= 10


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(ROOM).as_posix())
def test_the_examples_of_a_file_run(path):
    name = ".".join(path.relative_to(ROOM.parent).with_suffix("").parts)
    assert doctest.testmod(import_module(name.removesuffix(".__init__"))).failed == 0


@pytest.mark.parametrize("what", [minikv.LLM, minikv.SamplingParams], ids=lambda what: what.__name__)
def test_the_docstring_lists_every_parameter_once(what):
    items = re.findall(r"^- (``\w+``(?:, ``\w+``)*): ", inspect.cleandoc(what.__doc__), re.MULTILINE)
    listed = [name for item in items for name in re.findall(r"\w+", item)]
    assert sorted(listed) == sorted(inspect.signature(what).parameters)


@pytest.mark.parametrize("room", ["blocks", "kernels", "kernels/gpu", "cache", "models", "simulate"])
def test_blocks_and_sequences_are_things_and_not_persons(room):
    """The subjects of docstrings and comments; a room is listed here once its English has been gone over."""
    person = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|anybody)\b", re.IGNORECASE)
    lines = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted((ROOM / room).glob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
    ]
    assert len(lines) > 1000
    assert [line for line in lines if person.search(line)] == []
