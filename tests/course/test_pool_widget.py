"""The pool widget without a browser: what it shows is its manager's state, and a refusal is a sentence."""

import json
import random

import pytest

from minikv.course.widgets import PoolWidget
from minikv.course.widgets.pool import HISTORY
from minikv.errors import ArgumentError
from minikv.i18n import LANGUAGES, text
from tests.course.photo import photo_traits

WHOLE, AIMED = ["step", "new", "reset"], ["share", "fork", "free"]


def play(widget: PoolWidget, *presses: tuple[str, str] | str) -> str:
    """Press the buttons, and return what the readout says in the end."""
    for press in presses:
        widget.act(*([press] if isinstance(press, str) else press))
    return widget.frames[-1]["status"]


def test_whatever_is_pressed_the_picture_is_the_managers_state():
    rng = random.Random(0)
    for _ in range(6):
        widget = PoolWidget(num_blocks=rng.randint(4, 30), block_size=rng.choice([2, 4, 5]))
        for _ in range(60):
            names = [name for name, _ in widget.targets] or [""]
            action = rng.choice(WHOLE[:2] * 3 + AIMED)
            widget.act(action, rng.choice(names) if action in AIMED else "")
            manager = widget.manager
            manager.check_invariants()
            pool, cells = manager.pools[0], widget.frames[-1]["cells"]
            stats = manager.stats()
            kinds = [cell["kind"] for cell in cells]
            assert kinds.count("cached") == stats.pools[0].cached
            assert kinds.count("free") + kinds.count("cached") == stats.pools[0].free
            for block, cell in enumerate(cells):
                owners = cell["owners"].split("+") if cell["owners"] else []
                assert len(owners) == pool.ref_count(block)
                assert all(block in manager.block_table(owner) for owner in owners)
            used = sum(kind in ("full", "part") for kind in kinds) * manager.block_size
            assert used - sum(cell["filled"] for cell in cells) == stats.wasted_slots[0]


def test_a_prefix_is_shared_and_the_hit_is_said():
    widget = PoolWidget(block_size=4)
    assert "nothing of it was in the pool" in play(widget, "new")
    said = play(widget, "new", ("share", "B"))  # B has 9 tokens, so 8 of them are in full blocks
    a, b, c = (widget.manager.block_table(name) for name in "ABC")
    assert c[:2] == b[:2]
    assert set(a).isdisjoint(b)
    assert f"8 were found in blocks {b[:2]}" in said
    assert "8 of 27 prompt tokens" in said
    assert [widget.frames[-1]["cells"][block]["owners"] for block in b[:2]] == ["B+C", "B+C"]


def test_a_fork_is_copied_when_one_of_them_writes():
    widget = PoolWidget(block_size=4)
    play(widget, "new", ("fork", "A"))
    assert widget.manager.block_table("A") == widget.manager.block_table("B") == [0, 1]
    said = play(widget, "step")
    assert "A was about to write into block 1" in said
    assert "copied to block 2" in said
    assert widget.manager.block_table("A") == [0, 2]
    assert widget.manager.block_table("B") == [0, 1]
    assert "copied" not in play(widget, "step"), "each is alone in its last block now"


def test_what_has_ended_can_be_asked_for_again_and_not_freed_again():
    widget = PoolWidget(block_size=4)
    said = play(widget, "new", "new", ("free", "B"))
    assert "0 held by others, 2 cached now, 1 empty now" in said
    assert widget.targets == [["A", "A"], ["B", "B (has ended)"]]
    before = widget.manager.stats()
    refused = play(widget, ("free", "B"))
    assert "Was it freed twice?" in refused
    assert widget.manager.stats() == before
    assert "8 were found" in play(widget, ("share", "B"))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_full_pool_says_so_and_goes_on(lang):
    widget = PoolWidget(lang, num_blocks=5, block_size=4)
    refused = play(widget, "new", "new", "new")
    assert refused.startswith(text("errors.out_of_blocks", lang, asked=1, free=0, total=5, fits=0))
    assert widget.manager.sequences() == ["A", "B"]
    stuck = play(widget, "step", "step", "step")
    assert "A" in stuck
    assert widget.manager.num_tokens("B") == 12, "who has room left goes on growing"
    assert widget.manager.num_tokens("A") == 8
    assert play(widget, ("free", "A"), "step") != stuck
    assert widget.manager.num_tokens("B") == 13


def test_an_evicted_block_is_counted():
    widget = PoolWidget(num_blocks=6, block_size=4)
    said = play(widget, "new", "new", ("free", "B"), "new", "new")
    evicted = widget.manager.stats().pools[0].evictions
    assert evicted
    assert f"Cached blocks evicted to make room: {evicted}." in said


def test_nothing_is_aimed_at_nobody():
    widget = PoolWidget()
    for action in ("step", *AIMED):
        assert "New request" in play(widget, action)
    for action in AIMED:
        assert "'Z'" in play(widget, (action, "Z"))
    assert len(widget.manager.sequences()) == 0


def test_start_over_forgets_everything():
    widget = PoolWidget()
    play(widget, "new", ("fork", "A"), "step", "reset")
    assert len(widget.frames) == 1
    assert widget.targets == []
    assert widget.manager.stats().asked_tokens == 0
    play(widget, "new")
    assert widget.manager.sequences() == ["A"]


def test_the_slider_leads_back_a_bounded_way():
    widget = PoolWidget()
    play(widget, "new", *["step"] * (HISTORY + 20))
    assert len(widget.frames) == HISTORY
    assert f"step {HISTORY - 1} of {HISTORY - 1}" in widget.text()
    widget.step = 3
    play(widget, "new")
    assert widget.step == -1, "who presses a button sees what it did"


def test_a_press_in_the_browser_is_an_act():
    widget = PoolWidget()
    for content in ({"action": "new", "sequence": ""}, {"action": "fork", "sequence": "A"}):
        widget._handle_custom_msg(content, [])
    assert widget.manager.sequences() == ["A", "B"]
    frames = len(widget.frames)
    for content in ({"action": "explode", "sequence": "A"}, {"sequence": "A"}):
        widget._handle_custom_msg(content, [])
    assert len(widget.frames) == frames


def test_what_cannot_be_is_refused():
    for size in ({"num_blocks": 0}, {"num_blocks": 65}, {"block_size": 0}, {"num_blocks": True}):
        with pytest.raises(ArgumentError):
            PoolWidget(**size)
    widget = PoolWidget()
    with pytest.raises(ArgumentError) as error:
        widget.act("explode")
    assert error.value.code == "unknown_choice"


def test_the_text_and_the_picture_are_deterministic_and_in_the_readers_language():
    def made(lang: str) -> PoolWidget:
        widget = PoolWidget(lang, num_blocks=12)
        play(widget, "new", "new", ("share", "B"), "step", ("free", "A"))
        return widget

    for lang in LANGUAGES:
        assert made(lang).text() == made(lang).text()
    assert made("en").text().isascii()
    assert "已结束" in made("zh").text()
    for lang, ended in (("en", "A has ended"), ("zh", "已结束")):
        page = made(lang).photo_html()
        assert page == made(lang).photo_html()
        assert ended in photo_traits(made(lang))["frames"][-1]["status"]


def test_what_is_synced_is_plain_json():
    widget = PoolWidget("zh")
    play(widget, "new", ("fork", "A"))
    for trait in ("form", "frames", "step", "targets"):
        value = getattr(widget, trait)
        assert json.loads(json.dumps(value, allow_nan=False)) == value
