"""The oldest and the newest transformers: what pip is asked for, and what it is left free to choose."""

import pytest
from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from minikv.course.packages import NEEDED
from tools.environments import ROOT
from tools.transformers_versions import TESTS, constraints_without, declared, requirement


def test_the_oldest_is_what_the_package_declares():
    assert requirement("oldest", declared()) == f"transformers=={NEEDED['transformers']}"
    assert requirement("oldest", Requirement("transformers!=5.18,>=5.17.1,<7")) == "transformers==5.17.1"


def test_the_newest_is_any_that_the_package_allows():
    assert Requirement(requirement("newest", declared())).specifier == declared().specifier


def test_a_release_by_its_number():
    assert requirement("5.17.0", declared()) == "transformers==5.17.0"
    with pytest.raises(InvalidVersion):
        requirement("latest", declared())


def test_the_constraints_leave_free_what_transformers_chooses_and_keep_the_rest():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    kept = constraints_without(text).splitlines()
    gone = {line.partition("==")[0] for line in text.splitlines() if line not in kept}
    assert {"transformers", "tokenizers", "huggingface_hub", "safetensors"} <= gone
    assert {line.partition("==")[0] for line in kept} >= {"torch", "numpy", "pytest"}


def test_the_tests_are_there():
    assert all((ROOT / path).is_dir() for path in TESTS)
