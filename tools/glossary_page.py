"""Appendix F, notebooks/src/F_glossary.py, from glossary.toml: each word with its meaning, unit, lesson and call.

python -m tools.glossary_page            writes the page
python -m tools.glossary_page --check    exit 1 where it is stale
"""

import argparse
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.notebooks.course import Course, open_course
from tools.notebooks.prose import text_hash

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "minikv/course/data/glossary.toml"
PAGE = ROOT / "notebooks/src/F_glossary.py"

META = """\
# %% [meta]
# number = "F"
# slug = "glossary"
# [title]
# en = "What does this word mean? The glossary"
# zh = "这个词是什么意思？术语表"
# [t4]
# en = "Nothing to compute."
# zh = "没有要算的。"
"""
INTRO = {
    "en": """\
## How to read it

The words stand under the lesson that explains them. To find one, search the page (Ctrl-F or Cmd-F).
The last column is the call that computes or holds the thing; its `help(...)` says more, with shapes and units.
The formulas are in the [cheat-sheet](E_cheat_sheet.ipynb), and what \
other engines call the same things is in [appendix D](D_other_engines.ipynb).

Written by `python -m tools.glossary_page` from [glossary.toml](repo:minikv/course/data/glossary.toml).""",
    "zh": """\
## 怎么用

每个词列在讲它的那一课下面。要找一个词，就在页内搜索（Ctrl-F 或 Cmd-F）。
最后一列是计算或保存它的调用；对这个调用执行 `help(...)`，能看到形状和单位等细节。
公式见[速查](E_cheat_sheet.ipynb)；同样的东西在别的引擎里叫什么，见[附录 D](D_other_engines.ipynb)。

本页由 `python -m tools.glossary_page` 根据 [glossary.toml](repo:minikv/course/data/glossary.toml) 生成。""",
}
HEADS = {
    "en": ("word", "Chinese", "what it means", "unit", "the call"),
    "zh": ("词", "English", "含义", "单位", "调用"),
}


@dataclass(frozen=True)
class Word:
    """One word of the glossary: ``name`` and ``means`` by language, ``seen`` in other Chinese texts.

    ``unit`` is by language too, empty where there is none; ``call`` is a dotted name below ``minikv``, or empty.
    """

    name: dict[str, str]
    means: dict[str, str]
    unit: dict[str, str]
    lesson: str
    call: str
    seen: tuple[str, ...]


def read_words(path: Path = GLOSSARY) -> list[Word]:
    """All words of the glossary. Raises ``KeyError`` for a word without a meaning or a lesson, or an unknown unit."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    words = []
    for entry in table["word"]:
        unit = entry.get("unit", "")
        words.append(
            Word(
                name={lang: entry[lang] for lang in INTRO},
                means={lang: entry[f"means_{lang}"] for lang in INTRO},
                unit={"en": unit, "zh": table["units"][unit] if unit else ""},
                lesson=entry["lesson"],
                call=entry.get("call", ""),
                seen=tuple(entry.get("seen", ())),
            )
        )
    return words


def page_of(words: list[Word], course: Course) -> str:
    """The lesson source: one table a lesson, its words in alphabetical order of the English ones.

    Raises ``LookupError`` for a word of a lesson that is not there.
    """
    parts = [META, *pair("how", INTRO)]
    numbers = [meta.number for meta in course.lessons]
    for word in words:
        if word.lesson not in numbers:
            raise LookupError(f"{word.name['en']}: there is no lesson {word.lesson}")
    for meta in course.lessons:
        here = sorted((w for w in words if w.lesson == meta.number), key=lambda w: w.name["en"].casefold())
        if here:
            tables = {lang: _table(here, f"{meta.stem}.ipynb", meta.title[lang], lang) for lang in INTRO}
            parts += pair(f"words-{meta.number.lower()}", tables)
    return "\n".join(parts)


def _table(words: list[Word], link: str, title: str, lang: str) -> str:
    other = "zh" if lang == "en" else "en"
    number = link.split("_")[0]
    lines = [
        f"## [{number} · {title}]({link})",
        "",
        row(*(unbroken(head) for head in HEADS[lang])),
        "|---|---|---|---|---|",
    ]
    for word in words:
        means = word.means[lang]
        seen = [name for name in word.seen if name.casefold() not in word.name["en"].casefold()]
        if lang == "zh" and seen:
            means += f"别处也写作：{'、'.join(seen)}。"
        call = f"`{word.call}`" if word.call else ""
        lines.append(row(f"**{word.name[lang]}**", word.name[other], means, unbroken(word.unit[lang]), call))
    return "\n".join(lines)


def unbroken(text: str) -> str:
    """``text`` for a narrow column: without this, Chinese may break after every character."""
    return f"<nobr>{text}</nobr>" if re.search("[\u4e00-\u9fff]{2}", text) else text


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def pair(key: str, texts: dict[str, str]) -> list[str]:
    """The two cells of ``key``, as percent-format text."""
    cells = []
    for lang, text in texts.items():
        src = f' src="{text_hash(texts["en"])}"' if lang == "zh" else ""
        body = "\n".join(f"# {line}".rstrip() for line in text.split("\n"))
        cells.append(f'# %% [markdown] key="{key}" lang="{lang}"{src}\n{body}')
    cells[-1] += "\n"
    return cells


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.glossary_page", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is stale")
    options = parser.parse_args(arguments)
    text = page_of(read_words(), open_course(ROOT))
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
    if stale:
        print(f"{PAGE.name} is not what {GLOSSARY.name} says: run python -m tools.glossary_page")
    return int(stale)


if __name__ == "__main__":
    raise SystemExit(main())
