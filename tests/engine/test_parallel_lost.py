"""A rank that is lost ends the run with a sentence: at once where its process has ended, else within the time limit."""

import os
import re
import socket
import subprocess
import sys

import pytest
import torch
from torch import distributed

from minikv.models.sharding import of_connection
from minikv.models.sources import find_folder
from tests.engine.rank_cases import (
    PROMPTS,
    breaks_off,
    collect,
    leader_ends,
    lost_early,
    run_ranks,
    start_ranks,
)
from tests.plan.small_models import small_config, small_model

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


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A model whose ranks compare their tied weights while they load."""
    folder = tmp_path_factory.mktemp("tied")
    small_model(small_config("llama", vocab_size=96, tie_word_embeddings=True)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("how", "own"), [("killed", None), ("damaged", "models_unreadable"), ("binding", "offload_no_room")]
)
def test_a_rank_that_is_lost_before_the_first_step_is_named(how, own, tied, tmp_path):
    """Where it can it says why by itself; the other has its number, also where it was waiting inside of torch."""
    first, second = run_ranks(lost_early, 2, tmp_path / "ranks", tied, how)
    pid = (tmp_path / "ranks" / "1.pid").read_text()
    assert (first["error"], first["exit"]) == ("parallel_ended_early", 2)
    assert f"1 (process {pid})" in first["said"]
    assert (second and second["error"]) == own


def test_all_the_others_name_it(tmp_path):
    first, second, *others = run_ranks(lost_early, 4, tmp_path / "ranks", TINY, "killed")
    pid = (tmp_path / "ranks" / "1.pid").read_text()
    assert second is None
    for other in (first, *others):
        assert other["error"] == "parallel_ended_early"
        assert f"1 (process {pid})" in other["said"]


def test_a_rank_that_hangs_while_it_loads_ends_the_run_within_the_time_limit(tmp_path):
    first, second = run_ranks(lost_early, 2, tmp_path / "ranks", TINY, "stopped")
    assert second is None
    assert first["error"] == "parallel_no_start"


def test_a_rank_that_never_comes_is_a_sentence():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from minikv.models.sharding import start_ranks\nstart_ranks(2, seconds=1)"
    world = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | world | {"CUDA_VISIBLE_DEVICES": ""},
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("minikv.errors.RankLostError: Not all 2 ranks came together"), done.stderr


@pytest.mark.parametrize(
    ("error", "due"),
    [
        (RuntimeError("[a/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (distributed.DistNetworkError("no"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (KeyError("gloo"), False),
    ],
)
def test_only_what_the_connection_raises_is_a_lost_rank(error, due):
    assert of_connection(error) is due
    outer = OSError("a library wraps it")
    outer.__cause__ = error
    assert of_connection(outer) is due
