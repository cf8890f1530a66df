"""Shows a widget or a figure so that it can be read without a kernel too: a picture on GitHub, text in a diff.

One output carries three forms of the view: the live one, a PNG photograph where there is one, and a plain text that is
the same in every run. A saved notebook keeps the text and the picture, not the state.
"""

import base64
import hashlib
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from minikv.course.charts.chart import Chart
from minikv.errors import ArgumentError
from minikv.look import PLOT_STYLE, TEMPLATE

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"
# plotly's mode bar offers to upload the chart to a company's server.
PLOTLY_CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud"]}
PHOTO_SIZE = {"default_width": "820px", "default_height": "420px"}  # where the figure sets no height


def show(view: Any, text: str | None = None, caption: str | None = None) -> None:
    """Display ``view`` with ``text`` as its plain form and ``caption`` (Markdown) below it.

    view   one of our widgets, any ipywidget, a chart, a plotly figure, or an object with ``_repr_mimebundle_()`` or
           ``_repr_html_()``, as a report or a ``Table``.
           It may offer ``text() -> str``, ``photo_png() -> bytes`` and ``photo_html() -> str``.
    text   deterministic; by default ``view.text()``.

    A plotly figure is drawn in the course's look (``minikv.look``), as wide as the page: its own template and width do
    not count, any other setting of its own does.

    With the environment variable MINIKV_PHOTOS set to a folder, a page that the build can photograph is
    written to ``<folder>/<sha>.html`` (the picture is the element with id "photo"), and the output's metadata
    say ``{"minikv": {"photo": "<sha>"}}``. Without a notebook the text is printed. Raises ``ArgumentError``
    for a view that has no text.
    """
    if text is None:
        text = _call(view, "text")
    if isinstance(view, Chart):
        view = view.figure
    if text is None:
        raise ArgumentError("show_needs_text", kind=type(view).__name__)
    if not _in_notebook():
        print(text, *([caption] if caption else []), sep="\n")
        return
    from IPython.display import display

    colab = _colab_output()
    if colab is not None:
        _enable_widgets(colab)
    data, metadata = _bundle(view, in_colab=colab is not None)
    data["text/plain"] = text
    png = _call(view, "photo_png")
    if png is not None:
        data["image/png"] = base64.b64encode(png).decode("ascii")
    photo = _write_photo(view)
    if photo is not None:
        metadata["minikv"] = {"photo": photo}
    display(data, metadata=metadata, raw=True)
    if PLOTLY in data:
        # An output of its own, since JupyterLab draws one form of each.
        display({"text/html": f"<style>{PLOT_STYLE}</style>", "text/plain": ""}, raw=True)
    if caption:
        display({"text/markdown": caption, "text/plain": caption}, raw=True)


def _bundle(view: Any, *, in_colab: bool) -> tuple[dict, dict]:
    """A copy of the view's own mime bundle, data and metadata, to add to."""
    if _is_figure(view):
        if not hasattr(view, "model_id"):
            return _figure_bundle(view, in_colab=in_colab), {}
        view._config = {**view._config, **PLOTLY_CONFIG}
    if hasattr(view, "_repr_mimebundle_"):
        bundle = view._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return dict(data or {}), dict(metadata or {})
    if hasattr(view, "_repr_html_"):
        return {"text/html": view._repr_html_()}, {}
    # ipywidgets 7, which Colab has, displays itself instead of returning a bundle.
    return {WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": view.model_id}}, {}


def _figure_bundle(figure: Any, *, in_colab: bool) -> dict:
    """A plain figure as data. JupyterLab draws it with the renderer that plotly installs, without a kernel, a
    download or 5 MB of script in the file; Colab has no such renderer and gets a page that fetches plotly.js.
    """
    drawn = _in_our_look(json.loads(figure.to_json()))
    if in_colab:
        import plotly.io

        page = plotly.io.to_html(drawn, include_plotlyjs="cdn", full_html=False, config=PLOTLY_CONFIG)
        return {"text/html": f"<style>{PLOT_STYLE}</style>{page}"}
    return {PLOTLY: {**drawn, "config": PLOTLY_CONFIG}}


def _in_our_look(figure: dict[str, Any]) -> dict[str, Any]:
    """``figure`` with our template and without a width. The height stays, else the plot's shape would be the page's."""
    layout = {key: value for key, value in figure["layout"].items() if key != "width"}
    return {**figure, "layout": {**layout, "template": TEMPLATE}}


def _write_photo(view: Any) -> str | None:
    """Write the page to photograph, if the build needs one; its name is 16 hex digits of its SHA-256."""
    folder = os.environ.get("MINIKV_PHOTOS")
    if not folder:
        return None
    page = _figure_page(view) if _is_figure(view) else _call(view, "photo_html")
    if page is None:
        return None
    name = hashlib.sha256(page.encode("utf-8")).hexdigest()[:16]
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"{name}.html").write_text(page, encoding="utf-8")
    return name


def _figure_page(figure: Any) -> str:
    import plotly.io

    still = _in_our_look(figure.to_dict())
    for trace in still["data"]:
        trace.pop("uid", None)  # random in a FigureWidget; the page must be the same in every run
    page = plotly.io.to_html(still, div_id="photo", config={"staticPlot": True}, **PHOTO_SIZE)
    # Nothing behind the plot, so that the picture is readable on a light page and on a dark one.
    return page.replace("<body>", '<body style="background: transparent">', 1)


def _call(view: Any, method: str) -> Any:
    """``view.method()``, or None where the view has no such method. A figure's methods are plotly's, and not called."""
    found = None if _is_figure(view) else getattr(view, method, None)
    return found() if callable(found) else None


def _is_figure(view: Any) -> bool:
    plotly = sys.modules.get("plotly.basedatatypes")  # no figure exists before plotly is imported
    return plotly is not None and isinstance(view, plotly.BaseFigure)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _colab_output() -> Any:
    try:
        from google.colab import output  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return output


@cache
def _enable_widgets(colab_output: Any) -> None:
    colab_output.enable_custom_widget_manager()
