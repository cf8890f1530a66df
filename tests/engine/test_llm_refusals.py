"""What an LLM refuses: at once, with an error of ours, and with nothing changed."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minikv import LLM
from minikv.engine import EvictionConfig, SamplingParams
from minikv.errors import ArgumentError, ConfigError, DoesNotFitError, MiniKVError, RequestTooLargeError
from minikv.models import Loaded
from tests.engine.llm_text import word_tokenizer
from tests.engine.llm_world import Broken, check_empty, greedy, make, reference, run

LLAMA = "llama"
GOOD = [1, 2, 3]

# (code, prompts, params)
BAD = [
    ("request_never_fits", [1] * 300, None),
    ("request_beyond_model", [1] * 400, greedy(400)),
    ("request_too_many", GOOD, greedy(n=9)),
    ("llm_token", [1, 97], None),
    ("llm_token", [1, -1], None),
    ("llm_token", np.array([1, 97]), None),
    ("llm_token", torch.tensor([1, 2**40]), None),
    ("llm_token", [[1], [np.int64(97)]], None),
    ("llm_token", [torch.tensor(97), torch.tensor(1)], None),
    ("no_tokens", [[]], None),
    ("no_tokens", [GOOD, []], None),
    ("bad_tokens", [1.5, 2], None),
    ("bad_tokens", [1, None], None),
    ("bad_tokens", [[True]], None),
    ("bad_tokens", [1, False, 2], None),
    ("bad_tokens", torch.tensor([[True, False]]), None),
    ("bad_tokens", [np.array([True])], None),
    ("bad_tokens", [torch.tensor(True), torch.tensor(1)], None),
    ("bad_tokens", torch.tensor([1.0, 2.0]), None),
    ("bad_tokens", np.zeros((2, 2, 2), int), None),
    ("llm_prompts", [1, [2, 3]], None),
    ("llm_prompts", [[1, 2], 3], None),
    ("llm_prompts", 7, None),
    ("llm_prompts", None, None),
    ("llm_prompts", {"a": 1}, None),
    ("llm_prompts", np.array(3), None),
    ("llm_no_tokenizer", "a text", None),
    ("llm_no_tokenizer", [GOOD, "a text"], None),
    ("llm_no_tokenizer", GOOD, greedy(stop="x")),
    ("request_params", GOOD, {"temperature": 0}),
    ("llm_one_each", [GOOD, GOOD], [greedy()] * 3),
    ("llm_one_each", GOOD, []),
    ("out_of_range", GOOD, greedy(logprobs=98)),
]


def state(llm):
    view = llm.snapshot()
    return view.running, view.waiting, view.pools, view.steps, view.generated


@pytest.mark.parametrize(("code", "prompts", "params"), BAD)
def test_a_bad_request_is_refused_and_nothing_is_changed(code, prompts, params):
    with make(reference(LLAMA).model, max_model_len=500) as llm:
        before = state(llm)
        for call in (llm.generate, llm.stream):
            with pytest.raises(MiniKVError) as raised:
                call(prompts, params)
            assert raised.value.code == code
            assert raised.value.text("zh")
        check_empty(llm)
        assert state(llm) == before


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("request_id", {"request_id": 1.5}),
        ("request_id", {"request_id": [1]}),
        ("request_id", {"request_id": True}),
        ("request_exists", {"request_id": "there"}),
        ("bad_salt", {"salt": 3}),
        ("llm_token", {"prompt": [1, np.int64(97)]}),
        ("bad_tokens", {"prompt": [[1, 2]]}),
        ("no_tokens", {"prompt": []}),
        ("request_params", {"params": 3}),
    ],
)
def test_a_bad_add_request_leaves_the_others_alone(code, more):
    model = reference(LLAMA)
    with make(model.model) as llm:
        llm.add_request(model.prompts[0], greedy(), request_id="there")
        with pytest.raises(MiniKVError) as raised:
            llm.add_request(**{"prompt": GOOD, **more})
        assert raised.value.code == code
        outputs = run(llm)[1]
        assert list(outputs) == ["there"]
        model.check(outputs["there"], greedy())


@pytest.mark.parametrize("salts", [["a", 3], ["a"], ["a", None]])
def test_bad_salts_are_refused(salts):
    with make(reference(LLAMA).model) as llm:
        with pytest.raises(ArgumentError):
            llm.generate([GOOD, GOOD], greedy(), salt=salts)
        check_empty(llm)


def test_saved_states_of_a_model_without_states_are_refused():
    with pytest.raises(ArgumentError) as raised:
        make(reference(LLAMA).model, saved_states=2)
    assert raised.value.code == "llm_no_states"
    assert "saved_states" in raised.value.text("zh") != raised.value.text("en")
    make(reference(LLAMA).model, saved_states=0).close()


def test_if_one_of_ten_is_refused_nothing_has_happened():
    model, events = reference(LLAMA), []
    with make(model.model, emit=events.append) as llm:
        for bad in ([1] * 400, [97], []):
            for call in (llm.generate, llm.stream):
                with pytest.raises(MiniKVError):
                    call([*model.prompts[:9], bad], greedy())
        assert events == []
        assert all(pool.cached == 0 for pool in llm.snapshot().pools)
        check_empty(llm)


def test_an_id_may_be_used_again_after_its_end_and_none_is_taken_twice():
    model = reference(LLAMA)
    with make(model.model) as llm:
        llm.add_request(model.prompts[0], greedy(), request_id="request 1")
        names = [llm.add_request(model.prompts[0], greedy()) for _ in range(3)]
        assert len({*names, "request 1"}) == 4
        assert run(llm)[1].keys() == {*names, "request 1"}
        llm.add_request(model.prompts[1], greedy(), request_id="request 1")
        model.check(run(llm)[1]["request 1"], greedy())


@pytest.mark.parametrize("unknown", ["nobody", 3, None, [1], 1.5])
def test_an_abort_of_nobody_is_false(unknown):
    with make(reference(LLAMA).model) as llm:
        assert llm.abort(unknown) is False


def test_nothing_to_do_is_nothing():
    with make(reference(LLAMA).model) as llm:
        assert not llm.has_work
        out = llm.step()
        assert (out.tokens, out.finished) == ((), ())


# Closed


def test_after_close_every_call_says_so():
    model = reference(LLAMA)
    llm = make(model.model)
    waiting = llm.stream(model.prompts[:2], greedy())
    next(waiting)
    llm.add_request(model.prompts[2], greedy())
    was = model.model.config._attn_implementation
    llm.close()
    llm.close()
    assert was.startswith("minikv")
    assert not model.model.config._attn_implementation.startswith("minikv")
    assert not llm.has_work
    calls = [
        lambda: llm.generate(GOOD),
        lambda: llm.generate([]),
        lambda: llm.stream(GOOD),
        lambda: llm.add_request(GOOD),
        llm.step,
        lambda: llm.abort("a"),
        llm.snapshot,
        llm.memory_report,
        lambda: list(waiting),
    ]
    for call in calls:
        with pytest.raises(ArgumentError) as raised:
            call()
        assert raised.value.code == "llm_closed"
    expected = model.due(model.prompts[0], greedy(LONG := 20))[0]
    out = model.model.generate(
        torch.tensor([model.prompts[0]]), max_new_tokens=LONG, do_sample=False, pad_token_id=0
    )
    assert out[0, len(model.prompts[0]) :].tolist() == expected, "the model is its own again"


def test_an_exception_in_the_with_block_closes():
    model = reference(LLAMA)

    def fail():
        with make(model.model) as llm:
            llm.add_request(GOOD)
            raise Broken(llm)

    with pytest.raises(Broken) as raised:
        fail()
    with pytest.raises(ArgumentError):
        raised.value.args[0].step()
    assert not model.model.config._attn_implementation.startswith("minikv")


# What no LLM can be made of


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("unknown_choice", {"cache": "holographic"}),
        ("unknown_choice", {"reads": "tea leaves"}),
        ("bad_count", {"block_size": 0}),
        ("bad_count", {"num_blocks": 0}),
        ("bad_count", {"max_num_seqs": 0}),
        ("bad_count", {"max_batched_tokens": 1.5}),
        ("bad_count", {"max_model_len": -1}),
        ("bad_count", {"seed": -1}),
        ("bad_count", {"seed": "lucky"}),
        ("scheduler_budget", {"max_batched_tokens": 7}),
        ("scheduler_callable", {"emit": 3}),
        ("scheduler_callable", {"clock": 3}),
        ("allocator_two_sizes", {"kv_bytes": 10**6, "num_blocks": 8}),
    ],
)
def test_bad_options_are_refused_and_the_model_is_unchanged(code, options):
    model = reference(LLAMA).model
    was = model.config._attn_implementation
    with pytest.raises(ArgumentError) as raised:
        make(model, **options)
    assert raised.value.code == code
    assert model.config._attn_implementation == was


@pytest.mark.parametrize("options", [{"dtype": "fp16"}, {"dtype": torch.bfloat16}, {"device": "cpu"}])
def test_options_of_load_are_not_ignored_beside_a_model(options):
    with pytest.raises(ArgumentError) as raised:
        make(reference(LLAMA).model, **options)
    assert raised.value.code == "llm_is_loaded"
    with make("tiny-gqa", dtype="bf16", device="cpu") as llm:
        assert llm.model.dtype == torch.bfloat16
        assert llm.cache.spec.kv_dtype == "bf16"


@pytest.mark.parametrize("model", [42, None, torch.nn.Linear(2, 2), word_tokenizer()])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ArgumentError) as raised:
        make(model)
    assert raised.value.code == "models_not_a_decoder"


def test_a_model_in_training_mode_is_refused():
    model = reference(LLAMA).model
    try:
        model.train()
        with pytest.raises(ArgumentError) as raised:
            make(model)
    finally:
        model.eval()
    assert raised.value.code == "models_training"


def test_a_cache_without_room_is_refused():
    model = reference(LLAMA).model
    with pytest.raises(DoesNotFitError):
        make(model, kv_bytes=100)
    with pytest.raises(DoesNotFitError) as raised:
        make(model, cache="linear", kv_bytes=100)
    assert (raised.value.code, raised.value.values["rows"]) == ("llm_linear_room", 1)
    with pytest.raises(DoesNotFitError) as raised:
        make(
            reference(LLAMA, answers=False, max_position_embeddings=2**30).model,
            cache="linear",
            max_num_seqs=2**16,
            max_batched_tokens=2**16,
            num_blocks=2**60,
            max_model_len=2**30,
        )
    assert (raised.value.code, raised.value.values["rows"]) == ("llm_linear_room", 2**16)
    with make(model, max_model_len=64) as llm, pytest.raises(RequestTooLargeError):
        llm.generate([1] * 60, SamplingParams(max_tokens=5))


def test_more_tokens_than_the_model_has_positions(monkeypatch):
    """Refused before anything is built, in all caches, unless the config says that the model goes on."""
    model = reference(LLAMA)
    for options in ({}, {"cache": "linear"}, {"eviction": EvictionConfig("keydiff", budget=64)}):
        with pytest.raises(ArgumentError) as raised:
            make(model.model, max_model_len=513, **options)
        assert (raised.value.code, raised.value.values["most"]) == ("llm_positions", 512)
        assert "513" in raised.value.text("zh")
    make(model.model, max_model_len=512).close()
    monkeypatch.setattr(model.model.config, "max_position_embeddings", 700)
    with make(model.model, max_model_len=650, num_blocks=200) as llm:
        (out,) = llm.generate([[1] * 600], greedy(4))
    assert len(out.token_ids) == 4
    monkeypatch.undo()
    bloom = reference("bloom").model
    make(bloom, max_model_len=1000).close()  # ALiBi: positions without an end


def test_a_size_by_default_holds_every_sequence_at_once():
    model = reference(LLAMA).model
    with LLM(model, max_num_seqs=3, max_model_len=64) as llm:
        assert llm.manager.pools[0].num_blocks == 3 * 4
    with LLM(model, max_num_seqs=3, max_model_len=64, cache="linear") as llm:
        assert (llm.manager.pools[0].num_blocks, llm.manager.block_size) == (3, 64)


def test_a_dtype_that_a_gpu_has_forced_is_told(monkeypatch):
    model = SimpleNamespace(device=torch.device("cuda"))
    note = ("no_bfloat16", {"gpu": "T4", "capability": "7.5"})
    monkeypatch.setattr("minikv.engine.factory.load", lambda *name, **options: Loaded(model, None, "a", note))
    with pytest.warns(UserWarning, match="float16"), pytest.raises(ArgumentError, match="SimpleNamespace"):
        LLM("a")


@pytest.mark.parametrize(
    "eos", [[5, {}], {}, "5", [[5]], 5.0, True, [1, False], -5, [3, -1], 10**30, [2**63], "x" * 10**6]
)
def test_what_ends_no_text_is_refused_before_anything_is_built(eos, monkeypatch):
    model = reference(LLAMA).model
    monkeypatch.setattr(model.generation_config, "eos_token_id", eos)
    with pytest.raises(ConfigError) as raised:
        make(model)
    assert raised.value.code == "eos_token_id"
    assert "eos_token_id" in raised.value.text("zh")
    assert len(str(raised.value)) < 400
    assert not model.config._attn_implementation.startswith("minikv")


def test_an_end_that_the_model_cannot_draw_is_a_warning(monkeypatch):
    model = reference(LLAMA).model
    monkeypatch.setattr(model.generation_config, "eos_token_id", [96, 97])
    with pytest.warns(UserWarning, match=r"token 97, and its last token is 96") as said:
        make(model).close()
    assert [each.filename.endswith("llm_world.py") for each in said] == [True], "the line that made the LLM"


def test_apples_gpu_is_refused_before_anything_is_loaded():
    with pytest.raises(ArgumentError) as caught:
        LLM("no/such/folder", device="mps")
    assert caught.value.code == "device_mps"


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_llm_is_not_copied(way):
    model = reference(LLAMA)
    with make(model.model) as llm:
        with pytest.raises(ArgumentError) as raised:
            way(llm)
        assert raised.value.code == "llm_not_copied"
        model.check(llm.generate([model.prompts[0]], greedy())[0], greedy())


def test_a_copy_of_the_model_of_an_llm_serves_another(monkeypatch):
    model = reference(LLAMA)
    with make(model.model) as llm:
        with make(copy.deepcopy(llm.model)) as other:
            twin = other.model
            model.check(other.generate([model.prompts[0]], greedy())[0], greedy())
        model.check(llm.generate([model.prompts[0]], greedy())[0], greedy())
    prompt = torch.tensor([model.prompts[0]])
    assert torch.equal(twin(prompt).logits, model.model(prompt).logits)
