"""Printing sentences: English is wrapped at spaces, since JupyterLab breaks a long line inside a word."""

import re
import textwrap

WIDTH = 96
_CALL = re.compile(r"\w\([^()]{1,60}\)")  # check("09.1", fn) stays in one line, to be copied
_GLUE = "\0"


def say(sentences: str, lang: str, rest: str = "") -> None:
    """Print ``sentences``; ``rest`` indents the lines that wrapping adds, beside the line's own indent.

    Chinese can be broken anywhere, so the page wraps it.
    """
    print(sentences if lang == "zh" else "\n".join(_wrapped(line, rest) for line in sentences.split("\n")))


def _wrapped(line: str, rest: str) -> str:
    indent = line[: len(line) - len(line.lstrip())] + rest
    glued = _CALL.sub(lambda call: call[0].replace(" ", _GLUE), line)
    wrapped = textwrap.wrap(
        glued, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapped).replace(_GLUE, " ")
