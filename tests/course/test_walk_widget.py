"""The walk widget without a browser: its programs read every token that the query sees, once, from the right slots."""

import json
import random

import pytest

from minikv.course.widgets.walk import (
    BLOCK_SIZES,
    MAX_LENGTH,
    MAX_SPLITS,
    SPARE,
    WINDOWS,
    WalkWidget,
    block_table,
    walk,
)
from minikv.errors import ArgumentError
from minikv.i18n import LANGUAGES


def some_state(rng: random.Random) -> dict:
    return {
        "step": rng.randint(0, 12),
        "length": rng.randint(1, MAX_LENGTH),
        "splits": rng.randint(1, MAX_SPLITS),
        "block_size": rng.choice(BLOCK_SIZES),
        "window": rng.choice(WINDOWS),
    }


def test_the_programs_read_every_token_in_sight_once():
    rng = random.Random(0)
    for _ in range(300):
        state = some_state(rng)
        length, size, splits, window = (state[key] for key in ("length", "block_size", "splits", "window"))
        steps = walk(length, size, splits, window)
        tokens = [token for reads in steps for read in reads for token in range(read.start, read.stop)]
        assert sorted(tokens) == list(range(max(0, length - (window or length)), length))
        for reads in steps:
            assert len({read.split for read in reads}) == len(reads), "a program reads one tile a step"
            for read in reads:
                assert read.start // size == read.entry == (read.stop - 1) // size
                assert 0 <= read.split < splits
        # Nobody waits for a program that got two tiles more than another one: runs of equal length.
        tiles = len({read.entry for reads in steps for read in reads})
        assert len(steps) == -(-tiles // splits)


def test_a_run_of_tiles_belongs_to_one_program():
    for splits in range(1, MAX_SPLITS + 1):
        entries = {read.entry: read.split for reads in walk(90, 4, splits) for read in reads}
        owners = [entries[entry] for entry in sorted(entries)]
        assert owners == sorted(owners)


def test_the_table_names_different_blocks_of_the_pool():
    for size in BLOCK_SIZES:
        longest, pool = block_table(MAX_LENGTH, size)
        assert len(set(longest)) == len(longest) == pool - SPARE
        assert set(longest) <= set(range(pool))
        for length in (1, size, size + 1):
            assert block_table(length, size)[0] == longest[: -(-length // size)]


def test_what_is_drawn_is_the_walk():
    rng = random.Random(1)
    widget = WalkWidget()
    seen = set()
    for _ in range(200):
        state = some_state(rng)
        widget.state = state
        view, size = widget.view, state["block_size"]
        steps = walk(state["length"], size, state["splits"], state["window"])
        table, pool = block_table(state["length"], size)
        assert view["pool"] == pool
        taken = state["step"]
        now = {read.entry for read in steps[taken - 1]} if 0 < taken <= len(steps) else set()
        before = {read.entry for reads in steps[: max(0, taken - 1)] for read in reads}
        every = {read.entry for reads in steps for read in reads}
        for tile in view["tiles"]:
            entry = tile["entry"]
            due = "now" if entry in now else "read" if entry in before else "waiting"
            assert tile["state"] == (due if entry in every else "behind")
            assert tile["block"] == (table[entry] if entry in every else -1)
            seen.add(tile["state"])
        slots = 0
        for row in view["table"]:
            if row["values"][2] != "-":
                first, last = map(int, row["values"][2].split(" to "))
                low, high = map(int, row["values"][3].split(" to "))
                assert first == table[low // size] * size + low % size
                assert last - first == high - low
                slots += 1
        assert slots == len(now)
        assert [row["key"] for row in view["table"]] == list("ABCDEF"[: state["splits"]])
    assert seen == {"now", "read", "waiting", "behind"}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    "bad", [{"step": -1}, {"length": 0}, {"length": 97}, {"splits": 7}, {"block_size": 2}, {"window": 0}]
)
def test_a_setting_that_cannot_be_is_a_sentence_and_the_widget_goes_on(lang, bad):
    widget = WalkWidget(lang)
    before = widget.text()
    widget.state = bad
    assert widget.view["error"]
    assert widget.view["tiles"] == []
    (value,) = bad.values()
    assert str(value) in widget.view["status"]
    assert widget.view["status"] in widget.text()
    widget.state = dict(widget.form["defaults"])
    assert widget.text() == before
    with pytest.raises(ArgumentError):
        WalkWidget(lang, **bad)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_text_is_deterministic_and_in_the_readers_language(lang):
    widget = WalkWidget(lang, splits=2, step=2)
    assert widget.text() == WalkWidget(lang, splits=2, step=2).text()
    assert ("块表" in widget.text()) == (lang == "zh")
    assert widget.text().isascii() == (lang == "en")
    assert len(widget.text().splitlines()) == 1 + 2 + 1


def test_what_is_synced_is_plain_json():
    widget = WalkWidget(window=20)
    for trait in ("form", "state", "view"):
        value = getattr(widget, trait)
        assert json.loads(json.dumps(value, allow_nan=False)) == value


def test_where_it_starts_is_always_offered():
    widget = WalkWidget(block_size=12, window=33)
    size, window = widget.form["fields"][3], widget.form["fields"][4]
    assert [12, "12"] in size["options"]
    assert [33, "33"] in window["options"]
