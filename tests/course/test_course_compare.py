"""What counts as the same answer."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from minikv.course.compare import difference, mismatch, shown, size


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Plain:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (2, 2),
        (2, np.int64(2)),
        (0.1 + 0.2, 0.3),
        (2.0, 2),
        (math.nan, math.nan),
        (math.inf, math.inf),
        ([1, 2], (1, 2)),
        ({"a": [1.0]}, {"a": (1.0 + 1e-12,)}),
        (Point(1, 0.3), Point(1, 0.1 + 0.2)),
        (Plain([1]), Plain([1])),
        (torch.tensor([1.0]), torch.tensor([1.0 + 1e-7])),
        (torch.tensor([1.0], requires_grad=True), torch.tensor([1.0])),
        (np.array([1.0, math.nan]), np.array([1.0, math.nan])),
        (None, None),
        (True, np.bool_(True)),
    ],
)
def test_equal(expected, got):
    assert difference(expected, got) is None


@pytest.mark.parametrize(
    ("expected", "got", "differs"),
    [
        (2, 3, "value"),
        (2, 2.0, "type"),
        (1, True, "type"),
        (True, 1, "type"),
        (2, "2", "type"),
        (2, None, "none"),
        (2.0, 2.0 + 1e-6, "value"),
        (2.0, math.nan, "value"),
        (2.0, "2.0", "type"),
        (2.0, True, "type"),
        (2.0, 10**400, "value"),
        (2**60, 2**60 + 1, "value"),
        ([1, 2], [1, 2, 3], "length"),
        ([1, 2], [2, 1], "value"),
        ([1, 2], iter([1, 2]), "type"),
        ({"a": 1}, {"b": 1}, "keys"),
        ({"a": 1}, {"a": 1.0}, "type"),
        (torch.zeros(2, 3), torch.zeros(3, 2), "shape"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float16), "dtype"),
        (torch.zeros(2), torch.ones(2), "value"),
        (torch.zeros(2), [0.0, 0.0], "type"),
        (2, torch.tensor(2), "type"),
        (np.zeros(2), np.zeros(2, dtype=np.int64), "dtype"),
        (np.array([1, 2]), np.array([1, 3]), "value"),
        (Point(1, 2.0), Point(1, 3.0), "value"),
        (Plain(1), Plain(2), "value"),
        (None, 0, "type"),
    ],
)
def test_different(expected, got, differs):
    assert difference(expected, got) == differs


@pytest.mark.parametrize(
    ("expected", "got", "kind", "path", "due", "yours"),
    [
        (1, 2, "value", "", 1, 2),
        ({"a": [1, 2]}, {"a": [1, 3]}, "value", "['a'][1]", 2, 3),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, "type", "['a']['b']", 1, 1.0),
        ([[1], [2]], [[1], [2, 3]], "length", "[1]", [2], [2, 3]),
        ([{"a": 1}], [{"b": 1}], "keys", "[0]", {"a": 1}, {"b": 1}),
        ([1, [2]], [1, None], "none", "[1]", [2], None),
        ({"p": Point(1, 2.0)}, {"p": Point(3, 2.0)}, "value", "['p'].x", 1, 3),
        ([Plain([1])], [Plain([2])], "value", "[0].value[0]", 1, 2),
    ],
)
def test_a_mismatch_inside_is_named_with_its_place_and_its_own_two_values(
    expected, got, kind, path, due, yours
):
    found = mismatch(expected, got)
    assert (found.kind, found.path, found.expected, found.got) == (kind, path, due, yours)


def test_a_mismatch_of_tensors_in_a_dict_is_that_of_the_tensors():
    found = mismatch({"k": [torch.zeros(2, 3)]}, {"k": [torch.zeros(3, 2)]})
    assert (found.kind, found.path) == ("shape", "['k'][0]")
    assert tuple(found.got.shape) == (3, 2)
    assert mismatch({"k": torch.zeros(2)}, {"k": torch.zeros(2)}) is None


def test_a_list_inside_itself_ends():
    endless, other = [1], [1]
    endless.append(endless)
    other.append(other)
    assert difference(endless, other) == "value"


def test_size_orders_cases_as_a_reader_would():
    ordered = [{"n": 1}, {"n": -2}, {"n": [1, 2]}, {"n": [1, 2, 3]}, {"n": torch.zeros(4, 4)}]
    assert sorted(ordered, key=size) == ordered
    assert math.isfinite(size({"n": math.inf, "m": math.nan, "name": "abc", "flag": None}))


def test_long_values_are_cut():
    assert len(shown(list(range(10_000)))) < 400
    assert shown([1]) == "[1]"
