"""A grid of values: the larger, the stronger its colour."""

from collections.abc import Sequence

from minikv.course.charts.chart import Chart
from minikv.look import look
from minikv.shown import columns as aligned
from minikv.shown import rounded

BARE = {"showgrid": False, "zeroline": False}  # cells have edges of their own


def heat_map(
    values: Sequence[Sequence[float]], *, rows: Sequence[str], columns: Sequence[str], x: str, y: str
) -> Chart:
    """Draw ``values``, a list for each of ``rows`` with a number for each of ``columns``, written into its cell.

    A value of 0 stays empty.
    """
    from plotly.graph_objects import Figure, Heatmap

    said = [[rounded(value) if value else "" for value in row] for row in values]
    # The columns are numbered, since two of the same name would become one.
    grid = Heatmap(
        z=[list(row) for row in values],
        x=list(range(len(columns))),
        y=list(rows),
        text=said,
        texttemplate="%{text}",
        colorscale=[[0, "rgba(121,121,123,0.12)"], [1, look("k").fill]],
        showscale=False,
        xgap=2,
        ygap=2,
    )
    figure = Figure(grid)
    figure.update_xaxes(title=x, tickvals=list(range(len(columns))), ticktext=list(columns))
    figure.update_yaxes(title=y, autorange="reversed", type="category")
    figure.update_layout(xaxis=BARE, yaxis=BARE)
    figure.update_layout(height=120 + 48 * len(rows), margin={"t": 16, "r": 24})
    table = [["", *columns], *([name, *row] for name, row in zip(rows, said, strict=True))]
    return Chart(figure, [f"{y} / {x}", aligned(table, range(1, len(columns) + 1))])
