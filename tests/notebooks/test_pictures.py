"""The pictures that the committed notebooks hold, as a reader without a kernel sees them."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest

from minikv.i18n import LANGUAGES
from tools.notebooks.build import read_notebook
from tools.notebooks.photos import known_pictures

ROOT = Path(__file__).parents[2]
MOST_BLANK = 120  # px: more is a drawing that failed, or room for what is not shown


def tallest_band(png: bytes) -> int:
    """Return the most rows in succession that have one colour each."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.asarray(image.open(io.BytesIO(png)).convert("RGBA")).view(np.uint32)[:, :, 0]
    drawn = np.flatnonzero((pixels != pixels[:, :1]).any(axis=1))
    return int(np.diff(drawn, prepend=-1, append=len(pixels)).max()) - 1


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_picture_has_a_large_blank_band(lang):
    paths = sorted((ROOT / "notebooks" / lang).glob("*.ipynb"))
    pictures = {path.stem: known_pictures([read_notebook(path)]) for path in paths}
    assert sum(map(len, pictures.values())) > 2 * 25
    bands = {
        (lesson, sha): tallest_band(base64.b64decode(picture))
        for lesson, found in pictures.items()
        for sha, picture in found.items()
    }
    assert {place: band for place, band in bands.items() if band > MOST_BLANK} == {}


@pytest.mark.parametrize("blank", [0, 1, 7])
def test_a_band_is_counted_at_the_top_in_the_middle_and_at_the_bottom(blank):
    image = pytest.importorskip("PIL.Image")
    for above, below in ((0, 3), (2, 0), (2, 3)):
        rows = np.zeros((above + blank + below, 5, 4), np.uint8)
        rows[:above, 2] = rows[above + blank :, 3] = 255
        written = io.BytesIO()
        image.fromarray(rows).save(written, "PNG")
        assert tallest_band(written.getvalue()) == blank
