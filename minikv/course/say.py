"""Printing sentences: English is wrapped at spaces, since JupyterLab breaks a long line inside a word."""

import re
import sys
import textwrap

WIDTH = 96
_CALL = re.compile(r"\w\([^()]{1,60}\)")  # check("09.1", fn) stays in one line, to be copied
_GLUE = "\0"


def say(sentences: str, lang: str, rest: str = "") -> None:
    """Print ``sentences``; ``rest`` indents the lines that wrapping adds, beside the line's own indent.

    Chinese can be broken anywhere, so the page wraps it.
    """
    print(_for_page(sentences, lang, rest))


def say_folded(sentences: str, html: str | None, lang: str) -> None:
    """The same, where a notebook shows ``html`` in place of the sentences; None: it has no other form."""
    ipython = sys.modules.get("IPython")
    if html is None or ipython is None or ipython.get_ipython() is None:
        say(sentences, lang)
        return
    ipython.display.display({"text/plain": _for_page(sentences, lang), "text/html": html}, raw=True)


def _for_page(sentences: str, lang: str, rest: str = "") -> str:
    return sentences if lang == "zh" else "\n".join(_wrapped(line, rest) for line in sentences.split("\n"))


def _wrapped(line: str, rest: str) -> str:
    indent = line[: len(line) - len(line.lstrip())] + rest
    glued = _CALL.sub(lambda call: call[0].replace(" ", _GLUE), line)
    wrapped = textwrap.wrap(
        glued, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapped).replace(_GLUE, " ")
