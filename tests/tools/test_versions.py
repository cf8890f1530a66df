"""Another Python, torch or transformers: what pip is asked for, what it is left free to choose, what then runs."""

import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from minikv.extras import ENGINE
from tests.tools.without import environment_without
from tools import versions
from tools.environments import ROOT, Environment
from tools.versions import CORE_TESTS, TESTS, constraints_without, declared, main, name_of, requirement


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_the_oldest_is_what_the_package_declares_and_the_newest_any_that_it_allows(name):
    assert requirement("oldest", declared(name)) == f"{name}=={ENGINE[name]}"
    assert Requirement(requirement("newest", declared(name))).specifier == declared(name).specifier


def test_a_floor_is_found_among_other_bounds():
    assert requirement("oldest", Requirement("transformers!=5.18,>=5.17.1,<7")) == "transformers==5.17.1"


def test_a_release_by_its_number():
    assert requirement("5.17.0", declared("transformers")) == "transformers==5.17.0"
    with pytest.raises(InvalidVersion):
        requirement("latest", declared("transformers"))


@pytest.mark.parametrize(
    ("packages", "free"),
    [
        (set(), set()),
        ({"transformers"}, {"transformers", "tokenizers", "huggingface_hub", "safetensors"}),
        ({"torch"}, {"torch", "triton"}),
        ({"triton"}, {"triton"}),
    ],
)
def test_the_constraints_leave_free_what_a_release_chooses_and_keep_the_rest(packages, free):
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    kept = constraints_without(text, packages).splitlines()
    gone = {line.partition("==")[0] for line in text.splitlines() if line not in kept}
    assert gone >= free
    assert bool(gone) == bool(packages)
    assert {line.partition("==")[0] for line in kept} >= {"numpy", "pytest"}


def test_each_choice_has_an_environment_of_its_own():
    ours = sys.executable
    choices = [(True, ours, {}), (False, ours, {"torch": "oldest"}), (False, ours, {"torch": "2.9"})]
    choices += [(False, "/opt/python3.13", {}), (True, "/opt/python3.13", {}), (False, "/opt/python3.12", {})]
    assert len({name_of(*choice) for choice in choices}) == len(choices)
    assert name_of(True, "/opt/python3.13", {}) == "core-python3.13"


@pytest.fixture
def asked(monkeypatch):
    """What pip and pytest are asked for, written down instead of done."""
    done: list[list[str]] = []
    monkeypatch.setattr(Environment, "make", lambda self, installs: done.extend(installs))
    monkeypatch.setattr(Environment, "install", lambda self, *arguments: done.append(list(arguments)))
    monkeypatch.setattr(Environment, "versions", lambda self: {})
    monkeypatch.setattr(Environment, "python_version", lambda self: "Python")
    monkeypatch.setattr(versions, "run", lambda environment, tests: done.append(tests) or 0)
    return done


def test_the_core_is_installed_without_the_engine_and_runs_its_own_tests(asked):
    assert main(["--core"]) == 0
    (install, tests) = asked
    assert "." in install
    assert not [word for word in install if "[" in word]
    assert tests[: len(CORE_TESTS)] == CORE_TESTS


def test_what_pytest_is_given_is_passed_on(asked):
    assert main(["--transformers", "newest", "tests/models", "-x", "-k", "llama"]) == 0
    assert asked[-1] == ["tests/models", "-x", "-k", "llama"]
    assert "--upgrade" in asked[-2]


def test_a_core_has_no_release_of_torch(asked):
    with pytest.raises(SystemExit):
        main(["--core", "--torch", "oldest"])
    assert asked == []


def test_the_tests_are_there():
    assert all((ROOT / path.removeprefix("--ignore=")).exists() for path in TESTS + CORE_TESTS)


def test_the_tests_of_the_core_are_read_without_torch(tmp_path):
    modules = ("torch", "transformers", "triton", "safetensors", "accelerate")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *CORE_TESTS]
    environment = environment_without(tmp_path, ROOT, modules, modules)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
