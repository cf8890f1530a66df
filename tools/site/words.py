"""The site's own words, in both languages: ``words.toml`` beside this file."""

import tomllib
from functools import cache
from pathlib import Path


@cache
def words(lang: str) -> dict[str, str]:
    """Return every word of ``lang`` by its name."""
    table = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    return {name: said[lang] for name, said in table.items()}
