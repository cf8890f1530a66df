"""The guide's pictures are those of the notebooks, and each is shown."""

import pytest

from tools.pictures import FOLDER, ROOT, picture, pictures


def test_the_pictures_are_the_notebooks():
    found = pictures()
    assert set(found) == {path for path in FOLDER.iterdir() if path.suffix != ".webp"}, (
        "tools.animation has those"
    )
    for path, data in found.items():
        assert path.read_bytes() == data, f"{path.name}: run python -m tools.pictures"
        assert data.startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")


@pytest.mark.parametrize("lang", ["", ".zh"])
def test_the_guide_shows_those_of_their_language(lang):
    guide = (ROOT / f"docs/guide{lang}.md").read_text(encoding="utf-8")
    for name in ("engine", "budget"):
        assert guide.count(f"](images/{name}{lang}.png)") == 1


def test_a_cell_without_a_picture_is_named():
    with pytest.raises(LookupError, match="0 pictures in cell nowhere of 11"):
        picture("en", "11b_when_blocks_run_out", "nowhere")
