"""The plotly template, a plain dictionary, and the style with which a drawn plot follows the theme.

A plot is data in a notebook: plotly turns its colours into numbers when it draws, knows no variable of the page, and is
told of no change of theme. So the template is readable on white and on black by itself, as a saved notebook, a picture
on GitHub or an untrusted output is: nothing behind the plot, ink in ``NEUTRAL``, series in colours made for both
grounds. Beside each plot ``show`` writes ``PLOT_STYLE``: what plotly drew in ``NEUTRAL`` takes the page's own ink.
That is the browser's work, so a change of theme changes the plot at once, without a redraw, a script or a kernel.
"""

from typing import Any

from minikv.look.palette import NEUTRAL, SEQUENCES

_CLEAR = "rgba(0,0,0,0)"
_RED, _GREEN, _BLUE = (int(NEUTRAL[at : at + 2], 16) for at in (1, 3, 5))
_GRID = f"rgba({_RED},{_GREEN},{_BLUE},0.25)"
_AXIS: dict[str, Any] = {
    "automargin": True,
    "gridcolor": _GRID,
    "linecolor": NEUTRAL,
    "ticks": "outside",
    "tickcolor": _CLEAR,  # room between the labels and the first bar
    "zerolinecolor": _GRID,
    "title": {"standoff": 8},
}

TEMPLATE: dict[str, Any] = {
    "data": {"bar": [{"insidetextfont": {"color": "#000000"}}]},
    "layout": {
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": NEUTRAL},
        "colorway": list(SEQUENCES),
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "legend": {"bgcolor": _CLEAR},
        "modebar": {"bgcolor": _CLEAR, "color": NEUTRAL, "activecolor": SEQUENCES[0]},
        "shapedefaults": {"line": {"color": NEUTRAL, "width": 1.5}},
        # The pad keeps the words at a line off it.
        "annotationdefaults": {"arrowcolor": NEUTRAL, "borderpad": 4},
        "margin": {"l": 64, "r": 24, "t": 32, "b": 48},
    },
}

# plotly writes each colour into the element's own style, as "fill: rgb(121, 121, 123)".
_NUMBERS = f"rgb({_RED}, {_GREEN}, {_BLUE})"
_INK = "var(--jp-ui-font-color1, currentColor)"
PLOT_STYLE = "".join(
    f'.js-plotly-plot [style*="{paint}: {_NUMBERS}"]{{{paint}:{_INK}!important}}'
    for paint in ("fill", "stroke")
)
# Plots of other notebooks on the page keep their width.
PLOT_STYLE += f'.js-plotly-plot:has([style*="{_NUMBERS}"]){{max-width:1200px}}'
