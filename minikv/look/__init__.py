"""The course's look, in one place: a colour for each meaning, a type, a spacing, the style sheets, one plotly template.

Widgets, plots, pictures and reports take theirs from here. Nothing here imports torch, plotly or another room.
"""

from minikv.look.palette import MEANINGS, NEUTRAL, SEQUENCES, TILES, Look, look, looks_script, sequence_look
from minikv.look.plot import PLOT_STYLE, TEMPLATE
from minikv.look.style import CODE_COLOURS, report_style, stylesheet

__all__ = [
    "CODE_COLOURS",
    "MEANINGS",
    "NEUTRAL",
    "PLOT_STYLE",
    "SEQUENCES",
    "TEMPLATE",
    "TILES",
    "Look",
    "look",
    "looks_script",
    "report_style",
    "sequence_look",
    "stylesheet",
]
