"""A saved notebook as HTML: every kind of output, without its scripts."""

from base64 import b64encode
from struct import pack

import pytest

from tools.site.markdown import Prose
from tools.site.notebook import NotebookPage, Pictures
from tools.site.words import words

PNG = b64encode(b"\x89PNG\r\n\x1a\n" + pack(">I4sII", 13, b"IHDR", 960, 541)).decode()
SVG = '<svg role="img"><text>一</text></svg>'
DIAGRAM = (
    '<figure class="minikv-diagram"><img width="864" alt="One" '
    f'src="data:image/svg+xml;base64,{b64encode(SVG.encode()).decode()}"/><script>put()</script></figure>'
)


def shown(kind: str, value: object, **more: object) -> dict:
    return {"output_type": "display_data", "data": {kind: value, **more}}


def code(*outputs: dict, key: str = "a") -> dict:
    return {"cell_type": "code", "id": key, "source": ["import minikv\n", "1 < 2"], "outputs": list(outputs)}


@pytest.fixture
def page(tmp_path):
    return NotebookPage(Prose(str), Pictures(tmp_path / "pictures"), "../pictures", words("en"))


def test_what_a_cell_printed_is_text(page):
    html = page.html([code({"output_type": "stream", "text": ["\x1b[31ma < b\x1b[0m\n"]})])
    assert ">a &lt; b</pre>" in html
    assert 'id="cell-a"' in html


def test_a_diagram_is_the_svg_that_its_script_would_draw(page):
    html = page.html([code(shown("text/html", [DIAGRAM]))])
    assert SVG in html
    assert "<script" not in html
    assert "<img" not in html


def test_a_plot_is_a_picture_with_the_data_that_plotly_draws_from(page, tmp_path):
    figure = {"data": [{"name": "</script>"}], "layout": {"height": 300}, "config": {}}
    html = page.html(
        [
            code(
                shown(
                    "application/vnd.plotly.v1+json", figure, **{"image/png": PNG, "text/plain": ["one  two"]}
                )
            )
        ]
    )
    assert html.count("</script>") == 1
    assert '"layout": {"height": 300}' in html
    assert 'alt="one two" width="960" height="541"' in html
    [picture] = (tmp_path / "pictures").iterdir()
    assert f'src="../pictures/{picture.name}"' in html


def test_a_widget_is_its_picture_and_its_text(page):
    widget = {
        "application/vnd.jupyter.widget-view+json": {},
        "image/png": PNG,
        "text/plain": "Pool: 6 blocks",
    }
    html = page.html([code({"output_type": "display_data", "data": widget})])
    assert words("en")["photo"] in html
    assert ">Pool: 6 blocks</pre>" in html


def test_the_setup_is_folded_and_the_header_keeps_what_is_folded_there(page):
    header = {
        "cell_type": "markdown",
        "id": "minikv-header",
        "source": "# 02\n\n[C](https://colab)\n\n← **02**\n\n<details><summary>Before</summary>\n\nx\n\n</details>",
    }
    html = page.html([header, code(key="minikv-setup")])
    assert html.startswith("<details><summary>Before")
    assert '<details class="setup">' in html
    assert "colab" not in html


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (shown("text/markdown", "**a**"), "<strong>a</strong>"),
        (shown("text/plain", "a"), ">a</pre>"),
        (shown("text/html", "<b onclick='x'>a</b>"), "<b "),
        ({"output_type": "error", "traceback": ["a", "b"]}, ">a\nb</pre>"),
    ],
)
def test_other_outputs(page, output, said):
    assert said in page.html([code(output)])
