"""``minikv check-log``: does another engine's start-up log agree with its model?"""

import json
import sys
from typing import Annotated

import typer

from minikv.cli.options import Json, Lang
from minikv.errors import ConfigError, user_path
from minikv.i18n import pick_language


def check_log(
    file: Annotated[str, typer.Argument()],
    model: str | None = None,
    tp: int | None = None,
    kv_dtype: str | None = None,
    block_size: int | None = None,
    max_model_len: int | None = None,
    pp: int | None = None,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Say whether tokens and GiB of a start-up log agree with the model, and what explains a gap."""
    from minikv.plan.logs.check_log import check_log as judge

    lang = pick_language(lang)
    verdict = judge(
        _read(file),
        model=model,
        tp=tp,
        pp=pp,
        block_size=block_size,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
    )
    print(json.dumps(verdict.as_dict(lang), indent=2) if as_json else verdict.text(lang))
    if verdict.status == "contradicts":
        raise typer.Exit(1)


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.buffer.read().decode("utf-8", errors="replace")
    try:
        return user_path(file).read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError("unreadable_file", path=file, reason=error.strerror or str(error)) from error
