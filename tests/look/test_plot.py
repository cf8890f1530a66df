"""The plotly template: clear ground, one ink, and nothing of plotly in it."""

import json
import subprocess
import sys

from minikv.look import NEUTRAL, PLOT_STYLE, TEMPLATE


def test_plotly_accepts_the_template_and_draws_nothing_behind_a_plot():
    import plotly.graph_objects as go

    figure = go.Figure(go.Scatter(y=[1, 2]), layout={"template": TEMPLATE})
    layout = figure.layout.template.layout
    assert (layout.paper_bgcolor, layout.plot_bgcolor) == ("rgba(0,0,0,0)", "rgba(0,0,0,0)")
    assert layout.font.color == layout.shapedefaults.line.color == NEUTRAL


def test_the_style_names_the_neutral_ink_as_a_browser_writes_it():
    numbers = ", ".join(str(int(NEUTRAL[at : at + 2], 16)) for at in (1, 3, 5))
    assert PLOT_STYLE.count(f"rgb({numbers})") == 3
    assert "--jp-ui-font-color1" in PLOT_STYLE


def test_a_template_is_plain_data_and_small():
    assert len(json.dumps(TEMPLATE)) < 1500, "it stands in every plot of every notebook"


def test_the_look_needs_no_torch_and_no_plotly():
    code = "import sys, minikv.look; print({'torch', 'plotly', 'anywidget'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
