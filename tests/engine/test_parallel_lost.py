"""A rank that is lost ends the run with a sentence: at once where its process has ended, else within the time limit."""

import re

from minikv.models.sources import find_folder
from tests.engine.rank_cases import PROMPTS, breaks_off, collect, leader_ends, run_ranks, start_ranks

TINY = str(find_folder("tiny-gqa"))


def lost(tmp_path, how, seconds):
    """What rank 0 tells of a run in whose fourth step rank 1 breaks off, and what rank 1 tells."""
    first, second = run_ranks(breaks_off, 2, tmp_path / "ranks", TINY, how, seconds=seconds)
    assert first["count"] == len(PROMPTS), "no request is left without an end"
    assert first["free"], "every block is back"
    assert first["exit"] == 0, "close does not wait for a rank that is gone"
    return first, second


def test_a_rank_that_is_killed_is_named(tmp_path):
    first, second = lost(tmp_path, "killed", seconds=60)
    assert second is None
    pid = (tmp_path / "ranks" / "1.pid").read_text()
    assert first["codes"] == ["parallel_ended"]
    assert first["values"]["ranks"] == f"1 (process {pid})"


def test_a_rank_that_fails_ends_and_says_why(tmp_path):
    first, second = lost(tmp_path, "raises", seconds=60)
    assert (second["error"], second["exit"]) == ("parallel_follower", 2)
    assert "rank 1 has had enough" in second["said"]
    assert first["codes"] == ["parallel_ended"]


def test_a_rank_that_hangs_ends_the_run_within_the_time_limit(tmp_path):
    first, second = lost(tmp_path, "stopped", seconds=2)
    assert second is None
    assert first["codes"] == ["parallel_silent"]
    assert re.search("[Tt]imed out|timeout", first["said"])


def test_ranks_that_lose_rank_0_end_too(tmp_path):
    folder = tmp_path / "ranks"
    first, *others = collect(start_ranks(leader_ends, 4, folder, TINY), folder)
    assert first is None
    for other in others:
        assert (other["error"], other["exit"]) == ("parallel_no_leader", 2)
