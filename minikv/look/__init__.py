"""The course's look, in one place: a colour for each meaning, a type, a spacing, one style sheet, one plotly template.

Widgets, plots, pictures and reports take theirs from here. Nothing here imports torch, plotly or another room.
"""

from minikv.look.palette import MEANINGS, NEUTRAL, SEQUENCES, TILES, Look, look, looks_script, sequence_look
from minikv.look.plot import PLOT_STYLE, TEMPLATE
from minikv.look.style import stylesheet

__all__ = [
    "MEANINGS",
    "NEUTRAL",
    "PLOT_STYLE",
    "SEQUENCES",
    "TEMPLATE",
    "TILES",
    "Look",
    "look",
    "looks_script",
    "sequence_look",
    "stylesheet",
]
