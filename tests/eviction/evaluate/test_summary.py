"""What figures say beside the full cache, and when they say nothing."""

import pytest

from minikv.eviction.evaluate.rows import Row
from minikv.eviction.evaluate.settings import Question
from minikv.eviction.evaluate.summary import judged, newcombe, summaries
from minikv.eviction.evaluate.ways import Way

EVICTED = Way("streaming", 0.25)


def row(way, right, asked=20, depth=None, said=((1, 2),), task="niah"):
    return Row(Question(task, 97, depth), way, right, asked, said)


def test_the_interval_of_a_difference_is_newcombes():
    low, high = newcombe((56, 70), (48, 80))  # the first example of his paper, method 10
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


@pytest.mark.parametrize(
    ("ours", "full", "verdict"),
    [
        ((2, 20), (20, 20), "lower"),
        ((20, 20), (20, 20), "few"),
        ((17, 20), (20, 20), "few"),
        ((400, 400), (400, 400), "same"),
        ((395, 400), (400, 400), "same"),
        ((330, 400), (400, 400), "lower"),
        ((60, 100), (20, 100), "higher"),
        ((1, 400), (0, 400), "fails"),
    ],
)
def test_what_a_difference_says(ours, full, verdict):
    assert judged(newcombe(ours, full), full[0] / full[1]) == verdict


def test_depths_are_joined_and_shown_and_the_full_cache_is_the_reference():
    rows = [row(Way(), 20, depth=0.0), row(EVICTED, 20, depth=0.0)]
    rows += [row(Way(), 20, depth=0.5), row(EVICTED, 0, depth=0.5, said=((1, 3),))]
    (found,) = summaries(rows)
    full, evicted = found.lines
    assert (full.verdict, full.share, full.same, full.asked) == ("reference", 1, 1, 40)
    assert (evicted.verdict, evicted.share, evicted.same) == ("lower", 0.5, 0.75)
    assert evicted.depths == {0.0: 1, 0.5: 0}
    for lang, words in (("en", "lower"), ("zh", "更低")):
        shown = found.shown(lang)
        assert words in shown.text()
        assert len({len(each) for each in (shown.head, *shown.rows)}) == 1
    assert [way["verdict"] for way in found.as_dict()["ways"]] == ["reference", "lower"]


def test_a_way_without_a_full_cache_beside_it_is_left_out():
    assert summaries([row(EVICTED, 3)]) == []
    rows = [row(Way(), 20), row(EVICTED, 3, task="multikey")]
    assert [(each.task, len(each.lines)) for each in summaries(rows)] == [("niah", 1)]
