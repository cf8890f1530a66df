"""The race: figures of every way and one answer, and what it says where a way cannot run. No figure is compared."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minikv.course.your_engine import engine
from minikv.course.your_engine.child import ChildError
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.measure import BLOCK, SEATS, measure, requests, vllm, ways
from minikv.course.your_engine.race import Lane, Race, run_race
from minikv.course.your_engine.ways import Elsewhere, StaticBatches
from minikv.errors import ConfigError, MiniKVError
from minikv.models import load
from minikv.plan import CacheSpec
from tests.vllm_stand_in import make

WAYS = ["static", "generate_batch", "nano", "yours", "minikv"]
TOKEN_BYTES = CacheSpec.from_config(load("tiny-gqa").model.config, kv_dtype="fp32").bytes_for(1)
ASKED = requests(5, 196, 4, 12)

RIGHT = "def victim(self):\n    return max(self.running, key=self.running.index)\n"
WRONG = "def sample(logits, step):\n    print('words')\n    return [7 for _ in step]\n"
RAISES_EARLY = "def write(self, layer, key, value, slots):\n    raise ZeroDivisionError('of mine')\n"
RAISES = "def append(self, seq):\n    raise ZeroDivisionError('of mine')\n"


def kept(source: str) -> KeptPart:
    name = source.split("(")[0].removeprefix("def ")
    return KeptPart(name, source, "", "2026-11-23T10:15:00Z", "0.1.0")


@pytest.fixture(scope="module")
def model():
    found = load("tiny-gqa").model
    found.generation_config.eos_token_id, found.generation_config.pad_token_id = None, 0
    return found


def run(model, parts=None, **other):
    """A tiny race in this process, with ``other`` ways in place of those of the same name."""
    plain = {task: vars(kept(source)) for task, source in (parts or {}).items()}
    return measure(model, ASKED, {**ways(ASKED, plain), **other}, rounds=1)


def test_the_requests_are_mostly_short_and_keep_their_bounds():
    sizes = [size for each in requests(400, 50).requests for size in (len(each.prompt), each.new)]
    assert (min(sizes), max(sizes)) == (8, 96)
    assert sorted(sizes)[len(sizes) // 2] < 24
    assert requests(3, 50) == requests(3, 50)


def test_every_way_has_figures_and_the_bytes_are_those_that_are_held(model):
    found = run(model, {"11b.2": RIGHT})
    lanes = found["lanes"]
    assert list(lanes) == WAYS
    assert found["rounds"] == 1
    assert all(lane["seconds"] > 0 for lane in lanes.values())
    peaks = {name: lane["peak_kv_bytes"] // TOKEN_BYTES for name, lane in lanes.items()}
    # A static batch is padded to its longest prompt and runs to its longest answer, whose last token is not computed.
    longest = max(len(each.prompt) for each in ASKED.requests) + max(each.new for each in ASKED.requests)
    assert peaks["static"] == len(ASKED.requests) * (longest - 1)
    most = sum(-(-(len(each.prompt) + each.new) // BLOCK) * BLOCK for each in ASKED.requests)
    for name in WAYS[1:]:
        assert ASKED.longest - 1 <= peaks[name] <= most, name
    assert peaks["nano"] == peaks["yours"]
    assert len(ASKED.requests) < SEATS


def test_an_engine_of_the_learners_that_answers_otherwise_has_no_figures(model):
    lanes = run(model, {"11c.1": WRONG})["lanes"]
    assert lanes["yours"]["absent"]["code"] == "race_differs"
    assert [name for name in WAYS if "seconds" in lanes[name]] == [
        "static",
        "generate_batch",
        "nano",
        "minikv",
    ]
    for task, source in (("09.7", RAISES), ("06.5", RAISES_EARLY)):  # the second while nano is made
        theirs = ways(ASKED, {task: vars(kept(source))})
        lanes = measure(model, ASKED, {way: theirs[way] for way in ("static", "yours")}, rounds=1)["lanes"]
        assert lanes["yours"]["absent"]["values"] == {"kind": "ZeroDivisionError", "message": "of mine"}
        assert lanes["static"]["seconds"] > 0


def test_a_peer_that_is_not_there_is_said_and_one_of_ours_is_not_forgiven(model):
    class Absent:
        def run(self, model, load, watch=False):
            raise AttributeError("no attribute 'continuous_batching_context_manager'")

    lanes = run(model, generate_batch=Absent())["lanes"]
    assert "continuous_batching" in lanes["generate_batch"]["absent"]["values"]["message"]
    with pytest.raises(AttributeError):
        run(model, generate_batch=Absent(), nano=Absent())

    class Wrong:
        def run(self, model, load, watch=False):
            found = ways(load, {})["nano"].run(model, load, watch)
            return replace(found, answers=[[*answer[:-1], answer[-1] ^ 1] for answer in found.answers])

    with pytest.raises(MiniKVError, match="nano: request 0"):
        run(model, generate_batch=Absent(), nano=Wrong())


def test_a_process_of_its_own_runs_it_with_the_learners_parts(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("raise ImportError('a file of the learner')")
    python = make(tmp_path_factory.mktemp("python"), there=False)
    found = run_race({"11b.2": kept(RIGHT), "99.9": kept(RIGHT)}, requests=2, rounds=1, vllm=python)
    *lanes, absent = found.lanes
    assert [lane.way for lane in lanes] == WAYS
    assert all(lane.seconds and lane.peak_kv_bytes for lane in lanes)
    assert (absent.way, absent.seconds) == ("vllm", None)
    assert "No module named 'vllm'" in absent.why("en")
    assert "vLLM" in found.text("zh")
    assert found.yours == ("11b.2",)
    assert (found.requests, found.rounds, found.device) == (2, 1, "cpu")
    assert sum(1 for _ in tmp_path.iterdir()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM for CPUs runs on Linux")
@pytest.mark.parametrize(
    ("at_load", "changed", "code"),
    [
        ("pass", 0, None),
        ("pass", 1, "race_differs"),
        ("raise OSError('no libgomp')", 0, "driven_ended"),
    ],
)
def test_vllm_races_from_its_own_process_and_has_no_figures_where_it_fails(
    model, tmp_path, at_load, changed, code
):
    right = StaticBatches().run(model, ASKED).answers
    said = [[token ^ changed for token in answer] for answer in right]
    python = make(tmp_path, ASKED.requests, said, at_load=at_load)
    with vllm(str(python), model, ASKED, tmp_path) as engine:
        lanes = run(model, vllm=Elsewhere(engine))["lanes"]
    assert list(lanes) == [*WAYS, "vllm"]
    assert lanes["minikv"]["seconds"] > 0
    if code is None:
        assert lanes["vllm"]["seconds"] > 0
        assert lanes["vllm"]["peak_kv_bytes"] is None
    else:
        assert lanes["vllm"]["absent"]["code"] == code


@pytest.mark.parametrize("python", [None, Path("some/python")])
def test_vllm_is_asked_for_and_refused_where_it_is_not_installed(python, monkeypatch):
    raced = []
    monkeypatch.setattr(engine, "vllm_python", lambda: python)
    monkeypatch.setattr(engine, "run_race", lambda parts, vllm: raced.append(vllm) or RACE)
    engine.my_engine.race()
    if python is None:
        with pytest.raises(ConfigError, match="make bench-vllm"):
            engine.my_engine.race(vllm=True)
    else:
        engine.my_engine.race(vllm=True)
    assert raced == ([None] if python is None else [None, python])


def test_a_race_that_takes_too_long_is_ended():
    with pytest.raises(ChildError) as refused:
        run_race({}, requests=2, rounds=1, limit_s=0.01)
    assert refused.value.code == "race_too_long"


LANES = (
    Lane("static", 2.0, 3 * 2**20),
    Lane(
        "generate_batch",
        absent={"code": "race_raised", "values": {"kind": "ImportError", "message": "too old"}},
    ),
    Lane("nano", 0.5, 2**20),
    Lane("yours", 0.4, 2**20),
    Lane("minikv", 0.25, 2**19),
)
RACE = Race(LANES, 32, 1000, 3, 0, ("09.1", "09.2"), "cpu", 21.4)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_has_every_way_and_why_one_has_no_figures(lang):
    text = RACE.text(lang)
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    yours = next(line for line in rows.values() if "2,500" in line)
    assert "15" in yours
    assert "1.00 MiB" in yours
    assert "4,000" in rows["minikv.LLM"]
    assert "–" in rows["generate_batch"]
    assert "ImportError" in text
    assert "too old" in text
    assert "<th" in RACE._repr_html_()


def test_the_plot_has_a_bar_a_way_that_ran():
    figure = RACE.figure("en")
    rates, peaks = figure.data
    assert list(rates.x) == [4000, 2500, 2000, 500]
    assert list(peaks.x) == [0.5, 1, 1, 3]
    assert len(set(rates.marker.color)) == 2
    assert rates.marker.color[1] not in (rates.marker.color[0], rates.marker.color[2]), "yours"
    assert RACE.as_dict()["lanes"][3]["tokens_per_s"] == 2500
