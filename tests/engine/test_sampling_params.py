import dataclasses

import pytest

from minikv.engine import SamplingParams
from minikv.errors import ArgumentError

BAD = {
    "temperature": [-0.1, float("nan"), float("inf"), True, "1", None, 10**400],
    "top_p": [0, -0.5, 1.5, float("nan"), None],
    "top_k": [-2, 1.0, True, None],
    "min_p": [-0.1, 1.1, float("nan")],
    "seed": [-1, 0.5, True],
    "max_tokens": [0, -1, 2.0, True, None],
    "stop": ["", ["a", ""], [1], 5, {"a"}],
    "stop_token_ids": [[-1], [True], 5, "12", [1.0]],
    "logprobs": [-1, 1.5, True],
    "n": [0, -1, True, 1.0, None],
    "ignore_eos": [0, 1, "yes", None],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, bad in BAD.items() for value in bad])
def test_a_bad_value_is_refused_by_name_in_both_languages(field, value):
    with pytest.raises(ArgumentError) as error:
        SamplingParams(**{field: value})
    assert field in error.value.text("en")
    assert field in error.value.text("zh")
    assert error.value.text("en") != error.value.text("zh")


def test_the_ends_of_every_range_are_accepted():
    SamplingParams(
        temperature=0, top_p=1, top_k=0, min_p=0, seed=0, max_tokens=1, logprobs=0, n=1, ignore_eos=True
    )
    SamplingParams(
        temperature=2.5, top_p=1e-9, top_k=5, min_p=1, seed=2**40, max_tokens=10**6, logprobs=20, n=8
    )


def test_the_end_of_sequence_token_ends_a_sequence_unless_told_otherwise():
    assert SamplingParams().ignore_eos is False
    assert SamplingParams(ignore_eos=True) != SamplingParams()


def test_lists_become_tuples_and_nothing_can_be_changed():
    params = SamplingParams(stop="end", stop_token_ids=[3, 4])
    assert params.stop == ("end",)
    assert params.stop_token_ids == (3, 4)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert hash(params) == hash(SamplingParams(stop=("end",), stop_token_ids=(3, 4)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2
