"""The palette: told apart with every kind of sight, readable on both grounds, letters readable on each colour."""

import json
import re
from itertools import combinations

import pytest

from minikv.look import MEANINGS, NEUTRAL, SEQUENCES, TILES, look, looks_script, sequence_look
from minikv.look.palette import GROUNDS
from minikv.look.vision import KINDS_OF_SIGHT, contrast, distance, seen

# Distances in Oklab, where black and white are 1 apart and two neighbouring words of a rainbow about 0.1.
APART, NEXT_BUT_ONE_APART, MEANINGS_APART = 0.12, 0.10, 0.075
EIGHT = ("k", "v", "weights", "activations", "free", "cached", "shared", "warning")
FILLS = {**{name: meant.fill for name, meant in MEANINGS.items()}, **dict(enumerate(SEQUENCES))}


@pytest.mark.parametrize("sight", KINDS_OF_SIGHT)
def test_neighbouring_sequences_differ_for_every_kind_of_sight(sight):
    for step, least in ((1, APART), (2, NEXT_BUT_ONE_APART)):
        pairs = zip(SEQUENCES, SEQUENCES[step:] + SEQUENCES[:step], strict=True)
        near = {pair: apart for pair in pairs if (apart := distance(*pair, sight)) < least}
        assert near == {}


@pytest.mark.parametrize("sight", KINDS_OF_SIGHT)
def test_any_two_meanings_differ_for_every_kind_of_sight(sight):
    pairs = combinations(EIGHT, 2)
    fills = {pair: [MEANINGS[name].fill for name in pair] for pair in pairs}
    near = {pair: apart for pair, two in fills.items() if (apart := distance(*two, sight)) < MEANINGS_APART}
    assert near == {}
    other, free = MEANINGS["other"].fill, MEANINGS["free"].fill
    assert distance(other, free, sight) > MEANINGS_APART, "both are grey"


def test_every_colour_stands_out_from_both_grounds_and_carries_letters():
    for name, fill in FILLS.items():
        assert min(contrast(fill, ground) for ground in GROUNDS.values()) >= 3, name
        assert contrast(look(name).ink, fill) >= 4.5, name
    grounds = [contrast(NEUTRAL, ground) for ground in GROUNDS.values()]
    assert min(grounds) > 4.3
    assert max(grounds) / min(grounds) < 1.01, "as readable on white as on black"
    assert NEUTRAL not in FILLS.values()


def test_twelve_sequences_differ_in_colour_and_the_next_twelve_in_their_tile():
    assert len(set(SEQUENCES)) == len(SEQUENCES) >= 12
    assert len(set(TILES)) == len(TILES)
    looks = [sequence_look(number) for number in range(144)]
    assert len({(one.fill, one.tile) for one in looks}) == 144
    assert [one.fill for one in looks[12:24]] == list(SEQUENCES)
    assert len({meant.tile for meant in MEANINGS.values()}) == len(MEANINGS)


def test_the_scripts_have_the_same_looks():
    data = json.loads(re.search(r"const PALETTE = (.*);\n", looks_script())[1])
    assert data["meanings"]["k"]["fill"] == MEANINGS["k"].fill
    assert [one["fill"] for one in data["sequences"]] == list(SEQUENCES)
    assert data["tiles"] == list(TILES)


def test_sight_without_a_kind_of_cone_confuses_what_it_is_known_to_confuse():
    red, green = "#c03000", "#6b6b00"
    for sight in ("protanopia", "deuteranopia"):
        assert distance(red, green, sight) < distance(red, green) / 2
    assert distance("#4080ff", "#40c0a0", "tritanopia") < distance("#4080ff", "#40c0a0") / 2
    for sight in KINDS_OF_SIGHT:
        for grey in ("#000000", "#808080", "#ffffff"):
            assert distance(seen(grey, sight), grey) < 0.01, "a grey stays grey"
