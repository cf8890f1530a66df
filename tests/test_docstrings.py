"""Every example in a docstring runs, and says what it is shown to say."""

import doctest
import inspect
import re
import tokenize
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

import minikv

ROOM = Path(minikv.__file__).parent
ROOMS = sorted({path.parent for path in ROOM.rglob("*.py")})
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


def _said(path):
    """(line number, line) of every comment and of every docstring of a file: strings that begin a statement."""
    begins = True
    for token in tokenize.generate_tokens(StringIO(path.read_text("utf-8")).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins):
            yield from enumerate(token.string.splitlines(), token.start[0])
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(ROOM).as_posix())
def test_blocks_and_sequences_are_things_and_not_persons(room):
    """The subjects of docstrings and comments."""
    person = re.compile(r"\b(?:who|whom|whose|whoever|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)
    lines = [(path.name, *line) for path in sorted(room.glob("*.py")) for line in _said(path)]
    assert lines
    assert [line for line in lines if person.search(line[-1])] == []
