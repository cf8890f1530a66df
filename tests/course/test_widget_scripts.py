"""The scripts of the widgets draw what Python sends: the language chooses words there, and nothing in a script."""

import re
from pathlib import Path

import pytest

import minikv.course

COURSE = Path(minikv.course.__file__).parent
SCRIPTS = sorted([*(COURSE / "widgets").glob("*.js"), *(COURSE / "motion").glob("*.js")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_names_the_language_and_never_asks_for_it(script):
    text = re.sub(r"//.*|/\*.*?\*/", "", script.read_text(encoding="utf-8"))
    uses = re.findall(r"[^\n]*\blang\b[^\n]*", text)
    assert all(re.search(r"\blang: form\.lang\b", line) and line.count("lang") == 2 for line in uses), uses
    assert not re.search(r"navigator\.language|[\"'](?:en|zh|zh-CN)[\"']", text)
    assert not re.search(r"[\u4e00-\u9fff]", text), "words come from Python"


def test_there_are_scripts_to_read():
    assert len(SCRIPTS) > 12
