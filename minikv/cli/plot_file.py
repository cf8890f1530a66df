"""Plots of a command as one HTML file that needs no network."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.cli.files import ReportFile
from minikv.look import PLOT_STYLE

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def check_place(path: str) -> None:
    """Raise ``ConfigError`` where no plot could be written. Called before the runs, which take long."""
    with ReportFile(path):
        pass


def write_plots(figures: "Sequence[Figure]", path: str) -> None:
    """Write ``figures``, at least one, one below the other. Raises ``ConfigError`` where the file cannot be written."""
    first, *others = figures
    page = first.to_html(include_plotlyjs=True)
    # The page follows the system's theme, and the plot the page.
    style = f"<style>html{{color-scheme:light dark}}{PLOT_STYLE}</style>"
    page = page.replace("<head>", f"<head>{style}", 1)
    more = "".join(figure.to_html(full_html=False, include_plotlyjs=False) for figure in others)
    end = page.rindex("</body>")
    with ReportFile(path) as file:
        file.write(page[:end] + more + page[end:])
