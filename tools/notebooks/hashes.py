"""The ``src`` hashes of zh cells: shown, or written once somebody has compared the two languages."""

import re
from pathlib import Path

from tools.notebooks.prose import text_hash
from tools.notebooks.source import read_source


def stale_hashes(path: Path) -> list[tuple[int, str, str, str]]:
    """(line, key, src as written, hash of the en text) of each zh markdown cell whose two differ."""
    source = read_source(path)
    rows = []
    for cell in source.cells:
        english = source.sibling(cell, "en")
        if cell.kind == "markdown" and cell.lang == "zh" and english is not None:
            expected = text_hash(english.text)
            if cell.src != expected:
                rows.append((cell.line, cell.key, cell.src, expected))
    return rows


def write_hashes(path: Path) -> int:
    """Put the right hash on each such line of ``path``; returns how many lines changed."""
    rows = stale_hashes(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    for line, _, _, expected in rows:
        bare = re.sub(r' src="[^"]*"', "", lines[line - 1]).rstrip()
        lines[line - 1] = f'{bare} src="{expected}"'
    path.write_text("\n".join(lines), encoding="utf-8")
    return len(rows)
