"""The block widget without a browser: what it draws is what it was told, and what cannot be is refused."""

import json
import random
import threading

import pytest

from minikv.course.widgets.blocks import BlocksWidget, SequenceBlocks
from minikv.errors import ArgumentError
from minikv.i18n import LANGUAGES
from tests.course.photo import photo_traits


def some_sequences(rng: random.Random, num_blocks: int, block_size: int) -> list[SequenceBlocks]:
    """Sequences that share no block; lengths on, below and above block multiples, some blocks reserved."""
    ids = rng.sample(range(num_blocks), num_blocks)
    made = []
    for name in "ABCDEFGHI"[: rng.randint(2, 9)]:
        table = tuple(ids.pop() for _ in range(min(rng.randint(0, 4), len(ids))))
        slots = len(table) * block_size
        length = rng.choice([slots, slots - 1, slots - block_size + 1, rng.randint(0, slots)])
        made.append(SequenceBlocks(name, table, max(0, length)))
    return made


def test_every_token_is_drawn_once_and_every_block_is_of_one_kind():
    rng = random.Random(0)
    for _ in range(60):
        num_blocks, block_size = rng.randint(4, 90), rng.choice([1, 4, 16])
        sequences = some_sequences(rng, num_blocks, block_size)
        frame = BlocksWidget(num_blocks=num_blocks, block_size=block_size, sequences=sequences).frames[0]
        cells = frame["cells"]
        assert len(cells) == num_blocks
        assert sum(cell["filled"] for cell in cells) == sum(s.num_tokens for s in sequences)
        held = {block: s.name for s in sequences for block in s.blocks}
        for block, cell in enumerate(cells):
            full = cell["filled"] == block_size
            expected = "free" if block not in held else "full" if full else "part"
            assert cell["kind"] == expected
            assert cell["owners"] == held.get(block, "")
            assert cell["label"].startswith(f"{block}: ")
        assert [row[0] for row in frame["rows"]] == [s.name for s in sequences]


def test_a_shared_block_counts_once_and_names_both():
    a, b = SequenceBlocks("A", (4, 1), 19), SequenceBlocks("B", (4, 2), 30)
    cells = BlocksWidget(num_blocks=6, block_size=16, sequences=[a, b]).frames[0]["cells"]
    assert cells[4]["owners"] == "A+B"
    assert [cell["filled"] for cell in cells] == [0, 3, 14, 0, 16, 0]
    assert cells[4]["look"] not in (cells[1]["look"], cells[2]["look"])


def test_a_sequence_keeps_its_look_when_others_leave():
    widget = BlocksWidget(num_blocks=4, block_size=8)
    a, b = SequenceBlocks("A", (0,), 3), SequenceBlocks("B", (1,), 3)
    widget.add_step([a, b])
    widget.add_step([b])
    assert widget.frames[1]["cells"][1]["look"] == widget.frames[2]["cells"][1]["look"]
    assert widget.frames[1]["cells"][0]["look"] != widget.frames[2]["cells"][1]["look"]


def test_the_latest_step_is_followed_unless_the_reader_looks_back():
    widget = BlocksWidget(num_blocks=4, block_size=8)
    for length in range(1, 5):
        widget.add_step([SequenceBlocks("A", (0,), length)])
    assert "step 4 of 4" in widget.text()
    widget.step = 2
    widget.add_step([SequenceBlocks("A", (0,), 5)])
    assert "step 2 of 5" in widget.text()
    assert "A: 2 tokens" in widget.text()
    for asked, shown in [(-3, -1), (99, 5)]:
        widget.step = asked
        assert widget.step == shown


@pytest.mark.parametrize(
    ("sequence", "code"),
    [
        (SequenceBlocks("A", (4,), 1), "block_outside_pool"),
        (SequenceBlocks("A", (-1,), 1), "block_outside_pool"),
        (SequenceBlocks("A", (1, 1), 9), "block_twice"),
        (SequenceBlocks("A", (1, 2), 17), "block_table_too_short"),
        (SequenceBlocks("A", (), 1), "block_table_too_short"),
        (SequenceBlocks("A", (1,), -1), "block_table_too_short"),
    ],
)
def test_what_cannot_be_is_refused_and_adds_no_step(sequence, code):
    widget = BlocksWidget(num_blocks=4, block_size=8)
    with pytest.raises(ArgumentError) as error:
        widget.add_step([sequence])
    assert error.value.code == code
    assert len(widget.frames) == 1
    widget.add_step([SequenceBlocks("A", (1, 2), 16)])
    assert len(widget.frames) == 2


@pytest.mark.parametrize("size", [{"num_blocks": 0, "block_size": 8}, {"num_blocks": 8, "block_size": 0}])
def test_a_pool_has_blocks_and_a_block_has_slots(size):
    with pytest.raises(ArgumentError):
        BlocksWidget(**size)


def test_steps_from_many_threads_are_all_there():
    widget = BlocksWidget(num_blocks=4, block_size=100)

    def add(first: int) -> None:
        for length in range(first, first + 10):
            widget.add_step([SequenceBlocks("A", (0,), length)])

    threads = [threading.Thread(target=add, args=(10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(frame["cells"][0]["filled"] for frame in widget.frames[1:]) == list(range(40))


def test_the_text_is_deterministic_and_in_the_readers_language():
    def text(lang: str) -> str:
        sequences = [SequenceBlocks("A", (2, 0), 19), SequenceBlocks("B", tuple(range(3, 19)), 128)]
        widget = BlocksWidget(lang, num_blocks=20, block_size=16)
        widget.add_step(sequences, note="19 + 128.")
        return widget.text()

    for lang in LANGUAGES:
        assert text(lang) == text(lang)
        for number in ("19 + 128.", "[2, 0]", "13", "128"):
            assert number in text(lang)
    assert text("en").isascii()
    assert "块表" in text("zh")


def test_the_photo_has_the_notes_and_names_of_its_language():
    widget = BlocksWidget("zh", num_blocks=300, block_size=16)
    widget.add_step([SequenceBlocks("甲", (2, 0), 19)], note="预填充。")
    traits = photo_traits(widget)
    assert traits["frames"][-1]["status"].startswith("预填充。")
    assert traits["frames"][-1]["rows"][0][0] == "甲"


def test_what_is_synced_is_plain_json():
    widget = BlocksWidget(num_blocks=9, block_size=4, sequences=[SequenceBlocks("A", (7,), 3)])
    for trait in ("form", "frames", "step"):
        value = getattr(widget, trait)
        assert json.loads(json.dumps(value, allow_nan=False)) == value


def test_a_cached_block_is_free_and_says_so():
    widget = BlocksWidget(num_blocks=4, block_size=8)
    widget.add_step([SequenceBlocks("A", (1,), 8)], cached=[1, 2])
    cells = widget.frames[-1]["cells"]
    assert [cell["kind"] for cell in cells] == ["free", "full", "cached", "free"], "who is held is not cached"
    assert cells[2]["label"] == "2: cached"
    assert "3 free" in widget.text()
    assert "1 of the free blocks can still be found (cached)." in widget.text()


@pytest.mark.parametrize(("lang", "said"), [("en", "Freed."), ("zh", "已释放。")])
def test_a_note_in_both_languages_stands_in_the_readers(lang, said):
    widget = BlocksWidget(lang, num_blocks=4, block_size=8)
    widget.add_step([], note={"en": "Freed.", "zh": "已释放。"})
    assert said in widget.text()
    assert photo_traits(widget)["frames"][-1]["status"].startswith(said)


def test_many_owners_are_counted_in_the_cell_and_named_in_full():
    sequences = [SequenceBlocks(name, (0,), 8) for name in "ABCD"]
    cell = BlocksWidget(num_blocks=4, block_size=8, sequences=sequences).frames[0]["cells"][0]
    assert cell["short"] == "0: 4 seqs 8/8"
    assert cell["label"] == "0: A+B+C+D 8/8"
