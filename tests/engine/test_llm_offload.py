"""Host memory behind an LLM: equal tokens whatever is swapped, saved and loaded; what is refused; nothing is lost."""

import pytest

from minikv.cache.offload import HostPool
from minikv.engine import EventLog
from minikv.engine.ext.host import transfer_speeds
from minikv.errors import ArgumentError, DoesNotFitError
from minikv.plan.preemption import TransferRates
from tests.engine.llm_world import Broken, check_empty, greedy, make, reference, run
from tests.engine.test_llm_random import MODELS, drive

SWAP = TransferRates(to_host=1e9, to_device=1e9, prefill=1.0)
RECOMPUTE = TransferRates(to_host=1.0, to_device=1.0, prefill=1e9)
HOST = {"cpu_kv_bytes": 2**20}


PROFILES = {"llama": "tight", "qwen3": "tiny chunks", "mistral": "tight", "deepseek_v3": "block of one"}


@pytest.mark.parametrize(("model_type", "profile"), PROFILES.items())
def test_outputs_are_those_of_generate(model_type, profile):
    model = reference(model_type, **MODELS[model_type])
    log, _, _ = drive(model, profile, f"{model_type} 0", swap_rates=SWAP, **HOST)
    assert {event.how for event in log.of("preempt")} <= {"swap"}
    assert len(log.of("swap_in")) <= len(log.of("preempt"))
    assert log.of("swap_out")
    assert log.of("host_hit") or log.of("swap_in")


@pytest.mark.parametrize("model_type", ["gemma3_text", "bloom"])
def test_other_caches_too(model_type):
    """Windows beside full layers; a model that reads copies."""
    log, _, _ = drive(reference(model_type), "tight", 3, swap_rates=SWAP, **HOST)
    assert log.of("swap_out")


def test_scales_move_with_their_blocks():
    """8 bits round, so the answers are compared with those of an LLM that has room for all."""
    model, params = reference("llama"), greedy(8)
    prompts = model.prompts[-6:]
    with make(model.model, kv_dtype="int8", num_blocks=200) as llm:
        due = [out.completions[0].token_ids for out in llm.generate(prompts, params)]
    with make(model.model, kv_dtype="int8", num_blocks=14, swap_rates=SWAP, **HOST) as llm:
        found = [out.completions[0].token_ids for out in llm.generate(prompts, params)]
        log = llm.scheduler.extensions[-1].emit
    assert found == due
    assert log.of("swap_in")


def test_the_decision_is_what_the_rates_say():
    model = reference("llama")
    for rates, how in ((SWAP, "swap"), (RECOMPUTE, "recompute")):
        log, _, _ = drive(model, "tight", 0, swap_rates=rates, **HOST)
        told = log.of("preempt")
        assert {event.how for event in told} == {how}
        assert all((event.swap_seconds < event.recompute_seconds) == (how == "swap") for event in told)
        assert bool(log.of("swap_out")) == (how == "swap")


def test_without_rates_everything_is_measured():
    model, log = reference("llama"), EventLog()
    with make(model.model, num_blocks=14, emit=log, **HOST) as llm:
        assert llm.offload.rates is None, "no prefill has been seen"
        for prompt in model.prompts:
            llm.add_request(prompt, greedy(12))
        run(llm)
        rates = llm.offload.rates
        assert (rates.to_host, rates.to_device) == (llm.host.to_host, llm.host.to_device)
    assert log.of("preempt")
    assert all(event.swap_seconds > 0 and event.recompute_seconds > 0 for event in log.of("preempt"))


def test_to_measure_changes_no_byte_of_the_cache():
    model = reference("llama")
    with make(model.model, num_blocks=14, swap_rates=SWAP, **HOST) as llm:
        llm.generate(model.prompts[:2], greedy(3))
        before = [part.tensor.clone() for part in llm.cache.parts(0)]
        assert all(speed > 0 for speed in transfer_speeds(llm.host.pool))
        assert all(part.tensor.equal(old) for part, old in zip(llm.cache.parts(0), before, strict=True))


def test_prefixes_come_back_from_the_host():
    """A pool of two prompts: the first prompt's blocks are overwritten, and found on the host."""
    model, log = reference("llama"), EventLog()
    long = [prompt for prompt in model.prompts if len(prompt) > 30]
    other = [(token + 1) % 97 for token in long[0]]
    with make(model.model, num_blocks=14, emit=log, swap_rates=SWAP, **HOST) as llm:
        for prompt in (long[0], other, other[::-1]):
            llm.generate([prompt], greedy(4))
        assert not log.of("host_hit")
        again = llm.generate([long[0]], greedy(4))
        model.check(again[0], greedy(4))
        (hit,) = log.of("host_hit")
        found = [event.tokens for event in log.of("hit") if event.request == hit.request]
        assert hit.tokens + sum(found) == (len(long[0]) - 1) // 4 * 4
        assert hit.bytes == hit.blocks[0] * llm.cache.kv_cache_groups[0].block_bytes(4)
        llm.generate([long[0]], greedy(4), salt="another tenant")
        assert len(log.of("host_hit")) == 1
        check_empty(llm)


@pytest.mark.parametrize("way", ["swap_out", "swap_in"])
def test_a_transfer_that_fails_ends_its_step_and_loses_nothing(way, monkeypatch):
    model, failures = reference("llama"), 0
    with make(model.model, num_blocks=14, swap_rates=SWAP, **HOST) as llm:
        real = getattr(llm.host.pool, way)

        def broken(pairs):
            nonlocal failures
            failures += 1
            if failures % 3 == 1:
                raise Broken(way)
            return real(pairs)

        monkeypatch.setattr(llm.host.pool, way, broken)
        params = greedy(12)
        for prompt in model.prompts:
            llm.add_request(prompt, params)
        _, outputs = run(llm)
        assert failures >= 2
        assert len(outputs) == len(model.prompts)
        for out in outputs.values():
            model.check(out, params)
            (each,) = out.completions
            assert each.error is None or isinstance(each.error, Broken)
        check_empty(llm)
        assert not llm.manager.host_blocks.sequences


def test_ctrl_c_in_a_transfer(monkeypatch):
    model = reference("llama")
    with make(model.model, num_blocks=14, swap_rates=SWAP, **HOST) as llm:
        real = llm.host.pool.swap_out

        def interrupt(pairs):
            monkeypatch.setattr(llm.host.pool, "swap_out", real)
            raise KeyboardInterrupt

        monkeypatch.setattr(llm.host.pool, "swap_out", interrupt)
        for prompt in model.prompts:
            llm.add_request(prompt, greedy(12))
        with pytest.raises(KeyboardInterrupt):
            run(llm)
        _, outputs = run(llm)
        for out in outputs.values():
            model.check(out, greedy(12))
        check_empty(llm)


def test_an_aborted_sequence_leaves_the_host():
    model = reference("llama")
    with make(model.model, num_blocks=14, swap_rates=SWAP, **HOST) as llm:
        names = [llm.add_request(prompt, greedy(12)) for prompt in model.prompts]
        while not llm.manager.host_blocks.sequences:
            llm.step()
        for seq_id in list(llm.manager.host_blocks.sequences):
            assert llm.abort(seq_id.request)
        assert not llm.manager.host_blocks.sequences
        run(llm)
        assert not any(llm.abort(name) for name in names)
        check_empty(llm)


def test_host_memory_is_taken_in_whole_cpu_blocks():
    model = reference("llama")
    with make(model.model, block_size=4, cpu_kv_bytes=2**16) as llm:
        each = llm.cache.kv_cache_groups[0].block_bytes(4)
        assert llm.manager.host_pools[0].num_blocks == 2**16 // each
        assert llm.host.pool.nbytes == 2**16 // each * each
    for tokens in (8, 12):
        with make(model.model, block_size=4, cpu_kv_bytes=5 * each, cpu_block_size=tokens) as llm:
            assert llm.manager.host_pools[0].num_blocks == 5 * 4 // tokens * tokens // 4


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"cpu_kv_bytes": 100}, "offload_too_small"),
        ({"cpu_kv_bytes": 2**20, "cpu_block_size": 2**20}, "offload_too_small"),
        ({"cpu_kv_bytes": 2**20, "cpu_block_size": 6}, "offload_block_size"),
        ({"cpu_kv_bytes": 2**20, "cpu_block_size": 2}, "offload_block_size"),
        ({"cpu_kv_bytes": 2**20, "cpu_block_size": 0}, "bad_count"),
        ({"cpu_kv_bytes": 0}, "bad_count"),
        ({"cpu_kv_bytes": 2.5}, "bad_count"),
        ({"cpu_kv_bytes": 2**20, "cache": "linear"}, "offload_linear"),
        ({"cpu_kv_bytes": 2**20, "swap_rates": (1, 1, 1)}, "offload_rates"),
        ({"cpu_block_size": 16}, "offload_needs_host"),
        ({"swap_rates": SWAP}, "offload_needs_host"),
        ({"prefix_dir": "folder"}, "offload_needs_host"),
        ({"cpu_kv_bytes": 2**20, "prefix_dir": 7}, "disk_path"),
        ({"cpu_kv_bytes": 2**20, "prefix_dir": __file__}, "prefix_dir_no_folder"),
        ({"cpu_kv_bytes": 2**20, "prefix_dir": __file__ + "/below"}, "prefix_dir_unusable"),
        ({"cpu_kv_bytes": 2**20, "prefix_dir": "x" * 300}, "prefix_dir_unusable"),
        ({"cpu_kv_bytes": 2**20, "prefix_dir": "zero\0byte"}, "prefix_dir_unusable"),
    ],
)
def test_what_is_refused(options, code):
    model = reference("llama").model
    attention = model.config._attn_implementation
    with pytest.raises(ArgumentError) as error:
        make(model, **options)
    assert error.value.code == code
    assert error.value.text("en") != error.value.text("zh")
    assert model.config._attn_implementation == attention, "the model is unchanged"


def test_an_llm_that_is_not_made_gives_its_host_memory_back(monkeypatch):
    """A notebook keeps the traceback, and with it whatever the frames hold."""
    closed, close = [], HostPool.close
    monkeypatch.setattr(HostPool, "close", lambda pool: (closed.append(pool), close(pool)))
    with pytest.raises(ArgumentError):
        make(reference("llama").model, cpu_kv_bytes=2**20, prefix_dir=__file__ + "/below")
    assert len(closed) == 1


def test_several_requests_load_one_prefix_in_one_step():
    """Together they read more blocks than the host has."""
    model, log = reference("llama"), EventLog()
    prompt, params = max(model.prompts, key=len), greedy(2)
    with make(model.model, block_size=4) as llm:
        host = 9 * llm.cache.kv_cache_groups[0].block_bytes(4)
    with make(model.model, num_blocks=60, swap_rates=SWAP, cpu_kv_bytes=host, emit=log) as llm:
        llm.generate([prompt], params)
        for salt in "abcdef":
            llm.generate([prompt[::-1]], params, salt=salt)
        for _ in range(4):
            llm.add_request(prompt, params)
        _, outputs = run(llm)
        for out in outputs.values():
            model.check(out, params)
            assert out.completions[0].error is None
        assert sum(event.blocks[0] for event in log.of("host_hit")) > 9


def test_several_ranks_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError) as error:
        make(reference("llama").model, cpu_kv_bytes=2**20, tp="auto")
    assert error.value.code == "offload_ranks"


def test_more_than_the_host_has():
    with pytest.raises(DoesNotFitError) as error:
        make(reference("llama").model, cpu_kv_bytes=2**60)
    assert error.value.code == "offload_no_room"


@pytest.mark.parametrize("options", [{}, {"cache": "linear"}, {"swap_rates": SWAP, **HOST}], ids=str)
def test_reset_prefix_cache_forgets_all_and_loses_nothing(options):
    model, params = reference("llama"), greedy(6)
    prompt = max(model.prompts, key=len)
    with make(model.model, num_blocks=8 if options.get("cache") else 20, **options) as llm:
        (first,) = llm.generate([prompt], params)
        llm.generate(model.prompts[:4], params)  # with host memory some of the first went there
        (again,) = llm.generate([prompt], params)
        assert llm.reset_prefix_cache()
        assert not any(pool.num_cached for pool in (*llm.manager.pools, *llm.manager.host_pools))
        (cold,) = llm.generate([prompt], params)
        (warm,) = llm.generate([prompt], params)
        for out in (first, again, cold, warm):
            model.check(out, params)
        assert first.num_cached == cold.num_cached == 0
        if not options.get("cache"):
            assert min(again.num_cached, warm.num_cached) > 0
        check_empty(llm)


def test_reset_prefix_cache_waits_for_no_request():
    model, params = reference("llama"), greedy(6)
    with make(model.model, num_blocks=40) as llm:
        (before,) = llm.generate([model.prompts[4]], params)
        name = llm.add_request(model.prompts[-1], params)
        llm.step()
        assert not llm.reset_prefix_cache()
        assert llm.generate([model.prompts[4]], params)[0].num_cached == len(model.prompts[4]) // 4 * 4
        _, outs = run(llm)
        assert list(outs) == [name]
        model.check(outs[name], params)
        model.check(before, params)
        assert llm.reset_prefix_cache()
    with pytest.raises(ArgumentError):
        llm.reset_prefix_cache()
