"""What pyproject.toml says of the project: where it lives, which links follow from that, how it is installed.

    python -m tools.project                     prints version, address and what pip is told to install
    python -m tools.project --move URL          another address (a fork's): pyproject.toml and the READMEs say it
    python -m tools.project --site-online       GitHub Pages shows the site: pyproject.toml and the READMEs say where
    python -m tools.project --tag v0.1.0        whether the tag of a release is that of this version

The address stands in pyproject.toml alone. Notebooks are composed with it; a Markdown file on GitHub cannot read it,
so a test compares (``tests/test_publishing.py``).
"""

import argparse
import sys
import tomllib
from dataclasses import dataclass, replace
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


# What leads to the site once it is online, in place of what leads to the repository: {file: [(before, after)]}.
ONLINE = {
    "pyproject.toml": [
        ("on-site = false", "on-site = true"),
        ("[project.urls]\n", '[project.urls]\nHomepage = "{site}/"\n'),
    ],
    "README.md": [
        ("[Read the lessons](notebooks/en/00_start_here.ipynb)", "[Read online]({site}/en/)"),
        (
            "[In the browser](docs/site.md), after `make site ARGS=--serve`:",
            "[In the browser]({site}/en/playground.html):",
        ),
    ],
    "README.zh.md": [
        ("[阅读课程](notebooks/zh/00_start_here.ipynb)", "[在线阅读]({site}/zh/)"),
        (
            "[在浏览器里](docs/site.md)（英文说明）运行 `make site ARGS=--serve` 之后：",
            "[在浏览器里]({site}/zh/playground.html)：",
        ),
    ],
}


@dataclass(frozen=True)
class Project:
    """``repository`` has no slash at its end. ``on_index``: a release can be had from the package index; ``on_site``:
    GitHub Pages shows the site.
    """

    name: str
    repository: str
    on_index: bool
    on_site: bool = False

    @property
    def site(self) -> str:
        """The address that GitHub Pages gives the site, without a slash at its end."""
        owner, name = urlsplit(self.repository).path.strip("/").split("/")
        return f"https://{owner.lower()}.github.io/{name}"

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
    ours = table["tool"]["minikv"]
    return Project(table["project"]["name"], repository, ours["on-index"], ours["on-site"])


def move(repository: str, root: Path = ROOT) -> list[Path]:
    """Write another address where the old one stands; returns the files that changed. Raises ``ValueError``."""
    _check(repository)
    old = read_project(root)
    new = replace(old, repository=repository)
    changed = []
    for name in ("pyproject.toml", *ADDRESSED):
        path = root / name
        before = path.read_text(encoding="utf-8")
        after = before.replace(old.colab(""), new.colab("")).replace(old.repository, new.repository)
        after = after.replace(f"{old.site}/", f"{new.site}/")
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    read_project.cache_clear()
    return changed


def go_online(root: Path = ROOT) -> None:
    """Write the site's address into pyproject.toml and the READMEs. Raises ``ValueError`` where it stands already."""
    project = read_project(root)
    if project.on_site:
        raise ValueError(f"{project.site} stands in pyproject.toml and the READMEs already.")
    for name, changes in ONLINE.items():
        text = (root / name).read_text(encoding="utf-8")
        for before, after in changes:
            text = text.replace(before, after.format(site=project.site), 1)
        (root / name).write_text(text, encoding="utf-8")
    read_project.cache_clear()


def _check(repository: str) -> None:
    parts = urlsplit(repository)
    if (parts.scheme, parts.netloc) != ("https", "github.com") or len(parts.path.split("/")) != 3:
        raise ValueError(
            f"{repository}: Colab opens notebooks of GitHub. Write https://github.com/OWNER/NAME, no slash at the end."
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.project", description=__doc__.splitlines()[0])
    parser.add_argument("--move", metavar="URL", help="the repository's new address")
    parser.add_argument("--site-online", action="store_true", help="once: GitHub Pages shows the site")
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
        elif options.site_online:
            go_online()
            print(f"written   {', '.join(ONLINE)}: {read_project().site}")
        else:
            project = read_project()
            print(f"version      {__version__}")
            print(f"repository   {project.repository}")
            print(f"site         {project.site}{'' if project.on_site else ' (not online yet)'}")
            print(f'install      pip install "{project.requirement}"')
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
