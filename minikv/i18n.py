"""Every sentence that minikv says, in English and in Simplified Chinese.

The sentences live in ``minikv/messages/*.toml``, both languages side by side, so that neither can be
forgotten; a test reads all of them and compares their placeholders. A key is ``"file.name"``:
``text("errors.unknown_gpu", "zh", name="H300")``.
"""

import tomllib
from functools import cache
from importlib.resources import files

LANGUAGES = ("en", "zh")


@cache
def _table(name: str) -> dict[str, dict[str, str]]:
    source = files("minikv") / "messages" / f"{name}.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def text(key: str, lang: str = "en", /, **values: object) -> str:
    """The sentence ``key`` in ``lang`` with ``values`` filled in (``{name}``, ``{count:,}``).

    Raises ``KeyError`` for a key or language that does not exist: a mistake in our code, not a learner's.
    """
    file, _, name = key.partition(".")
    return _table(file)[name][lang].format(**values)


def pick_language(lang: str) -> str:
    """``lang`` if it is one of ours; locale names such as ``zh_CN.UTF-8`` are understood.

    Raises ``ArgumentError`` for a language that the course is not written in.
    """
    short = lang.lower().replace("-", "_").split("_")[0].split(".")[0]
    if short in LANGUAGES:
        return short
    from minikv.errors import ArgumentError  # errors.py imports this file

    raise ArgumentError("unknown_language", lang=lang, known=", ".join(LANGUAGES))
