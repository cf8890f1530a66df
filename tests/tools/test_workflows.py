"""What GitHub and others read in this repository: workflows, forms, the citation, containers. It holds here."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import minikv
from tools.project import main, read_project

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d")
# What a field of an issue form must have (docs.github.com, "Syntax for GitHub's form schema").
FIELDS = {"markdown": {"value"}, "textarea": {"label"}, "input": {"label"}, "dropdown": {"label", "options"}}


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def named(path: Path) -> str:
    return path.stem


def assert_runs_here(command: str) -> None:
    """``make`` knows the target, Python the module; the rest belongs to the machine of the workflow."""
    words = command.split()
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[0] == ".venv/bin/python":
        assert words[1] == "-m"
        assert importlib.util.find_spec(words[2]) is not None, command
    else:
        assert words[:2] == ["sudo", "apt-get"], command


@pytest.mark.parametrize("path", WORKFLOWS, ids=named)
def test_a_workflow_runs_commands_of_this_repository_and_actions_of_a_fixed_commit(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        if "uses:" in line:
            assert PINNED.search(line), line
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    commands = [line for step in steps for line in step.get("run", "").splitlines()]
    for command in commands:
        assert_runs_here(command)
    assert any(command.startswith("make ") for command in commands)


def assert_keys(found: dict, known: set[str], needed: set[str], where: object) -> None:
    assert set(found) <= known, (where, set(found) - known)
    assert needed <= set(found), (where, needed - set(found))


@pytest.mark.parametrize("path", WORKFLOWS, ids=named)
def test_a_workflow_has_the_form_that_github_reads(path):
    """The keys are those of docs.github.com, "Workflow syntax"; each job says what it may do and when it is ended."""
    workflow = read(path)
    workflow["on"] = workflow.pop(True)  # YAML 1.1 reads on as true
    top = {"name", "run-name", "on", "permissions", "env", "defaults", "concurrency", "jobs"}
    assert_keys(workflow, top, {"name", "on", "permissions", "jobs"}, path.name)
    assert set(workflow["on"]) <= {"push", "pull_request", "workflow_dispatch", "schedule"}
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        known = {
            "name",
            "needs",
            "if",
            "permissions",
            "runs-on",
            "environment",
            "concurrency",
            "env",
            "defaults",
        }
        known |= {
            "strategy",
            "timeout-minutes",
            "steps",
            "outputs",
            "continue-on-error",
            "container",
            "services",
        }
        assert_keys(job, known, {"runs-on", "permissions", "timeout-minutes", "steps"}, (path.name, name))
        assert re.fullmatch(r"(ubuntu|macos|windows)-(latest|[\d.]+)", job["runs-on"])
        assert set(job["permissions"].values()) <= {"read", "write"}
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= set(workflow["jobs"])
        axes = set(job.get("strategy", {}).get("matrix", {}))
        assert set(re.findall(r"matrix\.(\w+)", str(job))) == axes
        for step in job["steps"]:
            keys = {"id", "name", "if", "uses", "with", "run", "env", "shell", "working-directory"}
            assert_keys(step, keys | {"timeout-minutes", "continue-on-error"}, set(), (path.name, step))
            assert ("uses" in step) != ("run" in step), step
            assert "with" not in step or "uses" in step, step
        ids = {step["id"] for step in job["steps"] if "id" in step}
        assert set(re.findall(r"steps\.(\w+)\.", str(job))) <= ids


def test_a_linter_of_workflows_finds_nothing():
    zizmor = Path(sys.executable).with_name("zizmor")
    done = subprocess.run(
        [zizmor, "--offline", "--no-progress", "--persona", "pedantic", ".github"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_python_that_the_package_names_is_tested():
    listed = [
        text.rsplit(" ", 1)[1] for text in PYPROJECT["project"]["classifiers"] if "Python :: 3." in text
    ]
    tested = read(ROOT / ".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == listed


@pytest.mark.parametrize("path", FORMS, ids=named)
def test_a_form_is_one_that_github_accepts_and_asks_in_both_languages(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"] if "id" in field]
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert FIELDS[field["type"]] <= set(field["attributes"])
        text = " ".join(value for value in field["attributes"].values() if isinstance(value, str))
        assert re.search("[a-zA-Z]", text)
        assert re.search("[\u4e00-\u9fff]", text) or "`" in text, field
    assert any(field["type"] != "markdown" for field in form["body"])


def test_the_citation_names_this_version_licence_and_address():
    citation, project = read(ROOT / "CITATION.cff"), read_project()
    assert citation["version"] == minikv.__version__
    assert citation["license"] == PYPROJECT["project"]["license"]
    assert citation["repository-code"] == project.repository
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_a_tag_is_that_of_the_version(capsys):
    assert main(["--tag", f"v{minikv.__version__}"]) == 0
    assert main(["--tag", "v99.0.0"]) == 1
    assert minikv.__version__ in capsys.readouterr().err


def test_the_hooks_before_a_commit_run_the_same_ruff():
    (hooks,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert f"ruff=={hooks['rev'].removeprefix('v')}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_container_for_developers_is_built_by_commands_of_this_repository():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    for command in container["postCreateCommand"].split(" && "):
        assert_runs_here(command)


def test_binder_and_the_class_install_what_the_constraints_name():
    lines = (ROOT / "binder" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (constraints,) = [line.removeprefix("-c ") for line in lines if line.startswith("-c ")]
    assert (ROOT / "binder" / constraints).resolve() == ROOT / "constraints.txt"
    assert ".[lab]" in lines
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert '-c constraints.txt ".[lab]"' in dockerfile
    modules = re.findall(r"python -m (\S+)", dockerfile)
    assert modules
    assert all(importlib.util.find_spec(each) for each in modules)
