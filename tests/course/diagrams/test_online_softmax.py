"""The diagram of the online softmax: each step's figures, and sums to scale."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from minikv.course.diagrams import SoftmaxStep, online_softmax
from minikv.errors import ArgumentError
from tests.course.diagrams.test_diagrams import said

STEPS = [
    SoftmaxStep([1.0, -2.0], 0.0, 1.0, 1.05, 0.3),
    SoftmaxStep([3.0, 0.5], 0.14, 3.0, 1.23, 0.9),
    SoftmaxStep([2.0], 1.0, 3.0, 1.6, 1.2),
]


def test_each_step_says_its_figures():
    words, text = said(online_softmax(STEPS)), online_softmax(STEPS).text()
    for step in STEPS:
        shown = {f"m = {step.largest:.2f}", f"l × {step.rescale:.2f}", f"l = {step.total:.2f}"}
        assert {*shown, f"a/l = {step.result:.4f}"} <= set(words)
        assert all(one in text for one in shown)


def test_the_rescaled_sum_and_what_is_added_are_to_scale():
    tree = ElementTree.fromstring(online_softmax(STEPS).svg)
    new = [
        float(box.get("height"))
        for box in tree.iter("{http://www.w3.org/2000/svg}rect")
        if box.get("width") == "26" and box.get("stroke") is None
    ]
    kept = [step.rescale * before.total for before, step in pairwise(STEPS)]
    added = [STEPS[0].total, *(step.total - one for step, one in zip(STEPS[1:], kept, strict=True))]
    drawn = [added[0], kept[0], added[1], kept[1], added[2]]
    assert [one / new[0] for one in new] == pytest.approx([one / drawn[0] for one in drawn], abs=0.01)


def test_no_step_is_refused():
    with pytest.raises(ArgumentError):
        online_softmax([])
