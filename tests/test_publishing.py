"""One address, one version: the links to our own repository, the setup cell, the changelog, the steps of a release."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import minikv
from tests.in_turn import in_turn
from tools.project import ADDRESSED, ONLINE, PAGES, Project, go_online, main, move, read_project

ROOT = Path(__file__).parent.parent
OURS = read_project()
LINK = re.compile(
    r"https://(?:www\.)?(?:github\.com|raw\.githubusercontent\.com|colab\.research\.google\.com/github)"
    r"/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(?P<rest>[^\s)\"'`<>\\]*)"
)
NAMED_BRANCH = re.compile(r"/(?:blob|tree|raw)/[\w.-]+/(?P<path>[^#?]+)")
TEXTS = [
    *(ROOT / page for page in (*ADDRESSED, "CHANGELOG.md", "RESULTS.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for folder in ("notebooks", "solutions") for path in sorted((ROOT / folder / "src").glob("*.py"))),
    *(
        path
        for folder in ("notebooks", "solutions", "exercises")
        for path in sorted((ROOT / folder).rglob("*.ipynb"))
    ),
]


def links_of_ours(text: str) -> list[tuple[str, str | None]]:
    """(link, path in the repository or None) of each link that means this repository, whatever it spells."""
    found = []
    for link in LINK.finditer(text):
        named = NAMED_BRANCH.match(link["rest"])
        path = named["path"] if named else None
        if link["name"].removesuffix(".git").lower() == OURS.name or (path and (ROOT / path).is_file()):
            found.append((link[0], path))
    return found


def prose(path: Path) -> str:
    """The text of a file; of a notebook its sources, not its pictures."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


@in_turn("path", TEXTS)
def test_every_link_to_our_repository_begins_with_its_address_and_leads_somewhere(path):
    for link, target in links_of_ours(prose(path)):
        assert link.startswith((OURS.repository, OURS.colab(""))), link
        # GitHub leads from the address of a file to that of a folder, where it is one.
        assert target is None or (ROOT / target).exists(), link


def test_a_link_to_another_owner_or_a_lost_file_would_be_seen():
    other = "[x](https://github.com/somebody/minikv/blob/main/README.md)"
    renamed = "[x](https://colab.research.google.com/github/somebody/course/blob/main/README.md)"
    foreign = "[x](https://github.com/jupyter/nbgrader/blob/main/none/of/ours.md)"
    for text in (other, renamed):
        [(link, path)] = links_of_ours(text)
        assert not link.startswith((OURS.repository, OURS.colab("")))
        assert path == "README.md"
    assert links_of_ours(foreign) == []


def test_the_readmes_open_the_first_lesson_in_colab_and_link_every_lesson():
    for page in PAGES:
        lang = "zh" if ".zh" in page else "en"
        first = OURS.colab(f"notebooks/{lang}/00_start_here.ipynb")
        assert [link for link, _ in links_of_ours(prose(ROOT / page)) if link.startswith(OURS.colab(""))] == [
            first
        ]
        linked = re.findall(rf"\]\(notebooks/{lang}/(\w+)\.ipynb\)", prose(ROOT / page))
        assert set(linked) == {path.stem for path in (ROOT / "notebooks" / lang).glob("*.ipynb")}


@pytest.mark.parametrize("page", PAGES)
def test_the_readmes_install_what_the_setup_cell_installs(page):
    asked = re.findall(r'pip install "([^"]+)"', prose(ROOT / page))
    assert [line.replace("[lab]", "[engine]") for line in asked] == [OURS.requirement]
    said = {"README.md": "not on the package index yet", "README.zh.md": "尚未发布到软件包索引"}[page]
    assert (said in prose(ROOT / page)) != OURS.on_index


def test_no_code_spells_the_address():
    """Only pyproject.toml does. What is generated, and what GitHub shows as it stands, is held by the tests above."""
    files = [ROOT / "Makefile", ROOT / ".ci/run", *(ROOT / "minikv").rglob("*.*")]
    files += [path for folder in ("tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    files += [path for folder in ("notebooks", "solutions") for path in (ROOT / folder / "src").glob("*.py")]
    place = OURS.repository.removeprefix("https://")
    spelled = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts and place.encode() in path.read_bytes()
    ]
    assert spelled == []


def test_moving_writes_the_new_address_wherever_the_old_one_stood(tmp_path, monkeypatch):
    for name in ("pyproject.toml", *ADDRESSED):
        shutil.copy(ROOT / name, tmp_path / name)
    changed = move("https://github.com/someone/kv", tmp_path)
    assert [path.name for path in changed] == ["pyproject.toml", *ADDRESSED]
    moved = read_project(tmp_path)
    assert moved == Project(OURS.name, "https://github.com/someone/kv", OURS.on_index, OURS.on_site)
    for name in ("pyproject.toml", *ADDRESSED):
        before, after = ((folder / name).read_text(encoding="utf-8") for folder in (ROOT, tmp_path))
        assert OURS.repository not in after
        assert OURS.colab("") not in after
        assert after.count(moved.colab("")) == before.count(OURS.colab(""))
    assert move(OURS.repository, tmp_path)
    for name in ("pyproject.toml", *ADDRESSED):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.parametrize("page", PAGES)
def test_a_readme_leads_to_the_site_once_it_is_online(page):
    assert (f"]({OURS.site}/" in prose(ROOT / page)) == OURS.on_site
    assert ("make site ARGS=--serve" in prose(ROOT / page)) != OURS.on_site
    assert f'Homepage = "{OURS.site}/"' in prose(ROOT / "pyproject.toml") or not OURS.on_site


@pytest.mark.skipif(OURS.on_site, reason="the site is online")
def test_going_online_writes_the_site_s_address_everywhere(tmp_path):
    for name in {*ONLINE, *ADDRESSED}:
        shutil.copy(ROOT / name, tmp_path / name)
    move("https://github.com/Someone/kv", tmp_path)
    go_online(tmp_path)
    project, site = read_project(tmp_path), "https://someone.github.io/kv"
    assert project.on_site
    assert project.site == site
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls == {"Homepage": f"{site}/", "Source": project.repository}
    for page in PAGES:
        text, lang = (tmp_path / page).read_text(encoding="utf-8"), "zh" if ".zh" in page else "en"
        assert f"]({site}/{lang}/)" in text
        assert f"]({site}/{lang}/playground.html)" in text
        assert "--serve" not in text
        assert len(text.splitlines()) <= 120
    with pytest.raises(ValueError, match="already"):
        go_online(tmp_path)
    move("https://github.com/other/kv", tmp_path)
    assert "someone.github.io" not in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "address",
    [
        "https://github.com/minikv/minikv/",
        "http://github.com/a/b",
        "https://gitlab.com/a/b",
        "git@github.com:a/b",
        "",
    ],
)
def test_an_address_that_colab_cannot_open_is_refused_and_nothing_changes(address, tmp_path, capsys):
    for name in ("pyproject.toml", *PAGES):
        shutil.copy(ROOT / name, tmp_path / name)
    with pytest.raises(ValueError, match="OWNER/NAME"):
        move(address, tmp_path)
    assert (tmp_path / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()
    if address:
        assert main(["--move", address]) == 1
        assert "OWNER/NAME" in capsys.readouterr().err


def test_the_version_stands_in_one_place(capsys):
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert table["project"]["dynamic"] == ["version", "readme"]
    assert "version" not in table["project"]
    source = ROOT / table["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'^__version__ = "([^"]+)"$', source.read_text(), re.MULTILINE) == [minikv.__version__]
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+|\.dev\d+)?", minikv.__version__)
    assert main([]) == 0
    said = capsys.readouterr().out
    assert minikv.__version__ in said
    assert OURS.requirement in said


@pytest.fixture(scope="module")
def metadata():
    """What the build writes into a wheel, and the package index reads."""
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    return ProjectMetadata(str(ROOT), PluginManager())


def test_the_build_reads_that_version(metadata):
    assert metadata.version == minikv.__version__


def test_every_link_and_picture_of_the_readme_works_on_the_package_index(metadata):
    from readme_renderer import markdown

    assert metadata.core.readme_content_type == "text/markdown"
    shown = markdown.render(metadata.core.readme)
    addresses = re.findall(r'(?:href|src)="([^"]*)"', shown)
    own = [each for each in addresses if each.startswith(OURS.repository + "/")]
    for address in addresses:
        assert address.startswith(("https://", "#")), address
    for address in own:
        kind, branch, path = address.removeprefix(OURS.repository + "/").partition("?")[0].split("/", 2)
        assert (kind, branch) in {("blob", "main"), ("raw", "main")}
        assert (ROOT / path.partition("#")[0]).exists(), address
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(own) == len(re.findall(r"\]\((?!https?:|#)", page)) + page.count("<img ") > 40


def test_the_changelog_begins_with_this_version_and_says_what_no_gpu_measured():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (\S+)", text, re.MULTILINE)[1]
    assert first == minikv.__version__
    measured = sorted(path.name.split(".")[0] for path in (ROOT / "benchmarks/results").glob("*.cuda.json"))
    said = re.search(r"^- Benchmarks with figures of a GPU: ([^.]+)\.$", text, re.MULTILINE)[1]
    assert said == (", ".join(f"`{name}`" for name in measured) or "none")


def test_the_changelog_counts_what_is_there():
    from minikv.plan.spec.architectures import ARCHITECTURES

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f" {len(ARCHITECTURES)} architectures" in text
    assert ("not released yet" in text.split("###")[0]) == (not OURS.on_index)
    stems = [path.stem for path in (ROOT / "notebooks/src").glob("*.py")]
    lessons = sorted(stem.split("_")[0] for stem in stems if stem[0].isdigit())
    appendices = sorted(stem[0] for stem in stems if re.match(r"[A-Z]_", stem))  # the GPU lab is none
    assert f"Lessons {lessons[0]} to {lessons[-1]} and appendices {appendices[0]} to {appendices[-1]}" in text


RELEASING = (ROOT / "docs/releasing.md").read_text(encoding="utf-8")
COMMANDS = [
    line.strip()
    for block in re.findall(r"```bash\n(.*?)```", RELEASING, re.DOTALL)
    for line in block.splitlines()
]


def test_every_step_has_a_command_and_the_steps_are_counted():
    steps = re.findall(r"^(\d+)\. ", RELEASING, re.MULTILINE)
    assert [int(step) for step in steps] == list(range(1, len(steps) + 1))
    parts = re.split(r"^\d+\. ", RELEASING, flags=re.MULTILINE)[1:]
    assert [
        number for number, part in enumerate(parts, 1) if "```bash" not in part and "By hand" not in part
    ] == []


@in_turn("command", [line for line in COMMANDS if line])
def test_what_a_step_runs_exists(command):
    if command.startswith("make "):
        rules = re.findall(r"^(?!\.)([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert command.split()[1] in " ".join(rules).split()
    for module in re.findall(r"-m (\S+)", command):
        brought = any(f"pip install {module}" in line for line in COMMANDS)
        assert brought or module == "venv" or importlib.util.find_spec(module), module
    for path in re.findall(r"(?:tests|docs|benchmarks|minikv)/\S+", command):
        assert (ROOT / path).exists(), path
    for subcommand in re.findall(r"bin/minikv (\w[\w-]*)", command):
        assert (ROOT / "minikv/cli" / f"{subcommand.replace('-', '_')}.py").is_file(), subcommand


def test_the_options_that_a_step_names_are_known():
    """Each of our own tools says its options itself."""
    named: dict[str, set[str]] = {}
    for line in re.findall(r"-m tools\.[^`\n]+", RELEASING):
        tool, *words = line.removeprefix("-m ").split()
        named.setdefault(tool, set()).update(word for word in words if word.startswith("--"))
    assert set(named) == {"tools.project", "tools.notebooks", "tools.results", "tools.gpu"}
    for tool, options in named.items():
        extra = ["build"] if tool == "tools.notebooks" else []
        done = subprocess.run(
            [sys.executable, "-m", tool, *extra, "--help"], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0
        assert not [option for option in options if option not in done.stdout]


def test_links_between_the_documents_lead_somewhere():
    for page in [ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!http|repo:)([^)#]+)", text):
            assert (page.parent / target).exists(), (page.name, target)
