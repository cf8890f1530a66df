"""Appendix G, notebooks/src/G_index.py, from index.toml: identifiers and questions, each with its lesson and its call.

python -m tools.index_page            writes the page
python -m tools.index_page --check    exit 1 where it is stale
"""

import argparse
import re
from pathlib import Path

from minikv.course.ask import Entry, entries
from tools.glossary_page import pair, row, unbroken
from tools.notebooks.course import Course, open_course
from tools.notebooks.source import Meta

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "notebooks/src/G_index.py"
META = """\
# %% [meta]
# number = "G"
# slug = "index"
# [title]
# en = "Where do I find it? The index"
# zh = "在哪里能找到？索引"
# [t4]
# en = "Nothing to compute."
# zh = "没有要算的。"
"""
INTRO = {
    "en": """\
## How to use it

You have an identifier, an error message or a question.
Search this page (Ctrl-F or Cmd-F), or ask on the command line:

```
minikv ask gpu_memory_utilization
minikv ask why is memory not released
```

Each line names the lesson that answers it and the call that computes it.

`python -m tools.index_page` writes this page from [index.toml](repo:minikv/course/data/index.toml).""",
    "zh": """\
## 怎么用

手上有一个标识符、一条报错信息，或者一个问题？
可以在页内搜索（Ctrl-F 或 Cmd-F），也可以在命令行里问：

```
minikv ask gpu_memory_utilization
minikv ask 显存不释放
```

每一行都写明由哪一课回答、用哪个调用来算。

本页由 `python -m tools.index_page` 根据 [index.toml](repo:minikv/course/data/index.toml) 生成。""",
}
QUESTIONS = {"en": ("question", "the call"), "zh": ("问题", "调用")}
NAMES = {"en": ("name or wording", "lesson", "the call"), "zh": ("名称或说法", "课", "调用")}
NAMES_TITLE = {"en": "## Names and wordings", "zh": "## 名称与说法"}


def page_of(found: tuple[Entry, ...], course: Course) -> str:
    """The lesson source: the questions lesson by lesson, then the names in alphabetical order.

    Raises ``LookupError`` for an entry of a lesson that is not there.
    """
    lessons = {meta.number: meta for meta in course.lessons}
    for entry in found:
        if entry.lesson not in lessons:
            raise LookupError(f"{entry.asked['en']}: there is no lesson {entry.lesson}")
    parts = [META, *pair("how", INTRO)]
    for number, meta in lessons.items():
        here = [entry for entry in found if entry.lesson == number]
        if here:
            parts += pair(f"lesson-{number.lower()}", {lang: _questions(here, meta, lang) for lang in INTRO})
    parts += pair("names", {lang: _names(found, lessons, lang) for lang in INTRO})
    return "\n".join(parts)


def _questions(here: list[Entry], meta: Meta, lang: str) -> str:
    lines = [
        f"## [{meta.number} · {meta.title[lang]}]({meta.stem}.ipynb)",
        "",
        row(*QUESTIONS[lang]),
        "|---|---|",
    ]
    return "\n".join([*lines, *(row(entry.asked[lang], f"`{entry.call}`") for entry in here)])


def _names(found: tuple[Entry, ...], lessons: dict[str, Meta], lang: str) -> str:
    """What has Chinese letters stands on the Chinese page alone, and there before the rest."""
    lines = [NAMES_TITLE[lang], "", row(*map(unbroken, NAMES[lang])), "|---|---|---|"]
    named = [(name, entry) for entry in found for name in entry.words]
    latin = sorted(
        (each for each in named if each[0].isascii()), key=lambda each: each[0].strip("#- ").casefold()
    )
    chinese = [each for each in named if not each[0].isascii()] if lang == "zh" else []
    for name, entry in (*chinese, *latin):
        link = f"[{entry.lesson}]({lessons[entry.lesson].stem}.ipynb)"
        shown = f"`{name}`" if re.search(r"[_=]|^-|[a-z][A-Z]", name) else name
        lines.append(row(shown, link, f"`{entry.call}`"))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.index_page", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is stale")
    options = parser.parse_args(arguments)
    page = page_of(entries(), open_course(ROOT))
    if not options.check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page
    if stale:
        print(f"{PAGE.name} is not what index.toml says: run python -m tools.index_page")
    return int(stale)


if __name__ == "__main__":
    raise SystemExit(main())
