"""Which files a branch changed, in repositories made here; what follows for the notebooks that the suite runs."""

import subprocess
from types import SimpleNamespace

import pytest

from tools import changes, run_tests
from tools.changes import changed_files, lesson_changed, may_have_changed

LESSON = "notebooks/src/02_how_many_bytes.py"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No answer is kept, and git neither looks at another repository nor at the settings of this machine."""
    changed_files.cache_clear()
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    yield
    changed_files.cache_clear()


class Repository(SimpleNamespace):
    """A repository at ``root``, whose first commit on ``main`` holds a lesson."""

    def __init__(self, root):
        super().__init__(root=root)
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.write(LESSON, "1")
        self.write("minikv/messages/lesson_a.toml", "1")
        self.commit()

    def git(self, *arguments):
        own = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", self.root, *own, *arguments], check=True, capture_output=True)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=more")

    def changed(self):
        changed_files.cache_clear()
        return changed_files(self.root)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "here")


def test_a_branch_changed_what_differs_from_where_it_left_main(repository):
    repository.git("switch", "--quiet", "--create=branch")
    repository.write("one.py", "1")
    repository.commit()
    repository.write("two.py", "1")
    repository.commit()
    repository.git("switch", "--quiet", "main")
    repository.write("three.py", "1")
    repository.commit()
    repository.git("switch", "--quiet", "branch")
    assert repository.changed() == {"one.py", "two.py"}
    repository.write("new.py", "1")
    repository.write(LESSON, "2")
    assert repository.changed() == {"one.py", "two.py", "new.py", LESSON}


def test_main_changed_what_differs_from_the_commit_before_or_from_what_was_pushed(repository):
    assert repository.changed() is None, "there is no commit before"
    for name in ("one.py", "two.py"):
        repository.write(name, "1")
        repository.commit()
    assert repository.changed() == {"two.py"}
    repository.write(LESSON, "2")
    assert repository.changed() == {"two.py", LESSON}
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD~2")
    assert repository.changed() == {"one.py", "two.py", LESSON}


def test_where_git_cannot_say_everything_may_have_changed(repository, tmp_path, monkeypatch):
    repository.write("one.py", "1")
    repository.commit()
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.root}", str(tmp_path / "shallow"))
    (tmp_path / "nothing").mkdir()
    for root in (tmp_path / "shallow", tmp_path / "nothing", repository.root / "notebooks"):
        assert changed_files(root) is None
        assert lesson_changed("02_how_many_bytes", root)
        assert may_have_changed("minikv/", root=root)
    monkeypatch.setenv("PATH", "")
    assert repository.changed() is None


def test_a_lesson_changed_with_its_sources_its_notebooks_or_its_messages(repository):
    def after(path):
        repository.write(path, "changed")
        repository.commit()
        changed_files.cache_clear()
        return [stem for stem in ("02_how_many_bytes", "A_errata") if lesson_changed(stem, repository.root)]

    assert after("minikv/plan.py") == []
    assert may_have_changed("docs/", "minikv/", root=repository.root)
    assert not may_have_changed("docs/", "tests/", root=repository.root)
    for path in (LESSON, "solutions/src/02_how_many_bytes.py", "exercises/zh/02_how_many_bytes.ipynb"):
        assert after(path) == ["02_how_many_bytes"]
    assert after("minikv/messages/lesson_02.toml") == ["02_how_many_bytes"]
    assert after("minikv/messages/lesson_a.toml") == ["A_errata"]
    assert after("notebooks/en/05_other.ipynb") == []


def test_english_stands_for_chinese_where_a_lesson_did_not_change(monkeypatch):
    monkeypatch.setattr(run_tests, "lesson_changed", lambda stem: stem.startswith("02_"))
    folders = ["notebooks/en", "solutions/en", "exercises/en"]
    (usual,) = run_tests.notebooks(run_tests.USUAL)
    chosen = [one for one in usual if one.startswith(run_tests.NOTEBOOK_FOLDERS)]
    assert chosen == folders + [f"{name[:-3]}/zh/02_how_many_bytes.ipynb" for name in folders]
    (everything,) = run_tests.notebooks(run_tests.ALL)
    chosen = [one for one in everything if one.startswith(run_tests.NOTEBOOK_FOLDERS)]
    zh = {path.relative_to(changes.ROOT).as_posix() for path in changes.ROOT.glob("*/zh/*.ipynb")}
    assert set(chosen) == {*folders, *zh}
    assert len(zh) == len(list(changes.ROOT.glob("*/en/*.ipynb"))) > 60
