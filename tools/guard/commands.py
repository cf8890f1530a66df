"""The guard's cases of the command line: what ``minikv ARGUMENTS`` prints, in this process."""

import io
import json
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from minikv.cli import main
from minikv.cli.app import COMMANDS
from tools.guard import Case

PLANS = (
    "llama-3.1-8b", "llama-3.1-8b --gpu H200 --table", "deepseek-v3 --gpu H200 --tp 8 --explain", "--list",
    "gemma-3-27b --context 4096 --batch 3 --json", "llama-3.1-8b --gpu H200 --kv-dtype fp8 --context 8192 --lang zh",
    "no-such-model", "llama-3.1-8b --gpu none", "llama-3.1-8b --tp 0", "llama-3.1-70b --gpu T4", "",
)  # fmt: skip
ANSWERS = (
    "--temperature 0 --max-tokens 4", "--temperature 0 --max-tokens 3 --n 2 --json", "--temperature 0 --lang zh",
    "--max-tokens 0", "--num-blocks 1", "--model tiny-mla --temperature 0 --max-tokens 5 --num-blocks 9 --block-size 4",
    "--temperature 0.7 --seed 3 --prompt-lookup 2 --num-blocks 40", "--cache ring",
    "--temperature 0 --cpu-kv 1MiB --num-blocks 12 --block-size 4", "--prefix-dir x", "--kv-dtype int8 --temperature 0",
)  # fmt: skip
FLEETS = (
    "--model llama-3.1-8b --gpu H200", "--model llama-3.1-8b --gpu H200 --replicas 3 --router prefix --json",
    "--hit-rate --num-blocks 20", "--hit-rate --lang zh", "--model llama-3.1-8b --gpu H200 --sweep block_size=16,32",
    "--model llama-3.1-8b --gpu H200 --fewest --p99-ttft 1", "--model llama-3.1-8b", "--limit 0",
    "--model llama-3.1-8b --gpu H200 --host-kv 8GiB --lang zh", "--sweep x=1",
)  # fmt: skip
# What a run took on this machine: sentences, and fields of the JSON.
CLOCK = re.compile(
    r"[\d.]+ s, [\d.,]+ tokens/s|[\d.]+ 秒生成|每秒 [\d.,]+"
    r'|(?<="queued": )[\d.e-]+|(?<="(?:ttft|tpot)": )[\d.e-]+|(?<="total": )[\d.e-]+|(?<="seconds": )[\d.e-]+'
    r'|(?<="tokens_per_second": )[\d.e-]+'
)
PROMPT = "ada paris the cat sleeps ben oslo ? ada"


def said(arguments: list[str], folder: str = "") -> list[Any]:
    """The arguments, the exit code, and both outputs by line: without ``folder``'s name, nor the seconds of a run."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    words = {"COLUMNS": "100", "MINIKV_LANG": "en", "HF_HUB_OFFLINE": "1", "TERM": "dumb"}
    main_module = sys.modules["__main__"]  # with a package, click would call the program by it
    with (
        patch.dict(os.environ, words),
        patch.object(sys, "argv", ["minikv", *arguments]),
        patch.object(main_module, "__package__", None, create=True),  # a worker of xdist has none
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    texts = (" ".join(arguments), out.getvalue(), err.getvalue())
    asked, *shown = (text.replace(folder, "FOLDER") if folder else text for text in texts)
    lines = [line for text in shown for line in text.splitlines()]
    return [
        asked,
        code,
        *(CLOCK.sub("TIME", line) if asked.startswith("generate") else line for line in lines),
    ]


def each(lines: tuple[str, ...], command: str, *first: str) -> list[Any]:
    return [said([command, *first, *line.split()]) for line in lines]


def helps() -> list[Any]:
    """The help of every command in both languages, the version, and a command that is not there."""
    asked = [
        [*name, "--lang", lang, "--help"]
        for name in [[], *([name] for name in COMMANDS)]
        for lang in ("en", "zh")
    ]
    return [
        said(words) for words in [*asked, ["--help"], [], ["--version"], ["no-such"], ["plan", "--no-such"]]
    ]


def fleets() -> list[Any]:
    """A trace of thirty requests that share beginnings, under each of ``FLEETS``; then files that are none."""
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        rows = [
            {"timestamp": 90 * number, "input_length": 700 + 31 * number, "output_length": 5 + number,
             "hash_ids": [number % 3, *range(10 * number, 10 * number + (700 + 31 * number - 1) // 512)]}
            for number in range(30)
        ]  # fmt: skip
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        lines = [said(["simulate", str(trace), *line.split()], folder) for line in FLEETS]
        trace.write_text('{"timestamp": 1}\n', encoding="utf-8")
        lines.append(said(["simulate", str(trace)], folder))
        return [
            *lines,
            said(["simulate", folder + "/absent.jsonl"], folder),
            said(["check-log", str(trace)], folder),
        ]


CASES: dict[str, Case] = {
    "cli help": helps,
    "cli plan": partial(each, PLANS, "plan"),
    "cli generate": partial(each, ANSWERS, "generate", PROMPT),
    "cli generate nothing": partial(each, ("--temperature 0",), "generate"),
    "cli simulate": fleets,
    "cli bench": partial(each, ("--num-requests 0", "--input-len 5:2", "--rate 0"), "bench"),
}
