"""show: the live view, the text and the photograph in one output, in JupyterLab and in Colab."""

import base64
import hashlib
import json
import re
import sys
import types

import IPython.display
import plotly.graph_objects as go
import pytest

from minikv.course import show
from minikv.errors import ArgumentError
from minikv.look import PLOT_STYLE, TEMPLATE

PNG = b"\x89PNG..."
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class View:
    """Looks like one of our widgets."""

    def __init__(self, bundle, text="four blocks", page="<p id=photo>四</p>"):
        self.bundle, self._text, self._page = bundle, text, page

    def _repr_mimebundle_(self, **kwargs):
        return self.bundle

    def text(self):
        return self._text

    def photo_png(self):
        return PNG

    def photo_html(self):
        return self._page


class Core:
    """An ipywidget of version 7, as Colab has it: no ``_repr_mimebundle_``."""

    model_id = "abc"


@pytest.fixture
def shown(monkeypatch):
    """The outputs of a notebook cell: (data, metadata) each."""
    outputs = []

    def display(data, metadata=None, raw=False):
        assert raw
        json.dumps([data, metadata])  # what a notebook saves
        outputs.append((data, metadata or {}))

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    monkeypatch.delenv("MINIKV_PHOTOS", raising=False)
    return outputs


@pytest.fixture
def colab(monkeypatch):
    """A fake google.colab.output that counts how often third-party widgets are switched on."""
    output = types.ModuleType("google.colab.output")
    output.enabled = 0

    def enable_custom_widget_manager():
        output.enabled += 1

    output.enable_custom_widget_manager = enable_custom_widget_manager
    google, package = types.ModuleType("google"), types.ModuleType("google.colab")
    google.colab, package.output = package, output
    for module in (google, package, output):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return output


def figure():
    return go.Figure(go.Bar(x=["K", "V"], y=[1, 2]))


def test_the_views_own_bundle_is_kept_with_its_metadata(shown):
    original = {WIDGET_VIEW: {"model_id": "abc"}, "text/plain": "View(uid=random)"}
    colabs = {WIDGET_VIEW: {"colab": {"custom_widget_manager": {"url": "u"}}}}
    view = View((original, colabs))
    show(view)
    [(data, metadata)] = shown
    assert data[WIDGET_VIEW] == {"model_id": "abc"}
    assert metadata == colabs
    assert data["text/plain"] == "four blocks"
    assert base64.b64decode(data["image/png"]) == PNG
    assert original["text/plain"] == "View(uid=random)", "the widget's own bundle was changed"


def test_a_bundle_without_metadata_and_a_text_of_the_lessons(shown):
    show(View({"text/html": "<b>x</b>"}), text="five blocks")
    [(data, metadata)] = shown
    assert (data["text/html"], data["text/plain"], metadata) == ("<b>x</b>", "five blocks", {})


def test_a_caption_is_an_output_of_its_own_and_may_be_chinese(shown):
    show(View({}), caption="图：**块表**")
    (_, _), (caption, _) = shown
    assert caption == {"text/markdown": "图：**块表**", "text/plain": "图：**块表**"}


def test_a_view_without_text_is_refused(shown):
    with pytest.raises(ArgumentError) as caught:
        show(figure())
    assert caught.value.code == "show_needs_text"
    assert shown == []


def test_outside_of_a_notebook_the_text_is_printed(capsys):
    show(View({}), caption="a caption")
    assert capsys.readouterr().out == "four blocks\na caption\n"


def test_the_page_to_photograph_is_written_under_its_hash(shown, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIKV_PHOTOS", str(tmp_path / "photos"))
    for page in ("<p id=photo>四</p>", "<p id=photo>5</p>", "<p id=photo>四</p>"):
        show(View(({}, {"own": 1}), page=page))
    names = [metadata["minikv"]["photo"] for _, metadata in shown]
    assert names[0] == names[2] == hashlib.sha256("<p id=photo>四</p>".encode()).hexdigest()[:16]
    assert names[0] != names[1]
    assert all(metadata["own"] == 1 for _, metadata in shown)
    assert {file.stem for file in (tmp_path / "photos").glob("*.html")} == set(names)
    assert (tmp_path / "photos" / f"{names[0]}.html").read_text("utf-8") == "<p id=photo>四</p>"


def test_a_view_that_cannot_be_photographed_is_shown_all_the_same(shown, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIKV_PHOTOS", str(tmp_path))
    show(Core(), text="a slider")
    [(data, metadata)] = shown
    assert data[WIDGET_VIEW]["model_id"] == "abc"
    assert metadata == {}


def test_a_real_widget_keeps_its_model(shown):
    import ipywidgets

    slider = ipywidgets.IntSlider()
    show(slider, text="a slider")
    [(data, _)] = shown
    assert data[WIDGET_VIEW]["model_id"] == slider.model_id


def test_a_figure_is_data_that_is_the_same_every_time_and_uploads_nothing(shown):
    show(figure(), text="K 1, V 2")
    show(figure(), text="K 1, V 2")
    first, style, *again = shown
    assert again == [first, style]
    data = first[0]
    assert set(data) == {"application/vnd.plotly.v1+json", "text/plain"}
    config = data["application/vnd.plotly.v1+json"]["config"]
    assert config["displaylogo"] is False
    assert "sendChartToCloud" in config["modeBarButtonsToRemove"]
    assert len(json.dumps(data)) < 5_000


def test_a_figure_takes_our_look_and_the_width_of_the_page_and_keeps_the_rest(shown):
    own = figure().update_layout(template="plotly_white", width=720, height=340, barmode="stack")
    show(own, text="K 1, V 2")
    (data, _), (style, _) = shown
    layout = data["application/vnd.plotly.v1+json"]["layout"]
    assert layout == {"template": TEMPLATE, "height": 340, "barmode": "stack"}
    assert own.layout.width == 720, "the reader's figure is as it was"
    assert style == {"text/html": f"<style>{PLOT_STYLE}</style>", "text/plain": ""}


def test_a_figure_widget_stays_live_and_loses_its_random_name(shown):
    view = go.FigureWidget(figure())
    show(view, text="K 1, V 2")
    [(data, _)] = shown
    assert data[WIDGET_VIEW]["model_id"] == view.model_id
    assert data["text/plain"] == "K 1, V 2"
    assert "sendChartToCloud" in view._config["modeBarButtonsToRemove"]


@pytest.mark.parametrize("kind", [go.Figure, go.FigureWidget])
def test_a_figures_page_is_complete_and_the_same_every_time(kind, shown, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIKV_PHOTOS", str(tmp_path))
    show(kind(figure()), text="K 1, V 2")
    show(kind(figure()), text="K 1, V 2")
    [page] = tmp_path.glob("*.html")
    html = page.read_text("utf-8")
    assert 'id="photo"' in html
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=.http", html)


def test_colab_switches_third_party_widgets_on_once_and_before(shown, colab):
    show(View({}))
    show(View({}))
    assert colab.enabled == 1


def test_anywidgets_own_colab_metadata_reaches_the_output(shown, colab):
    import anywidget
    from anywidget import _util

    _util.enable_custom_widget_manager_once.cache_clear()
    colab._widgets = types.SimpleNamespace(_installed_url="https://example.org/manager.js")

    class Blocks(anywidget.AnyWidget):
        _esm = "export default { render() {} }"

    show(Blocks(), text="blocks")
    [(data, metadata)] = shown
    assert WIDGET_VIEW in data
    assert "custom_widget_manager" in metadata[WIDGET_VIEW]["colab"]
    assert data["text/plain"] == "blocks"


def test_colab_gets_a_figure_as_a_page(shown, colab):
    show(figure(), text="K 1, V 2")
    [(data, _)] = shown
    assert set(data) == {"text/html", "text/plain"}
    assert "sendChartToCloud" in data["text/html"]
    assert data["text/html"].startswith(f"<style>{PLOT_STYLE}</style>")
