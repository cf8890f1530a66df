"""Diagrams: another configuration draws other figures; words in both languages; nothing of a name becomes markup."""

import base64
import re
from html import unescape
from xml.etree import ElementTree

import pytest
import torch

from minikv.blocks import BlockManager
from minikv.course.diagrams import (
    SoftmaxStep,
    arena_loans,
    attention_heads,
    decode_grid,
    online_softmax,
    prefix_tree,
    segments,
    slots,
)
from minikv.course.diagrams.svg import Picture
from minikv.course.lessons.l10.launch import Launch
from minikv.errors import ArgumentError, UnknownNameError
from minikv.i18n import LANGUAGES
from minikv.look import look
from minikv.memory import Arena, CachingAllocator
from minikv.plan import CacheSpec
from minikv.plan.catalog import find_model
from minikv.units import MIB
from tests.course.diagrams.test_batching import BATCHING
from tests.course.diagrams.test_bytes import BYTES
from tests.course.diagrams.test_steps import STEPS

LLAMA = find_model("Llama-2-7B").config
NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")


def heads(lang="en", kv_heads=8):
    models = {"a": {**LLAMA, "num_key_value_heads": kv_heads}, "b": "DeepSeek-V3.2"}
    return attention_heads(models, lang)


def shared(name="B"):
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate("gone", [*range(8), 30, 31, 32, 33])
    manager.commit("gone")
    manager.free("gone")
    manager.allocate("A", [*range(8), 20, 21])
    manager.allocate(name, [*range(4), 50])
    return manager


def arena():
    """With a loan in use, padding, a loan that is not in use any more, and bytes left over."""
    made = Arena(4096, name="step")
    kept = made.borrow("kept", (3, 5), torch.float32)
    made.borrow("dropped", (70,), torch.int64)
    return made, kept


def allocator(more=0):
    """With a block in use, what it keeps from being given back, a segment that is free, and ``more`` of these."""
    made = CachingAllocator()
    large = [made.malloc(64 * MIB) for _ in range(2 + more)]
    for address in large:
        made.free(address)
    made.malloc(20 * MIB)
    made.malloc(512)
    return made


def launch(**other):
    values = dict(grid=(2, 3), lengths=[9, 3], tables=[[5, 0, 4], [2]], num_blocks=14, block_size=4)
    return Launch(**{**values, "group": 2, "rows": 16, "tile": 8, **other})


DRAWN = {
    "grid": lambda lang: decode_grid(launch(), (0, 2), lang),
    "softmax": lambda lang: online_softmax(
        [SoftmaxStep([1.0, -2.0], 0.0, 1.0, 1.05, 0.3), SoftmaxStep([3.0], 0.14, 3.0, 1.14, 0.9)], lang
    ),
    "segments": lambda lang: segments(allocator(), lang),
    "arena": lambda lang: arena_loans(arena()[0].report(), lang),
    "heads": heads,
    "slots": lambda lang: slots(shared(), "B", lang),
    "tree": lambda lang: prefix_tree(shared(), None, lang),
    **STEPS,
    **BATCHING,
    **BYTES,
}


def said(diagram):
    """The words that the picture shows."""
    tree = ElementTree.fromstring(diagram.svg)
    return [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_diagram_says_the_same_figures_in_both_languages(draw):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
        assert re.search("[\u4e00-\u9fff]", say(chinese))
        assert not re.search("[\u4e00-\u9fff][,:;]|[,:;] ?[\u4e00-\u9fff]", say(chinese)), "Chinese marks"


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_its_image_is_complete_in_itself_and_named_by_the_alternative_text(draw):
    diagram = draw("zh")
    page = diagram._repr_mimebundle_()["text/html"]
    image = re.search(r'<img width="864" alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)">', page)
    assert unescape(image[1]) == diagram.alt
    assert base64.b64decode(image[2]).decode() == diagram.svg
    assert ElementTree.fromstring(diagram.svg).get("aria-label") == diagram.alt
    assert "http" not in diagram.svg.replace("http://www.w3.org/2000/svg", "")
    assert page == draw("zh")._repr_mimebundle_()["text/html"]
    ids = re.findall(r'id="([^"]+)"', diagram.svg)
    assert {f"#{one}" for one in ids} == set(re.findall(r"url\(([^)]+)\)", diagram.svg))


@pytest.mark.parametrize("kv_heads", [1, 4, 32])
def test_the_bytes_of_a_token_are_those_of_the_spec(kv_heads):
    diagram = heads(kv_heads=kv_heads)
    spec = CacheSpec.from_config({**LLAMA, "num_key_value_heads": kv_heads})
    kind = {1: "MQA", 4: "GQA", 32: "MHA"}[kv_heads]
    assert kind in said(diagram)
    for words in (diagram.text(), diagram.alt, " ".join(said(diagram))):
        assert f"= {spec.layers[0].token_bytes:,} B" in words
        assert "= 1,408 B" in words


def test_areas_are_to_scale():
    tree = ElementTree.fromstring(attention_heads({"a": "Llama-2-7B", "b": "Llama-3.1-8B"}).svg)
    boxes = [
        one for one in tree.iter("{http://www.w3.org/2000/svg}rect") if one.get("fill") == look("k").fill
    ]
    areas = {}
    for box in boxes:  # a column each
        areas.setdefault(box.get("x"), []).append(float(box.get("width")) * float(box.get("height")))
    many, few = areas.values()
    assert sum(many) == pytest.approx(4 * sum(few))


def test_the_followed_token_is_in_the_managers_slot():
    manager = shared()
    for position in range(5):
        slot = manager.slot_mapping("B", position, position + 1)[0]
        assert slots(manager, "B", token=position).text().endswith(f"= {slot}")


@pytest.mark.parametrize("num_tokens", [1, 7, 16])
def test_text_names_every_block_of_the_table(num_tokens):
    manager = BlockManager(num_blocks=30, block_size=3)
    manager.allocate("other", [1] * 4)
    manager.allocate("S", list(range(num_tokens)))
    diagram = slots(manager, "S")
    for block in manager.block_table("S"):
        assert f"-> block {block}, slots {3 * block} to " in diagram.text()
    for block in range(30):
        assert f"block {block}" in said(diagram)


def test_tokens_behind_a_window_have_no_slot():
    from minikv.blocks import KVCacheGroup

    manager = BlockManager([KVCacheGroup(12, window=4)], block_size=4)
    manager.allocate("S", list(range(14)))
    manager.commit("S")
    text = slots(manager, "S", token=0).text()
    assert "tokens 0 to 3 -> no block" in text
    assert "the window has moved on" in text


def test_a_shared_block_is_one_node_with_its_ref_count():
    manager = shared()
    lines = prefix_tree(manager).text().splitlines()[1:]
    assert len(lines) == len({line.split(":")[0] for line in lines})
    counts = {int(re.match(r"block (\d+)", line)[1]): line for line in lines}
    for block, line in counts.items():
        assert f"ref count {manager.pools[0].ref_count(block)}" in line
    first, second = manager.block_table("A")[:2]
    assert counts[first].endswith("held by A, B")
    assert counts[second].endswith("held by A")


def test_a_cached_block_hangs_below_the_block_that_it_continues():
    manager = shared()
    cached = manager.pools[0].cached()[0].block
    lines = prefix_tree(manager).text().splitlines()[1:]
    places = [int(re.match(r"block (\d+)", line)[1]) for line in lines]
    assert "held by none" in lines[places.index(cached)]
    assert places.index(cached) > places.index(manager.block_table("A")[1])


def test_an_arena_shows_each_byte_once_and_an_arrow_for_each_loan_in_use():
    made, kept = arena()
    report = made.report()
    words = said(arena_loans(report))
    assert {"4,096 B", "0", "60 B", "256", "560 B", "816", "4,096"} <= set(words)
    assert {f"{report.padding:,} B of padding", f"{report.free:,} B free"} <= set(words)
    assert [one for one in words if "in use" in one] == [
        "[3, 5] float32, in use",
        "[70] int64, no longer in use",
    ]
    assert arena_loans(report).svg.count("<path") == len(report.alive) + 1  # the pattern of the padding
    assert arena_loans(report).text() == report.text()
    del kept


def test_segments_add_up_to_what_the_allocator_counts():
    made = allocator()
    usage, text = made.usage(), segments(made).text()
    assert f"Segments: {len(made.segments())}, reserved: {usage.reserved:,} B" in text
    assert f"({usage.allocated:,} B)" in text
    assert f"so it stays: 46.00 MiB ({usage.inactive_split:,} B)" in text
    for segment in made.segments():
        assert f", {segment.total_size:,} B: " in text
        for block in segment.blocks:
            assert f"{block.size:,} B " in text


def test_blocks_fill_their_segment_however_thin_they_are():
    tree = ElementTree.fromstring(segments(allocator()).svg)
    bars = {}
    for box in tree.iter("{http://www.w3.org/2000/svg}rect"):
        if box.get("height") == "36":
            bars.setdefault(box.get("y"), []).append(float(box.get("width")))
    assert len(bars) == 3
    assert min(map(min, bars.values())) >= 3
    assert sorted(map(sum, bars.values()))[1:] == pytest.approx([736, 736], abs=0.2)


def test_many_segments_are_counted_together():
    diagram = segments(allocator(more=20))
    assert f"11 smaller segments, {(2 + 10 * 64) * MIB:,} B" in diagram.text()
    assert len([one for one in said(diagram) if re.match(r"segment \d", one)]) == 12


def test_an_allocator_with_nothing_has_a_picture_too():
    assert segments(CachingAllocator()).text() == "Segments: 0, reserved: 0 B"


def test_a_name_is_words_and_never_markup():
    name = '</text><script>"x"</script>\x1b'
    manager = shared(name)
    for diagram in (slots(manager, name), prefix_tree(manager), attention_heads({name: "Llama-2-7B"})):
        page = diagram._repr_mimebundle_()["text/html"]
        assert page.count("<script>") == 1
        assert "<script>" not in diagram.svg
        assert "\x1b" not in diagram.svg + page
        assert any("<script>" in words for words in said(diagram))


def test_two_pictures_have_patterns_of_their_own():
    names = set()
    for width in (10, 20):
        picture = Picture()
        picture.box(0, 0, width, 10, look("v"))
        names |= set(re.findall(r'id="([^"]+)"', picture.markup(30, 20, "alt", "en")))
    assert len(names) == 2


def test_unknown_sequences_and_positions_are_refused():
    manager = shared()
    with pytest.raises(UnknownNameError):
        slots(manager, "Z")
    with pytest.raises(UnknownNameError):
        prefix_tree(manager, ["Z"])
    with pytest.raises(ArgumentError):
        slots(manager, "A", token=10)
