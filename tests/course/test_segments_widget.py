"""The segments widget without a browser: what it draws is what the caching allocator's model says, to the byte."""

import json
import random
from dataclasses import replace

import pytest

from minikv.course.widgets import AllocatorStep, SegmentsWidget
from minikv.course.widgets.segments import MAX_SETTINGS
from minikv.course.widgets.segments_drawing import FIGURES, MAX_ROWS
from minikv.course.widgets.segments_replay import MAX_STEPS
from minikv.errors import ArgumentError, MiniKVError
from minikv.i18n import LANGUAGES, text
from minikv.memory import AllocatorSettings, CachingAllocator, DeviceOutOfMemoryError
from minikv.units import GIB, MIB, exact_bytes
from tests.course.photo import photo_traits

SETTINGS = {
    "defaults": AllocatorSettings(),
    "expandable": AllocatorSettings(expandable_segments=True),
    "max_split 20": AllocatorSettings(max_split_size_mb=20),
    "powers of two": AllocatorSettings(roundup_power2_divisions=4),
}
# The batch leaves a segment, a small tensor settles in it, and the segment cannot be given back.
STORY = [
    AllocatorStep("malloc", "batch", 6 * GIB),
    AllocatorStep("free", "batch"),
    AllocatorStep("malloc", "survivor", 30 * MIB),
    AllocatorStep("empty_cache"),
]


def some_steps(rng: random.Random, count: int) -> list[AllocatorStep]:
    steps: list[AllocatorStep] = []
    live: list[str] = []
    for place in range(count):
        kind = rng.choice(["malloc"] * 5 + ["free"] * 4 + ["empty_cache", "record_stream", "synchronize"])
        if kind in ("free", "record_stream") and not live:
            kind = "malloc"
        if kind == "malloc":
            size = rng.choice([1, 512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, rng.randint(1, 90 * MIB)])
            name = f"t{place % 40}"
            if name in live:
                continue
            live.append(name)
            steps.append(AllocatorStep("malloc", name, size, stream=rng.choice([0, 0, 0, 1])))
        elif kind == "free":
            steps.append(AllocatorStep("free", live.pop(rng.randrange(len(live)))))
        elif kind == "record_stream":
            steps.append(AllocatorStep("record_stream", rng.choice(live), stream=rng.choice([1, 2])))
        else:
            steps.append(AllocatorStep(kind))
    return steps


def figures(frame: dict) -> dict[str, str]:
    return dict(zip(FIGURES, frame["figures"], strict=True))


def drawn(widget: SegmentsWidget, frame: dict) -> list[dict]:
    """The blocks of a frame in the order of the picture."""
    segments = [widget.map["segments"][place] for place in frame["rows"]]
    return [widget.map["blocks"][place] for segment in segments for place in segment["blocks"]]


def test_whatever_is_asked_the_map_is_the_allocator_step_by_step():
    rng = random.Random(5)
    failed = skipped = waited = 0
    for capacity in (60 * MIB, 400 * MIB, 4 * GIB):
        steps = some_steps(rng, 90)
        widget = SegmentsWidget(steps=steps, capacity=capacity, settings=SETTINGS, non_torch=7 * MIB)
        for label, settings in SETTINGS.items():
            straight = CachingAllocator(capacity, settings=settings, non_torch=7 * MIB)
            held: dict[str, int] = {}
            rounded: dict[str, int] = {}
            frames = widget.map["frames"][label]
            assert len(frames) == len(steps) + 1
            assert frames[0]["rows"] == []
            for step, frame in zip(steps, frames[1:], strict=True):
                refusal = None
                before = straight.usage().allocated
                if step.kind == "malloc":
                    try:
                        held[step.name] = straight.malloc(step.size, step.stream)
                        rounded[step.name] = straight.usage().allocated - before
                    except DeviceOutOfMemoryError as error:
                        refusal = error
                elif step.name and step.name not in held:
                    assert text("widgets_segments.passed_over", name=step.name) in frame["status"]
                    skipped += 1
                elif step.kind == "free":
                    straight.free(held.pop(step.name))
                    del rounded[step.name]
                elif step.kind == "record_stream":
                    straight.record_stream(held[step.name], step.stream)
                else:
                    getattr(straight, step.kind)()
                usage, stats = straight.usage(), straight.memory_stats()
                assert frame["error"] == (refusal is not None)
                assert refusal is None or str(refusal) in frame["status"]
                failed += frame["error"]

                told = figures(frame)
                assert told["allocated"] == exact_bytes(usage.allocated)
                assert told["reserved"] == exact_bytes(usage.reserved)
                assert told["peak_reserved"] == exact_bytes(stats["reserved_bytes.all.peak"])
                assert told["cached"] == exact_bytes(usage.reserved - usage.active)
                assert told["device_free"] == exact_bytes(straight.device_free)
                calls = dict(calls=stats["num_device_alloc"], returns=stats["num_device_free"])
                kind = "calls_mapped" if settings.expandable_segments else "calls_value"
                assert told["calls"] == text(f"widgets_segments.{kind}", **calls)
                if settings.expandable_segments:
                    assert told["inactive_split"].startswith("0 B (")
                else:
                    assert told["inactive_split"] == exact_bytes(usage.inactive_split)

                if not frame["more"]:
                    blocks = drawn(widget, frame)
                    assert sum(block["size"] for block in blocks) == usage.reserved
                    live = {block["name"]: block["size"] for block in blocks if block["state"] == "used"}
                    assert live == rounded
                    assert sum(live.values()) == usage.allocated
                    waiting = sum(block["size"] for block in blocks if block["state"] == "waiting")
                    assert waiting == usage.active - usage.allocated
                    waited += bool(waiting)
    assert failed > 5
    assert skipped > 5
    assert waited > 5


def test_six_gib_stay_reserved_for_one_small_survivor_and_pages_do_not():
    widget = SegmentsWidget(steps=STORY, capacity=8 * GIB, settings=SETTINGS)
    last = {label: moments[-1] for label, moments in widget._moments.items()}
    assert last["defaults"].reserved == 6 * GIB
    assert last["defaults"].inactive_split == 6 * GIB - 30 * MIB
    assert last["expandable"].inactive_split < last["defaults"].inactive_split
    assert last["expandable"].reserved <= 40 * MIB
    assert last["max_split 20"].inactive_split == 0, "an oversize block is not cut up"
    assert [moment.allocated // MIB for moment in last.values()] == [30, 30, 30, 32], (
        "32 is the next of four steps"
    )
    assert figures(widget.map["frames"]["defaults"][-1])["inactive_split"] == exact_bytes(6 * GIB - 30 * MIB)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_out_of_memory_is_a_frame_and_the_steps_go_on(lang):
    steps = [
        *STORY,
        AllocatorStep("malloc", "next", 7 * GIB),
        AllocatorStep("free", "next"),
        AllocatorStep("malloc", "next", 5 * GIB),
    ]
    widget = SegmentsWidget(lang, steps=steps, capacity=8 * GIB)
    (frames,) = widget.map["frames"].values()
    straight = CachingAllocator(8 * GIB)
    straight.free(straight.malloc(6 * GIB))
    straight.malloc(30 * MIB)
    with pytest.raises(DeviceOutOfMemoryError) as error:
        straight.malloc(7 * GIB)
    assert [frame["error"] for frame in frames] == [False] * 5 + [True, False, False]
    assert error.value.text(lang) in frames[5]["status"]
    assert text("widgets_segments.lost", lang, name="next") in frames[5]["status"]
    assert text("widgets_segments.passed_over", lang, name="next") in frames[6]["status"]
    assert frames[5]["rows"] == frames[6]["rows"] == frames[4]["rows"]
    assert "next" in [block["name"] for block in drawn(widget, frames[7])], (
        "the hole still serves torch itself"
    )
    assert text("widgets_segments.failed", lang, steps="5") in widget.summary


def test_many_segments_are_counted_and_no_byte_is_lost():
    count = MAX_ROWS + 9
    steps = [AllocatorStep("malloc", f"a{place}", (12 + 2 * place) * MIB) for place in range(count)]
    widget = SegmentsWidget(steps=steps, capacity=4 * GIB)
    (frames,) = widget.map["frames"].values()
    for place, frame in enumerate(frames):
        assert len(frame["rows"]) == min(place, MAX_ROWS)
        assert bool(frame["more"]) == (place > MAX_ROWS)
    reserved = sum((12 + 2 * place) * MIB for place in range(count))
    shown = sum(block["size"] for block in drawn(widget, frames[-1]))
    assert figures(frames[-1])["reserved"] == exact_bytes(reserved)
    assert (
        f"and 9 more segments, the smallest, are not drawn: {exact_bytes(reserved - shown)}"
        in frames[-1]["more"]
    )
    assert frames[-1]["more"] in widget.summary
    assert {block["name"] for block in drawn(widget, frames[-1])} == {
        f"a{place}" for place in range(9, count)
    }


def test_all_the_steps_that_are_allowed_stay_small_to_send():
    steps = [AllocatorStep("malloc", f"t{place}", MIB + 1) for place in range(MAX_STEPS)]
    few = {label: SETTINGS[label] for label in ("defaults", "expandable")}
    for steps_of in (steps, some_steps(random.Random(1), MAX_STEPS)):
        widget = SegmentsWidget(steps=steps_of, capacity=GIB, settings=few)
        assert len(json.dumps(widget.map)) < 1_000_000


def test_a_block_says_whose_it_is_where_and_how_much_was_asked_for():
    steps = [
        AllocatorStep("malloc", "A", 1000),
        AllocatorStep("malloc", "B", 700, stream=0),
        AllocatorStep("malloc", "C", 5, stream=3),
    ]
    widget = SegmentsWidget(steps=steps, capacity=GIB)
    (frames,) = widget.map["frames"].values()
    labels = [block["label"] for block in drawn(widget, frames[-1])]
    assert labels[0] == "A: 1.00 KiB (1,024 B) from offset 0 B; requested 1,000 B"
    assert labels[1] == "B: 1.00 KiB (1,024 B) from offset 1.00 KiB (1,024 B); requested 700 B"
    assert labels[2].startswith("Cached: 2.00 MiB (2,095,104 B) from offset 2.00 KiB")
    assert labels[3] == "C: 512 B from offset 0 B; requested 5 B"
    assert widget.map["segments"][frames[-1]["rows"][1]]["label"].startswith("Small pool, stream 3, 2.00 MiB")


def test_pools_and_expandable_segments_are_named():
    steps = [AllocatorStep("malloc", "small", 100), AllocatorStep("malloc", "large", 3 * MIB)]
    widget = SegmentsWidget(steps=steps, capacity=GIB, settings=SETTINGS)
    for label, words in (("defaults", ""), ("expandable", ", expandable")):
        rows = widget.map["frames"][label][-1]["rows"]
        kinds = {widget.map["segments"][row]["label"].split(" MiB:")[0] for row in rows}
        assert kinds == {f"Small pool{words}, 2.00", f"Large pool{words}, 20.00"}


def test_where_the_reader_starts_and_what_a_choice_may_be():
    widget = SegmentsWidget(steps=STORY, capacity=8 * GIB, settings=SETTINGS)
    assert (widget.setting, widget.step) == ("defaults", len(STORY))
    assert SegmentsWidget(steps=STORY, capacity=8 * GIB, stop_at=0).step == 0
    for step, kept in ((99, len(STORY)), (-3, 0), (2, 2)):
        widget.step = step
        assert widget.step == kept
    with pytest.raises(ArgumentError) as error:
        widget.setting = "no such"
    assert error.value.code == "unknown_choice"
    before = widget.summary
    widget.setting = "expandable"
    assert widget.summary != before
    assert "Large pool, expandable" in widget.summary
    assert all(f"\n{label}: " in widget.summary for label in SETTINGS)


BAD_STEPS = [
    (AllocatorStep("maloc", "B", 5), "allocator_bad_trace", "maloc"),
    (AllocatorStep(None, "B", 5), "allocator_bad_trace", "None"),  # type: ignore[arg-type]
    (AllocatorStep("malloc", "", 5), "allocator_bad_trace", "name"),
    (AllocatorStep("malloc", 7, 5), "allocator_bad_trace", "name"),  # type: ignore[arg-type]
    (AllocatorStep("malloc", "B", 0), "allocator_bad_trace", "size"),
    (AllocatorStep("malloc", "B", -1), "allocator_bad_trace", "size"),
    (AllocatorStep("malloc", "B", True), "allocator_bad_trace", "size"),
    (AllocatorStep("malloc", "B", 2.0), "allocator_bad_trace", "size"),  # type: ignore[arg-type]
    (AllocatorStep("malloc", "B", 2**63), "allocator_bad_trace", "size"),
    (AllocatorStep("malloc", "B", 10**400), "allocator_bad_trace", "1 to 4611686018427387904"),
    (AllocatorStep("malloc", "B", 5, stream=-1), "allocator_bad_trace", "stream"),
    (AllocatorStep("malloc", "B", 5, note=None), "allocator_bad_trace", "note"),  # type: ignore[arg-type]
    (AllocatorStep("malloc", "A", 5), "allocator_trace_id_taken", "'A'"),
    (AllocatorStep("free", "B"), "allocator_trace_id_unknown", "'B'"),
    (AllocatorStep("free", "gone"), "allocator_trace_id_unknown", "'gone'"),
    (AllocatorStep("free", "A", 5), "allocator_bad_trace", "size"),
    (AllocatorStep("record_stream", "B", stream=1), "allocator_trace_id_unknown", "'B'"),
    (AllocatorStep("empty_cache", "A"), "allocator_bad_trace", "name"),
    ("free", "allocator_bad_trace", "step"),
]


@pytest.mark.parametrize(("step", "code", "said"), BAD_STEPS)
def test_a_step_that_cannot_be_run_is_named(step, code, said):
    good = [
        AllocatorStep("malloc", "A", 5),
        AllocatorStep("malloc", "gone", 5),
        AllocatorStep("free", "gone"),
    ]
    with pytest.raises(ArgumentError) as error:
        SegmentsWidget(steps=[*good, step], capacity=GIB)
    assert error.value.code == code
    for lang in LANGUAGES:
        assert said in error.value.text(lang)
        assert "4" in error.value.text(lang), "the number of the step"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"steps": []}, "out_of_range"),
        ({"steps": [AllocatorStep("empty_cache")] * (MAX_STEPS + 1)}, "out_of_range"),
        ({"steps": AllocatorStep("empty_cache")}, "not_a_list"),
        ({"capacity": 0}, "bad_count"),
        ({"capacity": 2 * MIB - 1}, "bad_count"),
        ({"capacity": 3 * MIB, "non_torch": 2 * MIB}, "bad_count"),
        ({"capacity": 1.5 * GIB}, "bad_count"),
        ({"non_torch": -1}, "bad_count"),
        ({"non_torch": True}, "bad_count"),
        ({"settings": {}}, "segments_settings"),
        ({"settings": AllocatorSettings()}, "segments_settings"),
        ({"settings": {str(n): AllocatorSettings() for n in range(MAX_SETTINGS + 1)}}, "segments_settings"),
        ({"settings": {"": AllocatorSettings()}}, "segments_settings"),
        ({"settings": {3: AllocatorSettings()}}, "segments_settings"),
        ({"settings": {"a": {"expandable_segments": True}}}, "allocator_not_settings"),
        ({"stop_at": -1}, "bad_count"),
        ({"stop_at": len(STORY) + 1}, "out_of_range"),
        ({"stop_at": True}, "bad_count"),
        ({"lang": "fr"}, "unknown_language"),
    ],
)
def test_what_cannot_be_is_refused(bad, code):
    with pytest.raises(MiniKVError) as error:
        SegmentsWidget(**{"steps": STORY, "capacity": 8 * GIB, **bad})
    assert error.value.code == code
    assert all(error.value.text(lang) for lang in LANGUAGES)
    if code == "out_of_range" and "steps" in bad:
        assert str(MAX_STEPS) in str(error.value), "the cap is stated"


def test_the_smallest_device_holds_one_small_segment():
    widget = SegmentsWidget(steps=[AllocatorStep("malloc", "A", 1)], capacity=3 * MIB, non_torch=MIB)
    (frames,) = widget.map["frames"].values()
    assert not frames[-1]["error"]
    assert figures(frames[-1])["device_free"] == "0 B"


def test_every_sentence_is_in_the_readers_language():
    noted = [replace(step, note="说明。") for step in STORY]
    steps = [
        *noted,
        AllocatorStep("malloc", "B", 9 * GIB),
        AllocatorStep("record_stream", "survivor", stream=2),
        AllocatorStep("free", "survivor"),
    ]
    made = {lang: SegmentsWidget(lang, steps=steps, capacity=8 * GIB, non_torch=MIB) for lang in LANGUAGES}
    (english,), (chinese,) = (made[lang].map["frames"].values() for lang in LANGUAGES)
    assert all("说明" in frame["status"] for frame in english[1:5])
    for ours, theirs in zip(english, chinese, strict=True):
        assert ours["rows"] == theirs["rows"]
        assert ours["status"].replace("说明。", "").isascii()
        assert any(ord(letter) > 0x4E00 for letter in theirs["status"])
    for key in ("title", "device", "step", "back", "forward", "hint", "empty", "scale_text", "legend"):
        assert made["en"].form[key] != made["zh"].form[key]
    assert made["en"].summary.isascii()
    assert "大块内存池" in made["zh"].summary
    assert made["zh"].text() == made["zh"].summary == SegmentsWidget(
        "zh", steps=steps, capacity=8 * GIB, non_torch=MIB
    ).summary  # fmt: skip


def test_the_photo_has_the_notes_names_and_choices_of_its_language():
    steps = [
        AllocatorStep("malloc", "权重", GIB, note="先放权重。"),
        AllocatorStep("malloc", "激活", 3 * MIB, note="Then more."),
    ]
    settings = {"默认": AllocatorSettings(), "expandable": SETTINGS["expandable"]}
    widget = SegmentsWidget("zh", steps=steps, capacity=8 * GIB, settings=settings)
    traits = photo_traits(widget)
    frames = traits["map"]["frames"]["默认"]
    assert "先放权重。" in frames[1]["status"]
    assert "激活" in frames[2]["status"]
    assert traits["form"]["setting"]["options"] == [["默认", "默认"], ["expandable", "expandable"]]


def test_what_is_synced_is_plain_json():
    widget = SegmentsWidget("zh", steps=some_steps(random.Random(2), 30), capacity=GIB, settings=SETTINGS)
    for trait in ("form", "map", "setting", "step"):
        value = getattr(widget, trait)
        assert json.loads(json.dumps(value, allow_nan=False)) == value
