"""Which files a branch changed: what differs from where it left main, committed or not.

The suite runs one language of a lesson, and both of a lesson that changed (docs/testing.md).
"""

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAINS = ("origin/main", "main")
_LESSON = re.compile(
    r"(?:notebooks|solutions|exercises)/(?:src|en|zh)/(\w+)\.(?:py|ipynb)|minikv/messages/lesson_(\w+)\.toml"
)


@cache
def changed_files(root: Path = ROOT) -> frozenset[str] | None:
    """Paths below ``root`` that differ from where this branch left main; on main itself, from the commit before.

    None where git cannot say: no repository, or a clone without that commit. Then everything may have changed.
    """
    if _git(root, "rev-parse", "--show-prefix") != "":
        return None  # ``root`` lies in a repository of something else, as an unpacked release may
    heads = [_git(root, "merge-base", "HEAD", name) for name in MAINS]
    here = _git(root, "rev-parse", "HEAD")
    bases = [*(head for head in heads if head and head != here), _git(root, "rev-parse", "HEAD^")]
    differing = _git(root, "diff", "--name-only", "-z", bases[0], "--") if bases[0] else None
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if differing is None or new is None:
        return None
    return frozenset(filter(None, (differing + new).split("\0")))


def may_have_changed(*starts: str, root: Path = ROOT) -> bool:
    """Whether a file whose path begins with one of ``starts`` changed; True where git cannot say."""
    files = changed_files(root)
    return files is None or any(path.startswith(starts) for path in files)


def lesson_changed(stem: str, root: Path = ROOT) -> bool:
    """Whether the lesson's source, its exercises, one of its notebooks or its messages changed.

    ``stem`` is "02_how_many_bytes". True where git cannot say.
    """
    number = stem.split("_")[0]
    files = changed_files(root)
    if files is None:
        return True
    found = filter(None, map(_LESSON.fullmatch, files))
    return any(stem == match[1] or number.lower() == match[2] for match in found)


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints, or None where it fails or is not there."""
    try:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError:
        return None
    return done.stdout.removesuffix("\n") if done.returncode == 0 else None
