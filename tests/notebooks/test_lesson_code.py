"""Code cells: magics refused, languages compared, solutions taken out."""

import pytest

from tools.notebooks.codecells import (
    SolutionError,
    magic_problem,
    same_code,
    with_solution,
    without_solution,
)

FUNCTION = '''\
def f(x):
    """Keep me."""
    ### BEGIN SOLUTION
    y = x + 1
    return y
    ### END SOLUTION


f(1)'''


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("!ls", "!ls"),
        ("x = 1\n%pip install y", "%pip"),
        ("if x:\n    !ls", "!ls"),
        ("%%capture\nx = 1", "%%capture"),
        ("%%time\nx = 1", "%%time"),
        ("files = !ls", "files = !ls"),
        ("x = %pwd", "x = %pwd"),
        ("print?", "not Python"),
        ("x = 1  # NBVAL_SKIP", "nbval"),
        ("# NBVAL_IGNORE_OUTPUT\nx = 1", "nbval"),
    ],
)
def test_anything_but_plain_python_is_refused(code, word):
    assert word in magic_problem(code)


@pytest.mark.parametrize(
    "code", ["x = 7 % 2", "'''\n!ls\n%%capture\n'''", "await f()", "x = y != z", "# !ls"]
)
def test_plain_python_passes(code):
    assert magic_problem(code) is None


def test_languages_may_differ_in_comments_docstrings_and_layout_only():
    en = 'def f(x):\n    """Add one."""\n    return x + 1  # one'
    assert same_code(en, 'def f(x):\n    """加一。"""\n    # 一\n    return (x + 1)')
    assert not same_code(en, en.replace("+ 1", "+ 2"))


def test_labels_may_differ_in_words_and_in_nothing_else():
    assert same_code("print('a')", "print('甲')")
    assert same_code('print(f"{n} of {k:,}")', 'print(f"{k:,} 中的 {n}")')
    assert same_code('text(lang="en")', 'text(lang="zh")')
    assert not same_code('print(f"{n} of {k:,}")', 'print(f"{k} 中的 {n}")')
    assert not same_code("print('int8')", "print('int4')")
    assert not same_code("print('甲')", "print('乙')")
    assert not same_code("print('a', 1)", "print('甲', 2)")
    assert not same_code("print('a')", "print(甲)")


def test_exercise_keeps_signature_docstring_and_what_follows():
    assert without_solution(FUNCTION) == (
        'def f(x):\n    """Keep me."""\n    raise NotImplementedError\n\n\nf(1)'
    )


def test_solution_keeps_the_body_without_the_markers():
    assert with_solution(FUNCTION) == FUNCTION.replace("    ### BEGIN SOLUTION\n", "").replace(
        "    ### END SOLUTION\n", ""
    )


def test_two_regions_and_a_method():
    code = (
        "class A:\n    def f(self):\n        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION\n"
        "    def g(self):\n        ### BEGIN SOLUTION\n        return 2\n        ### END SOLUTION"
    )
    stub = without_solution(code)
    assert stub.count("        raise NotImplementedError") == 2
    assert "return" not in stub


def test_markdown_is_simply_left_out():
    assert without_solution("a\n### BEGIN SOLUTION\nb\n### END SOLUTION\nc", stub="") == "a\nc"


@pytest.mark.parametrize(
    "code",
    [
        "### BEGIN SOLUTION\nx = 1\n### END SOLUTION",  # would stop the notebook
        "class A:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION",
        "def f():\n    ### BEGIN SOLUTION\n    return 1",
        "def f():\n    return 1\n    ### END SOLUTION",
        "def f():\n    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION",
    ],
)
def test_markers_that_cannot_work_are_refused(code):
    with pytest.raises(SolutionError):
        without_solution(code)
