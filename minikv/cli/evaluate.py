"""``minikv evaluate``: what eviction and fewer bytes in the cache cost on your own model, beside its full cache."""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Any

import typer

from minikv.cli.evaluate_record import Record
from minikv.cli.options import Json, Lang
from minikv.cli.plot_file import check_place
from minikv.errors import ArgumentError, ConfigError, user_path
from minikv.extras import require_engine
from minikv.i18n import escape_controls, pick_language, text
from minikv.units import format_bytes


def evaluate(
    model: Annotated[str, typer.Argument()] = "tiny-gqa",
    tasks: str | None = None,
    lengths: str | None = None,
    depths: str = "0,25,50,75,100",
    policies: str = "streaming,h2o,snapkv,keydiff",
    kept: str = "50,25,10",
    kv_dtypes: str = "fp8,int8",
    perplexity: str | None = None,
    texts: int = 20,
    max_tokens: int = 48,
    seed: int = 0,
    record: str | None = None,
    plot: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Ask a model for what its cache should have kept, with each policy, budget and KV dtype beside the full cache."""
    lang = pick_language(lang)
    require_engine()
    from minikv.engine.serve.progress import Progress
    from minikv.eviction.evaluate.perplexity import Curves, Reading, curves, read_text
    from minikv.eviction.evaluate.rows import Row, fingerprint
    from minikv.eviction.evaluate.rows import evaluate as rows_of
    from minikv.eviction.evaluate.settings import Settings
    from minikv.eviction.evaluate.summary import Summary, summaries
    from minikv.models import load

    asked: dict[str, Any] = {
        "depths": tuple(depth / 100 for depth in numbers("--depths", depths)),
        "policies": words(policies),
        "kept": tuple(share / 100 for share in numbers("--kept", kept)),
        "kv_dtypes": words(kv_dtypes),
        "texts": texts,
        "new": max_tokens,
        "seed": seed,
    }
    if tasks is not None or perplexity is not None:
        asked["tasks"] = words(tasks or "")
    if lengths is not None:
        asked["lengths"] = numbers("--lengths", lengths, int)
    settings = Settings(**asked)
    content = None if perplexity is None else text_of(perplexity)
    if plot is not None:
        check_place(plot)
    loaded = load(model, dtype=dtype, device=device)
    if lengths is None and loaded.name in TRAINED_LENGTH:
        settings = Settings(**asked, lengths=(TRAINED_LENGTH[loaded.name],))
    same = {"model": loaded.name, "weights": fingerprint(loaded.model), **settings.as_dict()}
    file = Record(record, same)
    if file.rows or file.readings:
        kept_rows = len(file.rows) + len(file.readings)
        print(text("evaluate.resumed", lang, rows=kept_rows, path=record), file=sys.stderr)
    total = len(list(settings.questions())) * len(settings.ways)
    steps: list[Iterator[Row | Reading]] = [rows_of(loaded.model, loaded.tokenizer, settings, file.rows)]
    if content is not None:
        steps.insert(0, read_text(loaded.model, loaded.tokenizer, content, settings, file.readings))
        total += len(set(settings.lengths)) * len(settings.ways)
    rows: list[Row] = []
    readings: list[Reading] = []
    with Progress(total) as bar:
        for row in chain(*steps):
            rows.append(row) if isinstance(row, Row) else readings.append(row)
            file.add(row)
            bar.update(len(rows) + len(readings))
    found: list[Curves | Summary] = [*curves(readings), *summaries(rows)]
    if as_json:
        told = same | {
            "rows": [row.as_dict() for row in rows],
            "readings": [reading.as_dict() for reading in readings],
            "perplexity": [each.as_dict() for each in curves(readings)],
            "recall": [each.as_dict() for each in summaries(rows)],
        }
        print(escape_controls(json.dumps(told, indent=2, ensure_ascii=False), keep="\n", as_json=True))
    else:
        print("\n\n".join(each.shown(lang).text() for each in found))
    if plot is not None and found:
        from minikv.cli import evaluate_plot

        evaluate_plot.write(found, loaded.name, plot, lang)
    note = loaded.note(lang)
    if note is not None:
        print(note, file=sys.stderr)


MOST_BYTES = 2**26  # of a text
TRAINED_LENGTH = {"tiny-gqa": 193, "tiny-mla": 193}
"""Tokens of a context that the tiny models were trained on; other models are asked at 4,096."""


def text_of(path: str) -> str:
    """The text of a file. Raises ``ConfigError`` where it cannot be read, is too large, or is no text."""
    try:
        with user_path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError("unreadable_file", path=path, reason=reason) from error
    try:
        if len(content) <= MOST_BYTES:
            return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    raise ConfigError("evaluate_not_utf8", path=path, most=format_bytes(MOST_BYTES))


def words(listed: str) -> tuple[str, ...]:
    """The words of a list with commas; an empty list has none."""
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def numbers(option: str, listed: str, kind: Callable[[str], Any] = float) -> tuple[Any, ...]:
    """The numbers of a list with commas. Raises ``ArgumentError`` with the first word that is none."""
    found = []
    for word in words(listed):
        try:
            found.append(kind(word))
        except ValueError:
            raise ArgumentError("evaluate_number", option=option, word=word) from None
    return tuple(found)
