"""``minikv generate`` where a step fails or Ctrl+C comes: what was answered is printed, and one sentence says why."""

import json
import signal
import subprocess
import sys

import pytest

from minikv.engine import LLM
from tests.cli.inside import is_one_sentence
from tests.cli.test_generate import ASKED, PROMPT

pytestmark = pytest.mark.usefixtures("loaded_once")


def test_a_step_that_fails_is_one_sentence(terminal, monkeypatch):
    def broken(*_):
        raise RuntimeError("the kernel\nsaid no")

    monkeypatch.setattr("minikv.engine.core.runner.Runner.run", broken)
    done = terminal("generate", PROMPT, PROMPT)
    assert is_one_sentence(done), done
    assert "2 of 2" in done.err
    assert "RuntimeError: the kernel" in done.err


def test_the_answers_beside_a_failed_one_are_printed(terminal, monkeypatch):
    from minikv.engine.core.runner import Runner

    run = Runner.run

    def broken(runner, step, *others):
        if any(item.id.request == "request 1" for item in step.items):
            raise RuntimeError("no")
        return run(runner, step, *others)

    monkeypatch.setattr(Runner, "run", broken)
    arguments = ("generate", PROMPT, PROMPT, "--max-num-seqs", "1", "--max-tokens", "1")
    done = terminal(*arguments)
    assert (done.code, done.out) == (2, f"[1] {ASKED[0].answer}\n")
    assert "1 of 2" in done.err
    told = json.loads(terminal(*arguments, "--json").out)
    reasons = [output["completions"][0]["finish_reason"] for output in told["outputs"]]
    assert reasons == ["length", "error"]
    assert told["outputs"][1]["completions"][0]["error"] == "RuntimeError: no"


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl+C in the third step. The LLMs that were asked for a step."""
    step, calls = LLM.step, []

    def third(llm):
        calls.append(llm)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step(llm)

    monkeypatch.setattr(LLM, "step", third)
    return calls


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("how", [[], ["--json"]])
def test_an_interrupt_leaves_the_answers_that_were_there(how, terminal):
    texts = [asked.text for asked in ASKED]
    done = terminal("generate", *texts, "--max-num-seqs", "1", "--max-tokens", "1", *how)
    assert done.code == 130
    assert done.err.startswith("Stopped")
    if how:
        answers = [output["completions"][0]["text"].strip() for output in json.loads(done.out)["outputs"]]
        assert answers == [asked.answer for asked in ASKED[:2]]
    else:
        assert done.out == f"[1] {ASKED[0].answer}\n[2] {ASKED[1].answer}\n"


def test_an_interrupt_says_so_and_leaves_the_text(terminal, interrupted):
    done = terminal("generate", PROMPT)
    assert done.code == 130
    assert done.out.split()[0] == ASKED[0].answer
    assert done.err.splitlines()[-1].startswith("Stopped")
    with pytest.raises(Exception, match="closed"):
        interrupted[0].snapshot()


@pytest.fixture
def interruptible():
    """A shell's background jobs ignore Ctrl+C, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_real_process():
    command = [sys.executable, "-m", "minikv", "generate", PROMPT, "--max-tokens", "1900"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(4)  # it is in the middle of its answer
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(first + out) > 4
    assert b"Traceback" not in err
    assert err.decode().splitlines()[-1].startswith("Stopped")
