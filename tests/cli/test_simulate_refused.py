"""``minikv simulate`` and bad input: one sentence, with the line where there is one."""

import json
from functools import partial

import pytest

from minikv.cli.simulate_run import parse_sweep
from minikv.errors import ArgumentError
from tests.cli.inside import is_one_sentence
from tests.cli.simulating import FLEET, chinese


def test_a_sweep_s_words_become_values():
    parse = partial(parse_sweep, hit_rate=False, fewest=False)
    assert parse(["block-size=8, 16", "utilization=0.5", "router=prefix"]) == {
        "block_size": [8, 16], "utilization": [0.5], "router": ["prefix"],
    }  # fmt: skip
    assert parse_sweep(["num_blocks=5"], hit_rate=True, fewest=False) == {"num_blocks": [5]}
    for words in (
        "",
        "x",
        "=1",
        "replicas",
        "replicas=",
        "replicas=1,",
        "replicas=x",
        "replicas=1.5",
        "nothing=1",
    ):
        with pytest.raises(ArgumentError):
            parse([words])
    with pytest.raises(ArgumentError, match="twice"):
        parse(["tp=1", "tp=2"])
    with pytest.raises(ArgumentError):
        parse_sweep(["replicas=1"], hit_rate=False, fewest=True)


MANY = ",".join(map(str, range(1, 102)))
BAD = [
    ([], "--synthetic"),
    (["{path}", "--synthetic", "9"], "one of them"),
    (["{path}.none"], "load.jsonl.none"),
    (["{path}", "--num-blocks", "9"], "--hit-rate"),
    (["{path}", "--hit-rate", "--num-blocks", "0"], "num_blocks"),
    (["{path}", "--hit-rate", "--num-blocks", "1"], "Line 1 of load.jsonl"),
    (["{path}", "--hit-rate", "--model", "x"], "One question"),
    (["{path}", "--hit-rate", "--fewest"], "One question"),
    (["{path}", "--hash-block", "16"], "Line 1 of load.jsonl"),
    (["{path}", "--limit", "0"], "--limit"),
    (["{path}", "--model", "llama-3.1-8b"], "--gpu"),
    (["{path}", "--gpu", "H200"], "--model"),
    (["{path}", "--fewest"], "--model"),
    (["{path}", "--sweep", "replicas=1,2"], "--model"),
    (["{path}", "--plot", "x.html"], "--sweep"),
    (["{path}", "--plot", "x.html", "--fewest", *FLEET, "--sweep", "tp=1"], "without --fewest"),
    (["{path}", "--plot", "/no/such/folder/x", *FLEET, "--sweep", "tp=1"], "/no/such/folder/x"),
    (["{path}", *FLEET, "--sweep", "replicas"], "block_size=8,16,32"),
    (["{path}", *FLEET, "--sweep", "colour=1"], "colour"),
    (["{path}", *FLEET, "--sweep", "tp=two"], "two"),
    (["{path}", *FLEET, "--sweep", "replicas=0,-1"], "replicas"),
    (["{path}", *FLEET, "--jobs", "2"], "--sweep"),
    (["{path}", *FLEET, "--fewest", "--jobs", "2"], "--sweep"),
    (["{path}", "--hit-rate", "--sweep", "num_blocks=1000", "--jobs", "2"], "--model"),
    (["{path}", *FLEET, "--backend", "dask", "--scheduler", "x"], "--sweep"),
    (["{path}", *FLEET, "--sweep", "tp=1", "--jobs", "0"], "-1"),
    (["{path}", *FLEET, "--sweep", "tp=1", "--backend", "threads"], "processes"),
    (["{path}", *FLEET, "--sweep", "tp=1", "--backend", "dask"], "--scheduler"),
    (["{path}", *FLEET, "--sweep", "tp=1", "--scheduler", "x"], "--backend"),
    (["{path}", *FLEET, "--sweep", "tp=1", "--backend", "dask", "--scheduler", "x", "--jobs", "2"], "--jobs"),
    (["{path}", *FLEET, "--replicas", "0"], "replicas"),
    (["{path}", *FLEET, "--replicas", "100000000"], "16.00 GiB"),
    (["{path}", *FLEET, "--sweep", "replicas=100000000"], "100,000,000 x"),
    (["{path}", *FLEET, "--host-kv", "100000000GiB"], "16.00 GiB"),
    (["{path}", *FLEET, "--sweep", f"tp={MANY}", "--sweep", f"max_num_seqs={MANY}"], "10,201 runs"),
    (
        ["{path}", *FLEET, "--fewest", "--sweep", f"tp={MANY}", "--sweep", f"max_num_seqs={MANY}"],
        "10,201 runs",
    ),
    (["{path}", *FLEET, "--router", "best"], "best"),
    (["{path}", *FLEET, "--host-kv", "much"], "--host-kv"),
    (["{path}", *FLEET, "--host-kv", "1KiB"], "1.00 KiB"),
    (["{path}", *FLEET, "--utilization", "0.05"], "GiB"),
    (["{path}", *FLEET, "--compute-efficiency", "0"], "compute_efficiency"),
    (["{path}", *FLEET, "--fewest", "--p99-ttft", "0"], "p99_ttft"),
    (["{path}", *FLEET, "--model", "no-such-model"], "no-such-model"),
    (["{path}", *FLEET, "--gpu", "no-such-gpu"], "no-such-gpu"),
    (["{path}", "--write", "/no/such/folder/x"], "/no/such/folder/x"),
    (["{path}", "--hit-rate", "--gpu", "H200"], "One question"),
    (["{path}", "--hit-rate", "--replicas", "4"], "--replicas changes nothing"),
    (["{path}", "--hit-rate", "--num-blocks", "90", "--sweep", "num_blocks=95"], "--num-blocks and --sweep"),
    (["{path}", "--tp", "8"], "--model, --gpu"),
    (["{path}", "--overhead-seconds", "0"], "--model, --gpu"),
    (["{path}", "--p99-ttft", "1"], "--fewest"),
    (["{path}", *FLEET, "--p99-tpot", "1"], "--fewest"),
    (["{path}", *FLEET, "--rate", "50"], "--synthetic"),
    (["{path}", *FLEET, "--seed", "1"], "--synthetic"),
    (["{path}", *FLEET, "--sweep", "block_size=16"], "--block-size and --sweep"),
    (["{path}", *FLEET, "--fewest", "--replicas", "4"], "leave --replicas out"),
    (["--synthetic", "0"], "num_requests"),
    (["--synthetic", "9", "--rate", "0"], "rate"),
    (["--synthetic", "9", "--turns", "0.5"], "turns"),
    (["--synthetic", "9999999999999"], "requests"),
    (["{path}", "--lang", "fr"], "fr"),
]


@pytest.mark.parametrize(("arguments", "names"), BAD, ids=lambda value: " ".join(value)[-60:])
def test_bad_input_is_one_sentence(arguments, names, load_file, terminal):
    given = [argument.format(path=load_file) for argument in arguments]
    done = terminal("simulate", *given)
    assert is_one_sentence(done), done
    assert names in done.err
    if "--lang" not in arguments:
        other = terminal("simulate", *given, "--lang", "zh")
        assert is_one_sentence(other)
        assert chinese(other.err)


@pytest.mark.parametrize(
    "asked",
    [
        ("--replicas", "100000000"),
        ("--model", "no-such-model"),
        ("--fewest", "--utilization", "0.05"),
        ("--sweep", f"tp={MANY}", "--sweep", f"max_num_seqs={MANY}"),
    ],
    ids=lambda asked: asked[0],
)
def test_a_fleet_that_cannot_be_is_refused_before_a_long_trace_is_made(asked, terminal, monkeypatch):
    def made(self):
        raise AssertionError

    monkeypatch.setattr("minikv.simulate.load.Load.trace", made)
    assert is_one_sentence(terminal("simulate", "--synthetic", "1000000", *FLEET, *asked))


@pytest.mark.parametrize("words", ["x", '{{"timestamp": 1}}', ""])
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, terminal, words):
    (tmp_path / "bad").write_text(words.format())
    assert is_one_sentence(terminal("simulate", str(tmp_path / "bad"), "--hit-rate"))


def test_a_request_too_large_for_a_replica_is_named_by_its_line(tmp_path, terminal):
    lines = [
        {"timestamp": at, "input_length": length, "output_length": 2}
        for at, length in enumerate((100, 200_000))
    ]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = terminal("simulate", str(tmp_path / "long.jsonl"), *FLEET)
    assert is_one_sentence(done)
    assert "Line 2 of long.jsonl" in done.err


def test_an_interrupt_leaves_without_figures(load_file, terminal, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("minikv.simulate.simulate", interrupted)
    done = terminal("simulate", load_file, *FLEET)
    assert (done.code, done.out) == (130, "")
    assert done.err.startswith("Stopped")
