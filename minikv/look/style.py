"""The style sheet of everything that the course draws in HTML and SVG."""

from functools import cache
from importlib.resources import files

from minikv.look.palette import MEANINGS


@cache
def stylesheet() -> str:
    """Return the rules that all widgets share: the palette as variables ("--minikv-k"), then type, controls, tables."""
    colours = " ".join(f"--minikv-{name}: {meant.fill};" for name, meant in MEANINGS.items())
    return f".minikv-widget {{ {colours} }}\n" + (files("minikv.look") / "style.css").read_text(
        encoding="utf-8"
    )
