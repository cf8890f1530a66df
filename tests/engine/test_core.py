"""What the core promises: it names no feature, is small, runs without extensions, and needs none to be there."""

import gc
import re
import subprocess
import sys
from pathlib import Path
from weakref import ref

import pytest

from minikv import LLM
from minikv.blocks import BlockManager
from minikv.engine import EventLog, EvictionConfig, Extension, Rules, SamplingParams, Scheduler
from minikv.engine.core.extension import overriding
from minikv.errors import ArgumentError
from tests.engine.fake_model import FakeModel, generate
from tests.test_imports import imports_of

CORE = Path(__file__).parents[2] / "minikv" / "engine" / "core"
FILES = sorted(CORE.glob("*.py"))
FEATURES = re.compile(r"evict|swap|offload|draft|speculat|ahead|graph|rank|emit", re.IGNORECASE)
ORDINARY = re.compile(r"paragraph", re.IGNORECASE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_names_no_feature(path):
    assert FEATURES.findall(ORDINARY.sub("", path.read_text(encoding="utf-8"))) == []


def test_it_has_at_most_1500_lines():
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= 1500


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_imports_neither_the_features_nor_what_surrounds_it(path):
    ours = {".".join(name.split(".")[:3]) for name in imports_of(path) if name.startswith("minikv.engine.")}
    assert not ours & {
        "minikv.engine.ext",
        "minikv.engine.serve",
        "minikv.engine.llm",
        "minikv.engine.factory",
    }


def test_it_can_be_imported_where_the_features_are_not_there():
    names = [path.stem for path in FILES if path.stem != "__init__"]
    code = (
        "import importlib, sys\n"
        "sys.modules['minikv.engine.ext'] = sys.modules['minikv.engine.serve'] = None\n"
        f"for name in {names}: importlib.import_module(f'minikv.engine.core.{{name}}')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("extensions", [(), (Extension(),)], ids=["none", "one that does nothing"])
def test_it_computes_every_token_without_extensions(extensions):
    """Preemptions, prefix hits, chunks and forks included, as one-at-a-time generation has them."""
    manager = BlockManager(num_blocks=12, block_size=4)
    scheduler = Scheduler(manager, max_num_seqs=4, max_batched_tokens=8, extensions=extensions)
    model, requests, preempted = FakeModel(manager), {}, 0
    for number in range(6):
        prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9][: 3 + number]
        requests[number] = scheduler.add(number, prompt, SamplingParams(max_tokens=14, n=1 + number % 2))
    while scheduler.has_work:
        step = scheduler.schedule()
        preempted += len(step.preempted)
        scheduler.finish(step, model.forward(step, requests.__getitem__))
        manager.check_invariants()
    sequences = [seq for request in requests.values() for seq in request.sequences]
    for seq in sequences:
        request = requests[seq.id.request]
        assert seq.output == generate(request.prompt, request.params, "", seq.id.sample, model.windows)
    assert preempted
    assert any(seq.num_cached for seq in sequences)
    assert not manager.sequences()


def test_a_hook_that_no_extension_overrides_is_not_called():
    class Listens(Extension):
        def on_change(self, change, seq, num_tokens, **facts):
            pass

    mine = Listens()
    assert overriding([Extension(), mine], "on_change") == (mine.on_change,)
    assert overriding([Extension(), mine], "flush") == ()


def test_an_extension_serves_one_scheduler():
    mine = Extension()
    first = Scheduler(BlockManager(8), extensions=[mine])
    with pytest.raises(ArgumentError) as refused:
        Scheduler(BlockManager(8), extensions=[mine])
    assert refused.value.code == "extension_attached"
    assert first.extensions == (mine,)


OPTIONS = {
    "plain": {},
    "events": {"emit": EventLog()},
    "drafts": {"prompt_lookup": 2},
    "host memory": {"cpu_kv_bytes": 2**18},
    "eviction": {"eviction": EvictionConfig("streaming", budget=8)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_an_llm_that_is_dropped_gives_its_memory_back_at_once(options):
    """Without ``close`` and without the garbage collector: the next LLM measures what is free."""
    llm = LLM("tiny-gqa", num_blocks=16, block_size=4, **options)
    llm.generate([[3, 4, 5]], SamplingParams(temperature=0, max_tokens=3), progress=False)
    held = ref(llm.cache), ref(llm.scheduler)
    gc.collect()
    gc.disable()
    try:
        del llm
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["allocate", "match", "num_tokens", "append", "append_tokens"])
def test_whatever_a_schedule_is_interrupted_by_the_next_one_goes_on(name, monkeypatch):
    """Also right behind ``allocate``, which has found a cached prefix."""
    for call in range(12):
        manager = BlockManager(num_blocks=12, block_size=4)
        scheduler, model, requests = (
            Scheduler(manager, max_batched_tokens=16, max_num_seqs=4),
            FakeModel(manager),
            {},
        )
        real, calls = getattr(manager, name), []

        def broken(*args, real=real, calls=calls, call=call, **kwargs):
            done = real(*args, **kwargs)
            calls.append(args)
            if len(calls) == call + 1:
                raise KeyboardInterrupt
            return done

        monkeypatch.setattr(manager, name, broken)
        for number in range(5):
            prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9][: 5 + number]
            requests[number] = scheduler.add(number, prompt, SamplingParams(max_tokens=9))
        for _ in range(400):
            if not scheduler.has_work:
                break
            try:
                step = scheduler.schedule()
            except KeyboardInterrupt:
                manager.check_invariants()
                continue
            scheduler.finish(step, model.forward(step, requests.__getitem__))
        assert not scheduler.has_work, "a sequence waits for ever"
        for request in requests.values():
            assert request.sequences[0].output == generate(
                request.prompt, request.params, "", 0, model.windows
            )


def run_to_the_end(scheduler, most=99):
    for _ in range(most):
        if not scheduler.has_work:
            return
        step = scheduler.schedule()
        scheduler.finish(step, [1] * len(step.sampled))
    raise AssertionError("a livelock")


@pytest.mark.parametrize("wrong", [lambda scheduler: scheduler.running_sequences[0], lambda scheduler: "b"])
def test_a_victim_that_is_no_candidate_is_refused_and_nothing_is_lost(wrong):
    class Wrong(Rules):
        def choose_victim(self, scheduler, candidates, asked):
            return wrong(scheduler)

    manager = BlockManager(num_blocks=6, block_size=4)
    scheduler = Scheduler(manager, max_num_seqs=4, max_batched_tokens=16, rules=Wrong())
    for number in range(4):
        scheduler.add(number, [number + 1] * 6, SamplingParams(max_tokens=10))
    with pytest.raises(ArgumentError) as refused:
        run_to_the_end(scheduler)
    assert refused.value.code == "rules_victim"
    manager.check_invariants()
    scheduler.rules = Rules()
    run_to_the_end(scheduler)
    assert not manager.sequences()


def test_a_sequence_waits_while_an_extension_lets_it_compute_nothing():
    class Holds(Extension):
        held = True

        def limit(self, seq, num_tokens):
            return 0 if self.held and seq.id.request == "a" else num_tokens

    for steps_before in (0, 2):  # while it waits, and while it runs
        holds, manager = Holds(), BlockManager(num_blocks=9, block_size=4)
        holds.held = steps_before == 0
        scheduler = Scheduler(manager, extensions=[holds])
        request = scheduler.add("a", [1, 2, 3], SamplingParams(max_tokens=6))
        for turn in range(20):
            if turn == steps_before:
                holds.held = True
                before = request.sequences[0].num_output
            if turn == steps_before + 3:
                assert request.sequences[0].num_output == before
                holds.held = False
            step = scheduler.schedule()
            scheduler.finish(step, [7] * len(step.sampled))
        assert request.sequences[0].output == [7] * 6
        assert not manager.sequences()
