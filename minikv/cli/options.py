"""Options that several commands share, so that they read alike everywhere."""

from typing import Annotated

import typer

from minikv.errors import ArgumentError
from minikv.units import parse_bytes

Lang = Annotated[str, typer.Option("--lang", envvar="MINIKV_LANG")]
Json = Annotated[bool, typer.Option("--json")]


def size(what: str, words: str | None) -> int | None:
    """The bytes of an option such as ``--gpu-bytes 80GiB``; None where it was not given.

    Raises ``ArgumentError`` for text that is no size.
    """
    if words is None:
        return None
    try:
        return parse_bytes(words)
    except ValueError as error:
        raise ArgumentError("bad_size", what=what, value=words) from error
