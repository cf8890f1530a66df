"""The prompts of ``minikv generate``: arguments, standard input, and a file of them."""

import json
import sys
from pathlib import Path

from minikv.errors import ArgumentError, ConfigError, user_path
from minikv.units import format_bytes

MOST_BYTES = 2**26  # of a file of prompts


def all_prompts(arguments: list[str], file: str | None) -> list[str]:
    """The prompts among the arguments, with standard input in place of "-", then those of ``file``.

    Raises ``ArgumentError`` for no prompt, a blank one, and one of the form "@FILE", which other programs read as a
    file; ``ConfigError`` for a file that cannot be read.
    """
    if not arguments and file is None:
        raise ArgumentError("generate_no_prompt")
    texts = []
    for number, argument in enumerate(arguments, 1):
        if argument.startswith("@") and Path(argument[1:]).is_file():
            raise ArgumentError("generate_at_file", argument=argument, file=argument[1:])
        text = _standard_input() if argument == "-" else argument
        if not text.strip():
            raise ArgumentError("generate_empty_prompt", number=number)
        texts.append(text)
    return texts if file is None else texts + read_prompts(file)


def read_prompts(file: str) -> list[str]:
    """A prompt a line, or JSON lines with a text ``prompt`` each. Their other fields and blank lines are left out.

    A file is JSON lines if its first line is a JSON object. Raises ``ArgumentError`` with the line, ``ConfigError``.
    """
    try:
        with user_path(file).open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError("unreadable_file", path=file, reason=error.strerror or str(error)) from error
    if len(content) > MOST_BYTES:
        raise ConfigError("prompts_too_large", path=file, most=format_bytes(MOST_BYTES))
    lines = [
        (number, _decoded(line, number, file))
        for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1)
        if line.strip()
    ]
    if not lines:
        raise ArgumentError("prompts_none", path=file)
    if _object(lines[0][1]) is None:
        return [line for _, line in lines]
    return [_prompt(line, number, file) for number, line in lines]


def _decoded(line: bytes, number: int, file: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise ArgumentError("prompts_not_utf8", line=number, path=file) from None


def _prompt(line: str, number: int, file: str) -> str:
    prompt = (_object(line) or {}).get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ArgumentError("prompts_line", line=number, path=file)
    return prompt


def _object(line: str) -> dict[str, object] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _standard_input() -> str:
    return sys.stdin.buffer.read().decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
