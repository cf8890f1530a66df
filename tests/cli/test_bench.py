"""``minikv bench``: the load has the shape that was asked for, and the figures are those of its events."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from minikv.cli import bench_run
from minikv.cli.bench_load import BenchRequest, Shape, span
from minikv.cli.bench_run import run
from minikv.cli.engine_options import Engine
from minikv.engine import LLM
from minikv.errors import ArgumentError, MiniKVError
from tests.cli.inside import is_one_sentence
from tests.models.running import World

pytestmark = pytest.mark.usefixtures("loaded_once")

SMALL = ("--num-requests", "6", "--input-len", "3:9", "--output-len", "2:5", "--num-blocks", "64")
SHAPE = Shape(num_requests=6, input_len=(3, 9), output_len=(2, 5), prefix_len=0, rate=math.inf, seed=1)
ENGINE = Engine(
    model="tiny-gqa", dtype="auto", device="auto", cache="paged", block_size=16, num_blocks=64, kv_bytes=None,
    kv_dtype=None, max_num_seqs=64, max_batched_tokens=2048, seed=1,
)  # fmt: skip


class Clock:
    """Seconds that pass while a step is computed, and while somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


def shape(**changes):
    return Shape(**(asdict(SHAPE) | changes))


def test_lengths_and_tokens_are_within_what_was_asked_for():
    found = shape(num_requests=400, prefix_len=7).requests(50)
    assert len(found) == 400
    assert {len(each.prompt) - 7 for each in found} == set(range(3, 10))
    assert {each.output for each in found} == set(range(2, 6))
    assert len({each.prompt[:7] for each in found}) == 1
    assert {token for each in found for token in each.prompt} == set(range(50))
    assert {each.at for each in found} == {0.0}


def test_the_seed_decides_the_load():
    assert SHAPE.requests(50) == SHAPE.requests(50)
    assert SHAPE.requests(50) != shape(seed=2).requests(50)


def test_arrivals_are_a_poisson_process_of_the_rate():
    at = np.array([each.at for each in shape(num_requests=4000, rate=20.0).requests(9)])
    gaps = np.diff(at)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.1), "of an exponential distribution"


@pytest.mark.parametrize(("words", "found"), [("128", (128, 128)), ("32:128", (32, 128)), ("1:1", (1, 1))])
def test_a_span_is_one_number_or_two(words, found):
    assert span("--input-len", words) == found


@pytest.mark.parametrize(
    "words", ["", "0", "-3", "a", "1:", ":2", "9:3", "1:2:3", "1.5", "0:4", "9" * 30, "9" * 5000]
)
def test_other_words_are_no_span(words):
    with pytest.raises(ArgumentError, match="--input-len"):
        span("--input-len", words)


def test_every_request_gets_exactly_its_tokens():
    load = SHAPE.requests(194)
    result = run(ENGINE, SHAPE)
    assert result.metrics.finished == 6
    assert result.metrics.generated_tokens == sum(each.output for each in load)
    assert result.prompt_tokens == sum(len(each.prompt) for each in load)
    assert result.metrics.failed == result.metrics.aborted == 0
    assert result.metrics.computed_tokens == result.prompt_tokens + result.metrics.generated_tokens - 6
    # One block of 16 tokens holds each of them, and all run at once.
    blocks = round(result.metrics.peak_occupancy * 64)
    assert blocks == 6
    assert result.peak_kv_bytes == result.kv_bytes * blocks // 64


def test_a_shared_prefix_is_found_in_the_cache():
    assert run(ENGINE, SHAPE).metrics.hit_rate == 0
    one_at_a_time = Engine(**(asdict(ENGINE) | {"max_num_seqs": 1}))
    found = run(one_at_a_time, shape(prefix_len=48))
    assert found.metrics.hit_rate == pytest.approx(5 * 48 / found.prompt_tokens)


def test_a_request_s_time_begins_when_it_is_due_and_not_when_it_is_seen(monkeypatch):
    """A step takes 10 seconds. Who is due in the middle of it waits, and that waiting is in its TTFT."""
    clock, step = Clock(), LLM.step

    def slow(llm):
        out = step(llm)
        clock.now += 10.0
        return out

    def load(self, vocabulary):
        return [BenchRequest(at, (1, 2, 3), 1) for at in (0.0, 4.0, 25.0)]

    monkeypatch.setattr(LLM, "step", slow)
    monkeypatch.setattr(Shape, "requests", load)
    found = run(ENGINE, shape(num_requests=3), clock=clock, sleep=clock.sleep).metrics
    # The clock moves after a step has ended: the first token is there at the step's beginning.
    # 0 -> 0, due at 4 and seen at 10, due at 25 and waited for from 20 on.
    assert (found.ttft.p50, found.ttft.count) == (0.0, 3)
    assert found.ttft.p99 == pytest.approx(np.percentile([0, 6, 0], 99))
    assert found.seconds == 25.0


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_has_every_figure_with_a_meaning(lang, terminal):
    done = terminal("bench", *SMALL, "--lang", lang)
    assert done.code == 0
    lines = done.out.splitlines()
    assert len(lines) == 1 + 12
    assert "tiny-gqa" in lines[0]
    assert ("请求" in done.out) == (lang == "zh")
    for line in lines[1:]:
        assert len(line.split("  ")[-1]) > 3


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_drafts_have_a_line_of_their_own(lang, terminal):
    load = ("--num-requests", "2", "--input-len", "9", "--output-len", "40", "--num-blocks", "64")
    done = terminal("bench", *load, "--prompt-lookup", "4", "--lang", lang)
    assert done.code == 0
    assert len(done.out.splitlines()) == 1 + 13
    assert {"en": "acceptance", "zh": "草稿接受率"}[lang] in done.out


def test_json_has_the_metrics_and_the_bytes(terminal):
    told = json.loads(terminal("bench", *SMALL, "--json", "--rate", "10000", "--seed", "3").out)
    assert told["model"] == "tiny-gqa"
    assert told["metrics"]["finished"] == 6
    assert 0 < told["peak_kv_bytes"] <= told["kv_bytes"]
    assert told["metrics"]["ttft"]["count"] == 6


BAD = [
    (["--num-requests", "0"], "--num-requests"),
    (["--input-len", "9:3"], "--input-len"),
    (["--output-len", "0"], "--output-len"),
    (["--prefix-len", "-1"], "--prefix-len"),
    (["--rate", "0"], "--rate"),
    (["--rate", "nan"], "--rate"),
    (["--rate", "-2"], "--rate"),
    (["--seed", "-1"], "seed"),
    (["--block-size", "0"], "block_size"),
    (["--kv-bytes", "much"], "--kv-bytes"),
    (["--model", "no/such-model"], "no/such-model"),
    (["--input-len", "5000"], "5,000"),
    (["--num-blocks", "1"], "1 block"),
    (["--num-requests", "1000000000000"], "--num-requests * (--prefix-len + --input-len)"),
    (["--prefix-len", "99999999999"], "67108864"),
    (["--lang", "fr"], "fr"),
]


@pytest.mark.parametrize(("arguments", "names"), BAD, ids=lambda value: "_".join(value))
def test_bad_input_is_one_sentence(arguments, names, terminal):
    done = terminal("bench", *SMALL[:2], *arguments)
    assert is_one_sentence(done), done
    assert names in done.err
    if "--lang" not in arguments:
        chinese = terminal("bench", *SMALL[:2], *arguments, "--lang", "zh")
        assert is_one_sentence(chinese)
        assert any("\u4e00" <= letter <= "\u9fff" for letter in chinese.err)


def test_a_step_that_fails_gives_no_figures(monkeypatch):
    real, calls = bench_run._send, []

    def broken(*arguments):
        def raise_(*_):
            raise RuntimeError("no")

        calls.append(monkeypatch.setattr("minikv.engine.core.runner.Runner.run", raise_))
        return real(*arguments)

    monkeypatch.setattr(bench_run, "_send", broken)
    with pytest.raises(MiniKVError, match="6 of 6") as caught:
        run(ENGINE, SHAPE)
    assert caught.value.code == "generate_failed"


def test_an_interrupt_gives_no_figures(terminal, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "_send", interrupted)
    done = terminal("bench", *SMALL)
    assert (done.code, done.out) == (130, "")
    assert done.err.startswith("Stopped")


def test_saved_states_let_a_model_with_states_hit_prefixes(terminal, tmp_path):
    World.bare("lfm2").save_pretrained(tmp_path)
    load = ("--num-requests", "4", "--input-len", "9", "--output-len", "2", "--prefix-len", "8")
    sizes = ("--max-num-seqs", "1", "--block-size", "4", "--num-blocks", "64", "--json")
    rates = []
    for saved in ("0", "2"):
        done = terminal("bench", "--model", str(tmp_path), *load, *sizes, "--saved-states", saved)
        rates.append(json.loads(done.out)["metrics"]["hit_rate"])
    assert rates[0] == 0 < rates[1]
