"""The READMEs' moving picture: it shows what the engine does today, and it is small."""

import io

import pytest

from tools.animation import FOLDER, ROOT, digest, moments, pictures, scene

MOST_BYTES = 1_500_000


def test_the_pictures_are_those_of_the_states_and_small():
    image = pytest.importorskip("PIL.Image")
    digests = {lang: digest(scene(lang)) for lang in ("en", "zh")}
    frames = len(list(moments(len(scene("en")["states"]))))
    for name, (lang, _) in pictures().items():
        data = (FOLDER / name).read_bytes()
        assert len(data) < MOST_BYTES
        picture = image.open(io.BytesIO(data))
        assert picture.n_frames == frames
        assert picture.info["xmp"].decode() == digests[lang], "python -m tools.animation"


def test_the_readmes_show_them():
    for readme, lang in (("README.md", "en"), ("README.zh.md", "zh")):
        text = (ROOT / readme).read_text(encoding="utf-8")
        for name, (own, _) in pictures().items():
            assert text.count(f"docs/images/{name}") == (own == lang)


def test_no_moment_is_twice_and_every_state_is_seen():
    places = [place for place, _ in moments(5)]
    assert places == sorted(set(places))
    assert {0, 1, 2, 3, 4} <= set(places)
