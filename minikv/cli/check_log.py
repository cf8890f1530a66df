"""``minikv check-log``: does another engine's start-up log agree with its model?"""

import json
import sys
from typing import Annotated

import typer

from minikv.cli.options import Json, Lang
from minikv.errors import ConfigError, user_path
from minikv.i18n import pick_language


def check_log(
    file: Annotated[str, typer.Argument(help="The log, or - for standard input.")],
    model: Annotated[str | None, typer.Option(help="The model, where the log does not name it.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel size, where the log is silent.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV dtype, where the log is silent.")] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens a block, where the log is silent (then 16).")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="The longest request, where the log is silent.")
    ] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline-parallel size, where the log is silent.")] = None,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Say whether tokens and GiB of a start-up log agree with the model, and what explains a gap."""
    from minikv.plan.vllm_log import check_log as judge

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
