"""Traces in files: read as they were written, and every line that is none named by its number."""

import gzip
import json

import pytest

from minikv.errors import ArgumentError, ConfigError
from minikv.simulate import formats
from minikv.simulate.formats import read_azure, read_mooncake, read_trace, write_mooncake
from minikv.simulate.load import Load
from minikv.simulate.trace import Trace, TraceRequest
from tests.simulate.traces import random_trace

LINE = {"timestamp": 27, "input_length": 700, "output_length": 9, "hash_ids": [4, 5]}
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:46.6805900,396,109
2023-11-16 18:15:51.2224670,879,55
"""


@pytest.fixture
def write(tmp_path):
    """``write("text")`` gives the path of a file with that text."""

    def make(words, encoding="utf-8"):
        path = tmp_path / "trace"
        path.write_bytes(words.encode(encoding) if isinstance(words, str) else words)
        return path

    return make


def lines(*changes):
    """Good lines, each with one of ``changes``; None takes a field away."""
    made = [
        {name: value for name, value in (LINE | change).items() if value is not None} for change in changes
    ]
    return "".join(json.dumps(line) + "\n" for line in made)


def named(read, path, line, code):
    with pytest.raises(ArgumentError) as caught:
        read(path)
    error = caught.value
    assert (error.code, error.values["line"], error.values["reason"].code) == ("trace_line", line, code), (
        error
    )
    assert str(error).startswith(f"Line {line:,} of trace: ")
    assert "\n" not in str(error)
    assert f"第 {line:,} 行" in error.text("zh")
    return error


def test_mooncake_s_lines_become_requests(write):
    words = lines(
        {}, {"timestamp": 27.5, "extra": [1]}, {"timestamp": 3000, "hash_ids": None, "input_length": 1}
    )
    trace = read_mooncake(write(words))
    assert trace.requests == (
        TraceRequest(0.027, 700, 9, (4, 5)),
        TraceRequest(0.0275, 700, 9, (4, 5)),
        TraceRequest(3.0, 1, 9),
    )
    assert (trace.name, trace.hash_block, trace.first_line) == ("trace", 512, 1)


@pytest.mark.parametrize("ending", ["", "\n", "\n\n  \n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_editors_leave_in_a_file_does_no_harm(write, ending, start, newline):
    for words, count in ((lines({}, {}), 2), (AZURE, 3)):
        path = write(start + words.rstrip().replace("\n", newline) + ending)
        assert len(read_trace(path)) == count


def test_azure_s_lines_become_requests(write):
    trace = read_azure(write(AZURE))
    assert [request.arrival for request in trace.requests] == pytest.approx([0, 0, 4.541877], abs=1e-9)
    assert [(each.prompt_tokens, each.output_tokens) for each in trace.requests] == [
        (374, 44),
        (396, 109),
        (879, 55),
    ]
    assert all(request.hash_ids == () for request in trace.requests)
    assert trace.first_line == 2


def test_azure_s_other_year_has_time_zones_and_whole_seconds(write):
    words = "GeneratedTokens,TIMESTAMP,Model,ContextTokens\n"
    words += '5,2024-05-10 00:00:00.009930+00:00,gpt,2162\n7,2024-05-10 01:00:01+01:00,"a,b",1\n'
    trace = read_azure(write(words))
    assert trace.requests == (TraceRequest(0.0, 2162, 5), TraceRequest(0.99007, 1, 7))


MOONCAKE_FAULTS = [
    ({"timestamp": 26}, "trace_unsorted"),
    ({"timestamp": -1}, "trace_unsorted"),
    ({"timestamp": "27"}, "trace_time"),
    ({"timestamp": True}, "trace_time"),
    ({"timestamp": 1e999}, "trace_time"),
    ({"timestamp": float("nan")}, "trace_time"),
    ({"timestamp": 10**400}, "trace_time"),
    ({"timestamp": [1]}, "trace_time"),
    ({"timestamp": None}, "trace_missing"),
    ({"input_length": None}, "trace_missing"),
    ({"output_length": None}, "trace_missing"),
    ({"input_length": -5}, "trace_count"),
    ({"input_length": 0, "hash_ids": []}, "trace_count"),
    ({"input_length": 700.0}, "trace_count"),
    ({"input_length": "700"}, "trace_count"),
    ({"output_length": -9}, "trace_count"),
    ({"output_length": 2**31}, "trace_count"),
    ({"hash_ids": [4]}, "trace_hash_count"),
    ({"hash_ids": [4, 5, 6]}, "trace_hash_count"),
    ({"hash_ids": [4, None]}, "trace_hash_id"),
    ({"hash_ids": [4, -5]}, "trace_hash_id"),
    ({"hash_ids": 4}, "trace_hash_list"),
    ({"hash_ids": {"4": 5}}, "trace_hash_list"),
]


@pytest.mark.parametrize(("change", "code"), MOONCAKE_FAULTS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("before", [1, 41])
def test_mooncake_s_faults_have_their_line(write, change, code, before):
    path = write(lines(*[{}] * before, change, {}))
    named(read_mooncake, path, before + 1, code)


NOT_JSON = ["{", "{'timestamp': 1}", "[" * 100_000, "\0", "9" * 5000]


@pytest.mark.parametrize("words", NOT_JSON, ids=lambda words: words[:9])
def test_a_line_that_is_no_json_is_named(write, words):
    named(read_mooncake, write(lines({}, {}) + words + "\n"), 3, "trace_not_json")


@pytest.mark.parametrize("words", ["[1, 2]", "7", "null", '"a"'])
def test_a_line_that_is_no_object_is_named(write, words):
    named(read_mooncake, write(lines({}) + words + "\n"), 2, "trace_not_object")


def test_an_empty_line_between_requests_is_named(write):
    named(read_mooncake, write(lines({}) + "\n \n" + lines({})), 2, "trace_blank")
    named(read_azure, write(AZURE + "\n" + AZURE.splitlines()[3]), 5, "trace_blank")


@pytest.mark.parametrize("words", [AZURE, lines({})])
def test_an_empty_line_in_front_of_requests_is_named(write, words):
    named(read_trace, write("\n" + words), 1, "trace_blank")


@pytest.mark.parametrize("name", ["timestamp", "input_length", "hash_ids"])
def test_a_field_that_is_there_twice_is_named(write, name):
    twice = json.dumps(LINE)[:-1] + f', "{name}": {json.dumps(LINE[name])}}}\n'
    error = named(read_mooncake, write(lines({}) + twice), 2, "trace_twice")
    assert error.values["reason"].values["what"] == name


@pytest.mark.parametrize("name", ["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
def test_a_column_that_is_there_twice_is_named(write, name):
    header, *requests = AZURE.splitlines()
    words = "\n".join([f"{header},{name}", *(line + ",5" for line in requests)])
    assert named(read_azure, write(words), 1, "trace_twice").values["reason"].values["what"] == name


def test_another_size_of_block_is_said(write):
    path = write(lines({"hash_ids": list(range(44))}))
    assert named(read_mooncake, path, 1, "trace_hash_count").values["reason"].values["blocks"] == 2
    assert read_mooncake(path, hash_block=16).hash_block == 16
    assert read_trace(path, hash_block=16).requests[0].hash_ids == tuple(range(44))
    with pytest.raises(ArgumentError, match="hash_block"):
        read_trace(path, hash_block=0)


def test_a_csv_has_no_hash_ids(write):
    with pytest.raises(ArgumentError, match="hash ids") as caught:
        read_trace(write(AZURE), hash_block=16)
    assert caught.value.values["value"] == 16


@pytest.mark.parametrize("words", [lines({}, {}), AZURE])
def test_a_packed_file_is_unpacked_while_it_is_read(tmp_path, write, words):
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress(words.encode()))
    assert read_trace(packed).requests == read_trace(write(words)).requests


@pytest.mark.parametrize("damage", ["cut", "never packed", "overwritten"])
def test_a_damaged_packed_file_is_refused(tmp_path, damage):
    packed = tmp_path / "trace.gz"
    good = gzip.compress(AZURE.encode())
    bad = {"cut": good[:-9], "never packed": AZURE.encode(), "overwritten": good[:20] + bytes(30)}
    packed.write_bytes(bad[damage])
    with pytest.raises(ConfigError, match="trace"):
        read_trace(packed)


AZURE_FAULTS = [
    ("2023-11-16 18:15:46.5,374,44", "trace_unsorted"),
    ("2023-11-16 18:15:52+00:00,374,44", "trace_zones"),
    ("yesterday,374,44", "trace_datetime"),
    (",374,44", "trace_datetime"),
    ("2023-11-31 18:15:52,374,44", "trace_datetime"),
    ("2023-11-16 18:15:52,374", "trace_fields"),
    ("2023-11-16 18:15:52,374,44,1", "trace_fields"),
    ("2023-11-16 18:15:52,-374,44", "trace_count"),
    ("2023-11-16 18:15:52,0,44", "trace_count"),
    ("2023-11-16 18:15:52,374,0", "trace_count"),
    ("2023-11-16 18:15:52,374,", "trace_count"),
    ("2023-11-16 18:15:52,374.0,44", "trace_count"),
    ("2023-11-16 18:15:52,3_74,44", "trace_count"),
    ("2023-11-16 18:15:52,\uff13,44", "trace_count"),
    ("2023-11-16 18:15:52," + "9" * 5000 + ",44", "trace_count"),
    ('2023-11-16 18:15:52,"374,44', "trace_fields"),
    ('"' + "x" * 200_000 + '",374,44', "trace_not_csv"),
]


@pytest.mark.parametrize(("words", "code"), AZURE_FAULTS, ids=lambda value: str(value)[:40])
def test_azure_s_faults_have_their_line(write, words, code):
    named(read_azure, write(AZURE + words + "\n" + AZURE.splitlines()[3]), 5, code)


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("TIMESTAMP,ContextTokens", "GeneratedTokens"),
        ("ContextTokens,GeneratedTokens", "TIMESTAMP"),
        ("a,b", "TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("timestamp,contexttokens,generatedtokens", "TIMESTAMP, ContextTokens, GeneratedTokens"),
    ],
)
def test_a_missing_column_is_named(write, header, missing):
    for read in (read_azure, read_trace):
        error = named(read, write(header + "\n1,2,3\n"), 1, "trace_column")
        assert error.values["reason"].values["what"] == missing


@pytest.mark.parametrize("read", [read_trace, read_azure, read_mooncake])
@pytest.mark.parametrize("words", ["", "\n\n"])
def test_a_file_without_requests_is_refused(write, read, words):
    with pytest.raises(ConfigError) as caught:
        read(write(words))
    assert caught.value.code == "trace_empty"


def test_a_header_alone_is_no_trace(write):
    with pytest.raises(ConfigError) as caught:
        read_trace(write(AZURE.splitlines()[0] + "\n"))
    assert caught.value.code == "trace_empty"


@pytest.mark.parametrize("read", [read_trace, read_azure, read_mooncake])
def test_a_file_that_cannot_be_read_is_named(write, tmp_path, read):
    for path in (tmp_path / "none", tmp_path, "a\0b", write(b"\xff\xfe\x00{")):
        with pytest.raises(ConfigError) as caught:
            read(path)
        assert caught.value.code == "unreadable_file"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read_again(tmp_path, seed):
    made = Load(num_requests=80, turns=3, system_tokens=40, hash_block=16, seed=seed).trace("made")
    for trace in (made, random_trace(seed, hash_block=8)):
        write_mooncake(trace, tmp_path / "made")
        assert read_trace(tmp_path / "made", trace.hash_block).requests == trace.requests
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_whole_milliseconds_are_written_as_such(tmp_path):
    trace = Trace("x", (TraceRequest(0.0, 3, 1), TraceRequest(0.027, 3, 1), TraceRequest(1 / 3, 3, 1)))
    write_mooncake(trace, tmp_path / "x")
    stamps = [json.loads(line)["timestamp"] for line in (tmp_path / "x").read_text().splitlines()]
    assert [type(each) for each in stamps] == [int, int, float]


def test_a_trace_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(formats, "_line", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_mooncake(random_trace(1, hash_block=8), tmp_path / "old")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "old")]
    for path in (tmp_path / "no" / "folder", tmp_path, "a\0b"):
        with pytest.raises(ConfigError):
            write_mooncake(random_trace(1, hash_block=8), path)
