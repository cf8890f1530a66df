"""The same words in a real Jupyter kernel: outputs, errors and endless loops as a learner meets them."""

import nbclient
import nbformat
import pytest

from tools.notebooks.execute import ThisPythonKernel

SETUP = """
import sys, types
import minikv.i18n
from tests.course.sample import LESSON, SENTENCES
module = types.ModuleType("minikv.course.lessons.l99")
module.LESSON = LESSON
sys.modules[module.__name__] = module
real = minikv.i18n._table
minikv.i18n._table = lambda name: SENTENCES if name == "lesson_99" else real(name)

from minikv.course import start
check, predict, explain, show, t = start("99", lang="zh")
"""
LOOP = """
def blocks_needed(lengths, block_size):
    while True:
        try:
            pass
        except Exception:
            pass
check("99.1", blocks_needed)
"""
FAULT = """
def blocks_needed(lengths, block_size):
    blocks = 0
    return blocks / 0
check("99.1", blocks_needed)
"""
SHOW = """
import plotly.graph_objects as go
show(go.Figure(go.Bar(y=[1, 2])), text="1, 2", caption="图")
"""
OLD_TORCH = """
from minikv import extras
extras.ENGINE["torch"] = "99"
start("02", lang="en")
"""


@pytest.fixture(scope="module")
def outputs(request):
    sources = [SETUP, LOOP, FAULT, SHOW, 'check("99.9", len)', 'predict("speed", 3.3)', OLD_TORCH]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source.strip()) for source in sources]
    )
    root = {"metadata": {"path": str(request.config.rootpath)}}
    client = nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=ThisPythonKernel,
        timeout=60,
        resources=root,
        allow_errors=True,
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def test_starting_says_nothing(outputs):
    assert outputs[0] == []


def test_an_endless_loop_leaves_the_kernel_alive(outputs):
    [output] = outputs[1]
    assert "0.5 秒内没有得到结果" in output.text


def test_the_line_is_counted_in_the_learners_cell(outputs):
    [output] = outputs[2]
    assert "ZeroDivisionError" in output.text
    assert "第 3 行：return blocks / 0" in output.text


def test_a_figure_is_data_with_text_and_a_caption(outputs):
    figure, style, caption = outputs[3]
    assert set(figure.data) == {"application/vnd.plotly.v1+json", "text/plain"}
    assert figure.data["text/plain"] == "1, 2"
    assert set(style.data) == {"text/html", "text/plain"}
    assert caption.data["text/markdown"] == "图"


def test_an_uncaught_error_is_one_sentence_in_the_learners_language(outputs):
    [output] = outputs[4]
    assert output.output_type == "error"
    assert output.ename == "UnknownNameError"
    assert output.traceback[1].startswith("没有练习“99.9”")
    assert len(output.traceback) == 3
    assert 'check("99.9", len)' in output.traceback[2]


def test_a_session_with_an_older_torch_is_told_one_sentence(outputs):
    """In the language of the cell that starts the lesson, not of one that was started before."""
    [output] = outputs[6]
    assert output.ename == "MissingPackageError"
    assert output.traceback[1].startswith("This needs torch 99 or newer, and ")
    assert 'pip install "minikv[engine]"' in output.traceback[1]
    assert 'start("02", lang="en")' in output.traceback[2]


def test_a_word_leaves_no_echo_of_its_own(outputs):
    assert [output.output_type for output in outputs[5]] == ["stream"]
