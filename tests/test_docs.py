"""What the documents name is there: files, modules, targets of make. The tree of the architecture names every file."""

import fnmatch
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = "minikv|tools|tests|benchmarks|docs|notebooks|solutions|exercises"
# A contribution is walked through with files that are not there yet: ``test_contributing.py`` writes them.
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("README*.md")]
    if not path.name.startswith("contributing")
)
PATH = re.compile(rf"(?<![\w/.:-])((?:{OURS})/[\w./-]*\w)")
MODULE = re.compile(r"(?<![\w/.-])((?:minikv|tools|tests|benchmarks)(?:\.\w+)+)(?!\w*/)")
TARGET = re.compile(r"(?:`|^ +)make ([a-z][\w-]*)", re.MULTILINE)
NAMED = re.compile(r"(?<![\w/])[\w*]+\.py\b")


def is_there(name: str) -> bool:
    """A module, or a name inside of one: "minikv.plan.roofline.decode_work"."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:end])
        file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
        if file.is_file():
            return end == len(parts) or bool(
                re.search(rf"\b{parts[end]}\b", file.read_text(encoding="utf-8"))
            )
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_is_there(document):
    text = document.read_text(encoding="utf-8")
    paths = {path for path in PATH.findall(text) if "NAME" not in path}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert [name for name in sorted(set(MODULE.findall(text))) if not is_there(name)] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)[1].split()
    assert [name for name in sorted(set(TARGET.findall(text))) if name not in targets] == []


def tree() -> dict[Path, list[str]]:
    """{folder: the files that the tree of the package names in it}; a name may be a pattern."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named: dict[Path, list[str]] = {}
    above: list[tuple[int, Path]] = []  # the folders that the line is in, each with its indent
    for line in text[text.index("    minikv/\n") : text.index("    notebooks/src/")].splitlines():
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        folder = re.match(r" +(\w+)/(\s|$)", line)
        if folder:
            above.append((indent, (above[-1][1] if above else ROOT) / folder[1]))
        named.setdefault(above[-1][1], []).extend(NAMED.findall(line))
    return named


def test_the_tree_of_the_package_names_every_file():
    """Of the folders whose files it names; of the others it says what they hold, and of ``gpu`` some are enough."""
    named = tree()
    assert len(named) > 12
    for folder, patterns in named.items():
        files = {file.name for file in folder.glob("*.py") if not file.name.startswith("__")}
        assert [pattern for pattern in patterns if not fnmatch.filter(files, pattern)] == [], folder
        if patterns and folder.name != "gpu":
            known = {file for pattern in patterns for file in fnmatch.filter(files, pattern)}
            assert files == known, folder


@pytest.mark.parametrize(("column", "folder"), [(2, "minikv/nano"), (3, "minikv")])
def test_our_names_in_the_page_of_names_are_there(column, folder):
    rows = [
        line.split("|")
        for line in (ROOT / "docs" / "names.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row[column])}
    assert len(names) > 20
    files = [path for path in (ROOT / folder).rglob("*.py") if folder != "minikv" or "nano" not in path.parts]
    words = {path.stem for path in files}.union(
        *(re.findall(r"\w+", path.read_text(encoding="utf-8")) for path in files)
    )
    assert sorted(names - words) == []
