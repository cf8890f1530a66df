"""What pyproject.toml says of the project: where it lives, which links follow from that, how it is installed.

    python -m tools.project                     prints version, address and what pip is told to install
    python -m tools.project --move URL          another address (a fork's): pyproject.toml and the READMEs say it
    python -m tools.project --tag v0.1.0        whether the tag of a release is that of this version

The address stands in pyproject.toml alone. Notebooks are composed with it; a Markdown file on GitHub cannot read it,
so a test compares (``tests/test_publishing.py``).
"""

import argparse
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent
BRANCH = "main"
PAGES = ("README.md", "README.zh.md")
ADDRESSED = (
    *PAGES,
    "CONTRIBUTING.md",
    "CITATION.cff",
)  # what GitHub shows or reads as it stands, with the address


@dataclass(frozen=True)
class Project:
    """``repository`` has no slash at its end. ``on_index``: a release can be had from the package index."""

    name: str
    repository: str
    on_index: bool

    @property
    def requirement(self) -> str:
        """What a setup cell tells pip to install: the release, or the repository as long as there is none.

        With what computes, of which pip replaces nothing where the versions suffice, as on Colab.
        """
        wanted = f"{self.name}[engine]"
        return wanted if self.on_index else f"{wanted} @ git+{self.repository}"

    def file(self, path: str) -> str:
        """The page of ``path`` on the main branch."""
        return f"{self.repository}/blob/{BRANCH}/{path}"

    def colab(self, path: str) -> str:
        """The address that opens the notebook ``path`` in Colab, which reads from GitHub."""
        place = urlsplit(self.repository).path
        return f"https://colab.research.google.com/github{place}/blob/{BRANCH}/{path}"


@cache
def read_project(root: Path = ROOT) -> Project:
    """Raises ``ValueError`` for an address that Colab could not open."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    repository = table["project"]["urls"]["Source"]
    _check(repository)
    return Project(table["project"]["name"], repository, table["tool"]["minikv"]["on-index"])


def move(repository: str, root: Path = ROOT) -> list[Path]:
    """Write another address where the old one stands; returns the files that changed. Raises ``ValueError``."""
    _check(repository)
    old = read_project(root)
    new = Project(old.name, repository, old.on_index)
    changed = []
    for name in ("pyproject.toml", *ADDRESSED):
        path = root / name
        before = path.read_text(encoding="utf-8")
        after = before.replace(old.colab(""), new.colab("")).replace(old.repository, new.repository)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    read_project.cache_clear()
    return changed


def _check(repository: str) -> None:
    parts = urlsplit(repository)
    if (parts.scheme, parts.netloc) != ("https", "github.com") or len(parts.path.split("/")) != 3:
        raise ValueError(
            f"{repository}: Colab opens notebooks of GitHub. Write https://github.com/OWNER/NAME, no slash at the end."
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.project", description=__doc__.splitlines()[0])
    parser.add_argument("--move", metavar="URL", help="the repository's new address")
    parser.add_argument("--tag", help="fails unless it is the version's")
    options = parser.parse_args(arguments)
    from minikv import __version__

    try:
        if options.tag is not None and options.tag != f"v{__version__}":
            raise ValueError(
                f"The tag is {options.tag}, the version {__version__}: tag v{__version__}, or change __version__ first."
            )
        if options.move:
            for path in move(options.move):
                print(f"written   {path.name}")
            print("Now: python -m tools.notebooks build")
        else:
            project = read_project()
            print(f"version      {__version__}")
            print(f"repository   {project.repository}")
            print(f'install      pip install "{project.requirement}"')
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
