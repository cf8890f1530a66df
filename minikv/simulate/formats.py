"""Traces in files: reads the JSONL of Mooncake and the CSV of Azure, and writes Mooncake's.

Mooncake (kvcache-ai/Mooncake, FAST25-release/traces): a JSON object a line, ``timestamp`` in milliseconds,
``input_length`` and ``output_length`` in tokens, ``hash_ids`` for blocks of 512 tokens; other fields are ignored.

Azure (Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and ...2024.md): a header with TIMESTAMP,
ContextTokens and GeneratedTokens, then a request a line; times as 2023-11-16 18:15:46.6805900, with or without a time
zone. The file says nothing about shared prefixes, so its prompts share none.

No line is skipped: a line that is no request raises an error with its number. A file with a name in .gz is unpacked
while it is read.
"""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from minikv.errors import ArgumentError, ConfigError, MiniKVError, check_count, user_path
from minikv.simulate.trace import Trace, TraceRequest, fault_of

MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")
AZURE_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_BLOCK = 512
EARLIEST = float("-inf")


def read_trace(path: str | Path, hash_block: int | None = None) -> Trace:
    """The trace in ``path``: Mooncake's form if it begins with ``{``, else Azure's. Raises what either reader raises.

    ``hash_block``: tokens behind each hash id (None: Mooncake's 512); ``ArgumentError`` for a CSV, which has no ids.
    """
    with _open(path) as file:
        beginning = file.readline(4096).lstrip("\ufeff \t\r\n")
    if beginning.startswith("{"):
        return read_mooncake(path, MOONCAKE_BLOCK if hash_block is None else hash_block)
    if hash_block is not None:
        raise ArgumentError("trace_no_hashes", path=_name(path), value=hash_block)
    return read_azure(path)


def read_mooncake(path: str | Path, hash_block: int = MOONCAKE_BLOCK) -> Trace:
    """The requests of a JSONL file, with ``hash_block`` tokens behind each hash id.

    Raises ``ConfigError`` for a file that cannot be read or holds no request, ``ArgumentError`` with the number of
    the line for what is not JSON, lacks a field or contradicts itself, and for lines that are not sorted by time.
    """
    check_count("hash_block", hash_block)

    def parse(line: str) -> tuple[TraceRequest, Any]:
        fields = _json(line)
        try:
            at, prompt, output = (fields[name] for name in MOONCAKE_FIELDS)
        except KeyError as error:
            raise ArgumentError("trace_missing", what=error.args[0], given=", ".join(fields)) from None
        ids = fields.get("hash_ids", [])
        if type(ids) is not list:
            raise ArgumentError("trace_hash_list", value=type(ids).__name__)
        return TraceRequest(_seconds(at), prompt, output, tuple(ids)), at

    with _open(path) as file:
        requests = _requests(path, file, 1, parse, MOONCAKE_FIELDS, hash_block)
    return Trace(_name(path), requests, hash_block, first_line=1)


def read_azure(path: str | Path) -> Trace:
    """The requests of a CSV file; the first arrives at zero.

    Raises ``ConfigError`` for a file that cannot be read or holds no request, ``ArgumentError`` with the number of
    the line for a missing column or field, for what is no time or no number of tokens, and for lines that are not
    sorted by time.
    """
    with _open(path) as file:
        header = file.readline().strip()
        columns = [name.strip().strip('"') for name in header.split(",")]
        missing = [name for name in AZURE_FIELDS if name not in columns]
        if missing:
            if not header:
                if any(not line.isspace() for line in file):
                    _refuse(path, 1, ArgumentError("trace_blank"))
                raise ConfigError("trace_empty", name=_name(path))
            given = header if len(header) < 100 else header[:100] + "…"
            _refuse(path, 1, ArgumentError("trace_column", what=", ".join(missing), given=given))
        twice = [name for name in AZURE_FIELDS if columns.count(name) > 1]
        if twice:
            _refuse(path, 1, ArgumentError("trace_twice", what=twice[0]))
        places = [columns.index(name) for name in AZURE_FIELDS]
        first: datetime | None = None

        def parse(line: str) -> tuple[TraceRequest, Any]:
            nonlocal first
            fields = next(csv.reader((line,))) if '"' in line else line.split(",")
            if len(fields) != len(columns):
                raise ArgumentError("trace_fields", count=len(fields), expected=len(columns))
            at, prompt, output = (fields[place].strip() for place in places)
            moment = _moment(at)
            first = first or moment
            try:
                seconds = (moment - first).total_seconds()
            except TypeError:
                raise ArgumentError("trace_zones", value=at) from None
            return TraceRequest(seconds, _count(prompt), _count(output)), at

        requests = _requests(path, file, 2, parse, AZURE_FIELDS, 1)
    return Trace(_name(path), requests, first_line=2)


def write_mooncake(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` as Mooncake's JSONL over an existing file; times to the nanosecond.

    The form has no field for ``hash_block``: one other than 512 has to be given to ``read_trace``. Raises
    ``ConfigError`` where the file cannot be written.
    """
    target = user_path(path)
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for request in trace.requests:
                file.write(_line(request))
        os.replace(partial, target)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            partial.unlink()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError("unwritable_file", path=path, reason=reason) from error


def _line(request: TraceRequest) -> str:
    milliseconds = request.arrival * 1000
    if round(milliseconds) / 1000 == request.arrival:
        milliseconds = round(milliseconds)
    values = (milliseconds, request.prompt_tokens, request.output_tokens)
    fields = dict(zip(MOONCAKE_FIELDS, values, strict=True)) | {"hash_ids": list(request.hash_ids)}
    return json.dumps(fields) + "\n"


def _requests(
    path: str | Path,
    file: TextIO,
    first_line: int,
    parse: Callable[[str], tuple[TraceRequest, Any]],
    names: tuple[str, ...],
    hash_block: int,
) -> tuple[TraceRequest, ...]:
    """A checked request a line; empty lines are allowed at the end only. ``parse`` returns a request and its time."""
    requests: list[TraceRequest] = []
    before, line, blank = EARLIEST, first_line, 0
    for line, words in enumerate(file, first_line):
        if words.isspace():
            blank = blank or line
            continue
        try:
            if blank:
                line = blank
                raise ArgumentError("trace_blank")
            request, value = parse(words)
            fault = fault_of(request, before, hash_block, names, value)
            if fault is not None:
                raise fault
        except (MiniKVError, csv.Error) as error:
            reason = error if isinstance(error, MiniKVError) else ArgumentError("trace_not_csv", reason=error)
            _refuse(path, line, reason)
        requests.append(request)
        before = request.arrival
    if not requests:
        raise ConfigError("trace_empty", name=_name(path))
    return tuple(requests)


def _json(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line, object_pairs_hook=_distinct)
    except MiniKVError:
        raise
    except (ValueError, RecursionError) as error:
        raise ArgumentError("trace_not_json", reason=str(error)) from None
    if type(fields) is not dict:
        raise ArgumentError("trace_not_object", kind=type(fields).__name__)
    return fields


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate names, of which json would silently keep the last."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ArgumentError("trace_twice", what=next(name for name in names if names.count(name) > 1))
    return fields


def _seconds(milliseconds: Any) -> Any:
    """Seconds, to the nanosecond. Returns what is no number unchanged: the check that follows names it."""
    if type(milliseconds) is float:
        return round(milliseconds / 1000, 9)
    return milliseconds / 1000 if type(milliseconds) is int and abs(milliseconds) < 1e18 else milliseconds


def _moment(words: str) -> datetime:
    try:
        return datetime.fromisoformat(words)
    except ValueError:
        raise ArgumentError("trace_datetime", value=words) from None


def _count(words: str) -> Any:
    """A number in digits. Returns other words unchanged: the check that follows names them."""
    return int(words) if words.isascii() and words.isdigit() and len(words) < 20 else words


def _refuse(path: str | Path, line: int, reason: MiniKVError) -> NoReturn:
    raise ArgumentError("trace_line", line=line, path=_name(path), reason=reason) from None


def _name(path: str | Path) -> str:
    return Path(path).name


@contextmanager
def _open(path: str | Path) -> Iterator[TextIO]:
    """The file as text. Errors of opening and of reading it become a ``ConfigError``."""
    try:
        full = user_path(path)
        opened = gzip.open if full.suffix == ".gz" else open
        with cast(TextIO, opened(full, "rt", encoding="utf-8-sig")) as file:
            yield file
    except MiniKVError:
        raise
    except (OSError, ValueError, EOFError, zlib.error) as error:
        # ValueError: not UTF-8, or a path with a null character; EOFError and zlib.error: a .gz that is cut or damaged
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError("unreadable_file", path=path, reason=reason) from error
