"""``minikv watch``: what it makes of a file of events, whole or growing, damaged or not there yet."""

from dataclasses import replace
from pathlib import Path

import pytest

from minikv.cli.watch_run import QUIET, Watched, follow
from minikv.engine.ext.events import Event, EventLog, to_json
from minikv.engine.serve.metrics import summary
from minikv.errors import ConfigError
from tests.cli.inside import is_one_sentence
from tests.cli.watching import REST, RUN, age, lines, step, text_of
from tests.engine.test_failures import crowd


def test_the_figures_are_those_of_the_events(file):
    watched = Watched(file)
    watched.read()
    run = watched.run
    assert run.count["step"] == 3
    assert (run.left, run.running) == (2, 2)
    assert run.hit_rate == 16 / (16 + 24 + 8)
    assert run.generated == 1 + 2 + 1
    assert run.seconds == 4.0
    assert run.speed == 1.0
    assert run.speed_now == 1 / 2.0, "of the last two seconds"
    assert not watched.over


def test_a_draft_that_was_refused_is_no_token(file):
    with file.open("a") as more:
        more.write(lines([replace(step(3, 15.0, decode=6), drafted=4, accepted=1)]))
    watched = Watched(file)
    watched.read()
    assert watched.run.generated == 1 + 2 + 1 + 3


def test_they_agree_with_the_summary_of_a_real_run(tmp_path):
    engine = crowd(forks=True)
    engine.run()
    log = engine.log
    log.write(tmp_path / "events.jsonl")
    watched = Watched(tmp_path / "events.jsonl")
    watched.read()
    run, found = watched.run, summary(log.events)
    assert run.count["step"] == found.steps
    assert run.hit_rate == pytest.approx(found.hit_rate)
    assert run.count["preempt"] == found.preemptions > 0
    assert run.left == 0
    assert run.count["finish"] == found.finished
    assert found.generated_tokens - found.preemptions <= run.generated <= found.generated_tokens


def test_a_file_is_taken_in_as_it_grows_in_any_pieces(tmp_path):
    path, text = tmp_path / "events.jsonl", lines(RUN + REST).encode()
    whole = Watched(file := tmp_path / "whole")
    file.write_bytes(text)
    whole.read()
    for size in (1, 7, 300):
        path.write_bytes(b"")
        watched = Watched(path)
        with path.open("ab", buffering=0) as out:
            for start in range(0, len(text), size):
                out.write(text[start : start + size])
                watched.read()
        for name in ("count", "generated", "hit_rate", "speed", "speed_now", "last"):
            assert getattr(watched.run, name) == getattr(whole.run, name)


def test_a_partial_last_line_waits_for_its_end(file):
    watched = Watched(file)
    with file.open("a") as out:
        last = to_json(step(3, 15.0, decode=1))
        out.write(last[:20])
        out.flush()
        watched.read()
        assert watched.run.count["step"] == 3
        out.write(last[20:] + "\n")
    watched.read()
    assert watched.run.count["step"] == 4


def test_a_new_run_in_the_same_file_starts_anew(file):
    watched = Watched(file)
    watched.read()
    again = [Event("arrive", 99.0, "z", 0, 3), step(0, 100.0, prefill=3, running=1, waiting=0)]
    file.write_text(lines(again))
    watched.read()
    assert (watched.run.count["arrive"], watched.run.count["step"]) == (1, 1)
    longer = [Event("arrive", 200.0, "y", 0, 3)] * 2 + RUN + REST
    file.write_text(lines(longer))
    watched.read()
    assert watched.run.count["arrive"] == 5


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_was_over_is_not_the_one_that_begins_now(gone, file):
    file.write_text(lines(RUN + REST))
    age(file, 60)
    watched = Watched(file)
    watched.read()
    assert watched.over
    if gone:
        file.unlink()
    else:
        file.write_text("")  # the next run has opened it, and loads its model
        age(file, 60)
    watched.read()
    assert not watched.over
    assert watched.run.count["arrive"] == 0
    assert text_of(watched).split()[:2] == ["waiting", "for"]
    file.write_text(lines(RUN + REST))  # byte for byte as before: still a new file
    watched.read()
    assert watched.run.count["arrive"] == 3


def test_a_run_that_was_killed_is_said_to_be_silent(file):
    watched = Watched(file)
    watched.read()
    assert watched.silent == 0
    age(file, 60)
    watched.read()
    assert 60 <= watched.silent < 90
    assert "running" in text_of(watched)
    assert "no event for 6" in text_of(watched)
    with file.open("a") as out:
        out.write(lines(REST))
    age(file, 60)
    watched.read()
    assert watched.over
    assert watched.silent == 0


DAMAGED = [
    b"not json",
    b"[1, 2]",
    b"{}",
    b'{"kind": "step"}',
    b'{"kind": "arrive", "time": "soon", "request": "a", "sample": 0, "tokens": 1}',
    b'{"kind": "hit", "time": 1, "request": "a", "sample": 0, "tokens": "many"}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"",
    b'{"kind": "nap", "time": 1, "request": "a", "sample": 0, "tokens": 1}',
    to_json(step(0, 1.0, used=(7,), cached=(2,))).encode(),
    to_json(step(0, 1.0, used=(-1,))).encode(),
    to_json(step(0, 1.0)).replace('"total": [8]', '"total": [0]').encode(),
    to_json(step(0, 1.0)).replace('"total": [8]', '"total": []').encode(),
    to_json(step(0, 1.0)).replace('"used": [3]', '"used": ["3"]').encode(),
    to_json(step(0, 1.0)).replace('"used": [3]', '"used": [Infinity]').encode(),
    to_json(step(0, 1.0)).replace('"cached": [1]', '"cached": 1').encode(),
    to_json(step(0, 1.0)).replace('"running": 2', '"running": "2"').encode(),
]


@pytest.mark.parametrize("bad", DAMAGED, ids=lambda bad: bad[:40].decode(errors="replace"))
def test_a_damaged_line_is_named_by_its_number(bad, file, terminal):
    with file.open("ab") as out:
        out.write(bad + b"\n" + lines(REST).encode())
    done = terminal("watch", str(file), "--once")
    assert is_one_sentence(done), done
    assert f"Line {len(RUN) + 1} of {file}" in done.err
    assert is_one_sentence(terminal("watch", str(file), "--lang", "zh"))


def test_a_run_is_over_when_all_have_ended_and_nobody_writes(file):
    watched = Watched(file)
    age(file, 60)
    watched.read()
    assert not watched.over, "two have not ended"
    with file.open("a") as out:
        out.write(lines(REST))
    watched.read()
    assert watched.run.left == 0
    assert not watched.over, "somebody has just written"
    age(file, QUIET + 1)
    watched.read()
    assert watched.over


def test_it_waits_for_the_file_and_follows_it_to_the_end(tmp_path):
    path, states = tmp_path / "later.jsonl", []
    script = [
        lambda: None,
        lambda: path.write_text(lines(RUN[:4])),
        lambda: path.write_text(lines(RUN)),
        lambda: path.write_text(lines(RUN + REST)),
        lambda: age(path, 60),
    ]

    def sleep(seconds):
        assert seconds == 0.2
        script.pop(0)()

    follow(Watched(path), lambda now: states.append((now.there, now.run.count["step"], now.over)), 0.2, sleep)
    assert states == [
        (False, 0, False),
        (False, 0, False),
        (True, 0, False),
        (True, 3, False),
        (True, 4, False),
        (True, 4, True),
    ]


def test_a_file_that_may_not_be_read_is_named(file, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="Permission denied"):
        Watched(file).read()


def test_an_event_log_is_such_a_file(tmp_path):
    log = EventLog()
    for event in RUN:
        log(event)
    log.write(tmp_path / "log.jsonl")
    watched = Watched(tmp_path / "log.jsonl")
    watched.read()
    assert watched.run.count["step"] == 3
