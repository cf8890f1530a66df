"""docs/images: the READMEs' pictures, taken out of the notebooks in which the cells ran; race and evaluate, drawn.

python -m tools.pictures            write them
python -m tools.pictures --check    fail where one is not the notebook's
"""

import argparse
import base64
import json
from pathlib import Path

from tools import evaluate_picture, race_picture

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "images"
CELLS = {"engine": ("11b_when_blocks_run_out", "widget"), "budget": ("02_how_many_bytes", "widget_code")}
ENDINGS = {"en": ".png", "zh": ".zh.png"}


def pictures() -> dict[Path, bytes]:
    """PNG and SVG by path. Raises ``LookupError`` where a cell has no picture, or more than one."""
    drawn = race_picture.svgs() | evaluate_picture.svgs()
    return {FOLDER / name: data for name, data in drawn.items()} | {
        FOLDER / f"{name}{ending}": picture(lang, *cell)
        for name, cell in CELLS.items()
        for lang, ending in ENDINGS.items()
    }


def picture(lang: str, stem: str, key: str) -> bytes:
    """The PNG that the cell ``key`` of a lesson has shown."""
    path = ROOT / "notebooks" / lang / f"{stem}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells if cell["id"] == key for output in cell.get("outputs", [])]
    found = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    if len(found) != 1:
        raise LookupError(f"{len(found)} pictures in cell {key} of {path.name}")
    return base64.b64decode(found[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a picture is stale")
    check = parser.parse_args().check
    stale = {
        path: data for path, data in pictures().items() if not path.is_file() or path.read_bytes() != data
    }
    if check:
        return int(bool(stale))
    for path, data in stale.items():
        path.write_bytes(data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
