"""The colours: one for each meaning, and twelve for sequences, which repeat with another pattern.

A colour is the same in both themes: K is blue everywhere. Each has a contrast of at least 3 with JupyterLab's white and
with its dark ground, and carries black or white letters with at least 4.5. The colours were searched by computer: of
the sets in that band of lightness, one with its nearest two far apart for each kind of sight in ``vision.py``; all
pairs of the meanings count, and neighbours of the sequences. ``tests/look`` holds it.
"""

import json
from dataclasses import asdict, dataclass

from minikv.look.vision import contrast

GROUNDS = {"light": "#ffffff", "dark": "#111111"}  # JupyterLab's --jp-layout-color0
# Where no theme can be asked (a saved plot, a picture on GitHub): as far from white as from the dark ground.
# No other colour is this one: plot.css knows a plot's ink by it.
NEUTRAL = "#79797b"


@dataclass(frozen=True)
class Look:
    """A fill and the lines of an 8 x 8 tile over it ("": none), and the ink for words and tiles on the fill."""

    fill: str
    tile: str
    ink: str


def _look(fill: str, tile: str) -> Look:
    return Look(fill, tile, max("#000000", "#ffffff", key=lambda ink: contrast(ink, fill)))


# Tiles of sequences, as paths of SVG. The first eight have no upright line, which could pass for the edge of a block.
TILES = (
    "",
    "M2 2h.01M6 6h.01",
    "M0 8L8 0M-1 1L1 -1M7 9L9 7",
    "M0 4H8",
    "M0 0L8 8M-1 7L1 9M7 -1L9 1",
    "M2 2h3v3h-3z",
    "M0 2L4 6L8 2",
    "M4 4h.01",
    "M4 0V8",
    "M0 4H8M4 0V8",
    "M0 0L8 8M8 0L0 8",
    "M2 0V8M6 0V8",
)
SEQUENCES = (
    "#4b95e9", "#ec5d98", "#4f5be8", "#866808", "#a67cfb", "#dc7459",
    "#8a52ba", "#2ea3ad", "#b34a4b", "#2a74af", "#989339", "#cc1274",
)  # fmt: skip
# A KV cache drawn in one piece has K's colour. Those from "other" on are parts of a memory that stand in one bar with
# these; "other" is what is no tensor of ours, as a CUDA context.
MEANINGS = {
    "k": _look("#139ada", TILES[0]),
    "v": _look("#ea7300", TILES[3]),
    "weights": _look("#8661f9", TILES[2]),
    "activations": _look("#7d6c05", TILES[1]),
    "free": _look("#959399", TILES[7]),
    "cached": _look("#3f8261", TILES[4]),
    "shared": _look("#bd2ca6", TILES[10]),
    "warning": _look("#de384f", TILES[6]),
    "other": _look("#6b6c75", TILES[5]),
    "buffers": _look("#ec5d98", TILES[8]),
    "padding": _look("#2ea3ad", TILES[9]),
    "graphs": _look("#dc7459", TILES[11]),
    "host": _look("#cc1274", "M4 1V7M1 4H7"),
    "processes": _look("#b34a4b", "M0 4L4 0L8 4M0 8L4 4L8 8"),
    "kept": _look("#989339", "M1 4A3 3 0 1 0 7 4A3 3 0 1 0 1 4"),
}
# How far the tiles move on when the colours begin again: 5 and 12 have no common factor, so that all 144 pairs occur.
_MOVE = 5


def sequence_look(number: int) -> Look:
    """Return the look of sequence ``number``, from 0: its colour and its tile together repeat after 144."""
    rounds, place = divmod(number, len(SEQUENCES))
    return _look(SEQUENCES[place], TILES[(place + _MOVE * rounds) % len(TILES)])


def look(name: int | str) -> Look:
    """Return the look of a sequence's number or of a meaning ("k", "weights")."""
    return sequence_look(name) if isinstance(name, int) else MEANINGS[name]


def looks_script() -> str:
    """Return JavaScript that declares ``lookOf(name)``, the same looks for the widgets' scripts."""
    data = {
        "meanings": {name: asdict(meant) for name, meant in MEANINGS.items()},
        "sequences": [asdict(sequence_look(number)) for number in range(len(SEQUENCES))],
        "tiles": TILES,
    }
    return f"""const PALETTE = {json.dumps(data)};
function lookOf(name) {{
  if (name in PALETTE.meanings) return PALETTE.meanings[name];
  const {{ sequences, tiles }} = PALETTE, place = name % sequences.length, rounds = Math.floor(name / sequences.length);
  return {{ ...sequences[place], tile: tiles[(place + {_MOVE} * rounds) % tiles.length] }};
}}
"""
