"""Code cells: plain Python, equal in both languages up to comments and labels, with or without their solutions."""

import ast
import re

from tools.notebooks.prose import CJK

_MARKER = re.compile(r"^(?P<indent>[ \t]*)### (?P<which>BEGIN|END) SOLUTION[ \t]*$")
_NBVAL_COMMENT = re.compile(r"#\s*(?:NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)")


class SolutionError(ValueError):
    """Solution markers that do not pair up, or stand where a stub cannot."""


def parse(code: str) -> ast.Module:
    """The cell's syntax tree; ``await`` at the top is allowed, as in a notebook. Raises ``SyntaxError``."""
    return compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def magic_problem(code: str) -> str | None:
    """Why a lesson may not hold this code, or None: it must be plain Python, and must not steer nbval."""
    if _NBVAL_COMMENT.search(code):
        return "a comment steers nbval"
    try:
        parse(code)
    except SyntaxError as error:
        for line in code.splitlines():
            word = line.strip().split(" ")[0]
            if word.startswith(("!", "%")):
                return f"{word} is not Python"
            if re.match(r"\s*[\w, ]+=\s*[!%]", line):
                return f"{line.strip()} is not Python"
        return f"not Python: {error.msg}"
    return None


def same_code(english: str, chinese: str) -> bool:
    """True where two cells differ at most in comments, docstrings, layout and labels.

    A label is a string with Chinese letters in the Chinese cell; one that is formatted may say its values in another
    order. So is "zh" where the English cell has "en".
    """
    return _alike(_without_docstrings(parse(english)), _without_docstrings(parse(chinese)))


def _alike(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if not isinstance(one, ast.AST):
        return one == other
    # Either may be formatted where the other is not, but not with other values.
    said, told = _label(one), _label(other)
    if said is not None and told is not None and (CJK.search(told[0]) or (said[0], told[0]) == ("en", "zh")):
        return not CJK.search(said[0]) and said[1] == told[1]
    return type(one) is type(other) and all(
        _alike(getattr(one, field, None), getattr(other, field, None)) for field in one._fields
    )


def _label(node: object) -> tuple[str, list[str]] | None:
    """What a string literal says, and the expressions formatted in it, sorted; None for another node."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, []
    if not isinstance(node, ast.JoinedStr):
        return None
    words = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
    return "".join(words), sorted(
        ast.dump(part) for part in node.values if not isinstance(part, ast.Constant)
    )


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def with_solution(text: str) -> str:
    """The cell without the marker lines. Works on code and on markdown."""
    _pairs(text)
    return "\n".join(line for line in text.split("\n") if not _MARKER.match(line))


def without_solution(text: str, stub: str = "raise NotImplementedError") -> str:
    """Each BEGIN ... END region replaced by ``stub`` at its indentation; by nothing where ``stub`` is empty.

    Raises ``SolutionError`` for a code region outside a function: the stub would stop the whole notebook.
    """
    lines = text.split("\n")
    kept, stubs, place = [], [], 0
    for begin, end, indent in _pairs(text):
        kept += lines[place:begin]
        if stub:
            kept.append(f"{indent}{stub}")
            stubs.append(len(kept))  # its line number, from 1
        place = end + 1
    kept += lines[place:]
    code = "\n".join(kept)
    if stubs:
        functions = [
            n for n in ast.walk(parse(code)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for line in stubs:
            if not any(f.body[0].lineno <= line <= (f.end_lineno or 0) for f in functions):
                raise SolutionError("a solution outside a function; put it into the body of one")
    return code


def _pairs(text: str) -> list[tuple[int, int, str]]:
    """(index of BEGIN, index of END, indentation) of each region. Raises ``SolutionError``."""
    pairs, begin, indent = [], None, ""
    for index, line in enumerate(text.split("\n")):
        match = _MARKER.match(line)
        if match is None:
            continue
        if (match["which"] == "BEGIN") != (begin is None):
            raise SolutionError("BEGIN SOLUTION and END SOLUTION do not alternate")
        if begin is None:
            begin, indent = index, match["indent"]
        else:
            pairs.append((begin, index, indent))
            begin = None
    if begin is not None:
        raise SolutionError("BEGIN SOLUTION without END SOLUTION")
    return pairs
