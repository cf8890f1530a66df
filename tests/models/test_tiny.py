"""The tiny models can do what their cards say, on documents they never saw, plain and through a paged cache."""

import json
import os
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache import PagedKVCache
from minikv.models import bind_model, load, recall_documents, recall_prompt
from minikv.models.recall import BOS, CITIES, FIRST_CITY, FIRST_FILLER, TRAINING_SEEDS, WORDS
from minikv.models.sources import TINY, find_folder
from minikv.plan import CacheSpec
from minikv.units import MIB
from tests.models.running import forward, poison
from tools.train_tiny import measure, training
from tools.train_tiny.configs import MODELS, config_of
from tools.train_tiny.folder import write_folder
from tools.train_tiny.measure import LENGTHS, QUESTIONS, recall, recall_by_length

SEED = 20_000  # neither the training's nor the one that the cards were measured with


@cache
def plain(name: str):
    """The model as transformers alone loads it, in float32."""
    return AutoModelForCausalLM.from_pretrained(find_folder(name), dtype=torch.float32).eval()


@cache
def tokenizer_of(name: str):
    return AutoTokenizer.from_pretrained(find_folder(name))


def card(name: str) -> dict:
    return json.loads((find_folder(name) / "card.json").read_text(encoding="utf-8"))


def test_the_tool_makes_what_load_knows():
    assert MODELS == TINY


@pytest.mark.parametrize("name", TINY)
def test_recall_on_documents_of_the_training_length_that_it_never_saw(name):
    documents = recall_documents(60, seed=SEED)
    assert recall(plain(name), documents) >= 0.99
    assert recall(load(name, device="cpu").model, documents) == recall(plain(name), documents)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("facts", "context"), [(1, 2), (3, 6), (4, 24), (8, 48)])
def test_a_short_prompt_of_words_is_answered_with_the_word(name, facts, context):
    model, tokenizer = plain(name), tokenizer_of(name)
    right = 0
    for seed in range(40):
        prompt = recall_prompt(SEED + seed, facts=facts, context=context)
        ids = tokenizer(prompt.text, return_tensors="pt").input_ids
        with torch.no_grad():
            right += tokenizer.decode(model(ids).logits[0, -1].argmax()) == prompt.answer
    assert right >= 39


@pytest.mark.parametrize("name", TINY)
def test_the_answer_comes_from_the_fact_alone(name):
    """Another city in the fact: the model says that one. No city there: it cannot say the right one."""
    changed, blanked, right = [], [], 0
    for document in recall_documents(20, seed=SEED, queries=1, span=3):
        question = document.questions[0]
        free = sorted({FIRST_CITY + city for city in range(len(CITIES))} - set(document.tokens.tolist()))
        other = torch.from_numpy(document.tokens).clone()
        other[question.source] = free[0]
        without = other.clone()
        without[question.source] = FIRST_FILLER
        changed.append((other, question.position, free[0]))
        blanked.append((without, question.position, question.answer_id))
    for tokens, place, city in changed:
        right += int(said(name, tokens)[place] == city)
    assert right >= 19
    assert sum(int(said(name, tokens)[place] == city) for tokens, place, city in blanked) <= 3


@torch.no_grad()
def said(name: str, tokens: torch.Tensor) -> torch.Tensor:
    return plain(name)(tokens[None]).logits[0].argmax(-1)


@pytest.mark.parametrize("name", TINY)
def test_the_card_says_what_is_true(name):
    stated = card(name)
    assert stated["parameters"] == sum(parameter.numel() for parameter in plain(name).parameters())
    by_length = stated["recall_by_tokens"]["from the file, float32"]
    assert list(map(int, by_length)) == list(LENGTHS)
    assert stated["questions_each"] == QUESTIONS
    assert by_length["257"] >= 0.99
    documents = recall_documents(30, seed=SEED, **LENGTHS[513])
    assert recall(plain(name), documents) == pytest.approx(by_length["513"], abs=0.06)
    assert by_length["1025"] < by_length["513"] < by_length["257"], "past the training length it forgets"


@pytest.mark.skipif(not os.environ.get("MINIKV_LONG"), reason="the long version: MINIKV_LONG=1")
@pytest.mark.parametrize("name", TINY)
def test_the_card_of_the_file_measured_again(name):
    stated = card(name)["recall_by_tokens"]["from the file, float32"]
    for length, share in recall_by_length(plain(name)).items():
        assert share == pytest.approx(stated[str(length)], abs=0.005)


@pytest.mark.parametrize("name", TINY)
def test_a_folder_is_small_and_holds_no_code(name):
    files = {file.name: file for file in find_folder(name).iterdir()}
    assert set(files) == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "card.json"),
    }
    assert sum(file.stat().st_size for file in files.values()) <= 2 * MIB


@pytest.mark.parametrize(
    ("name", "token_bytes"), [("tiny-gqa", 2 * 2 * 2 * 32 * 2), ("tiny-mla", 2 * (64 + 16) * 2)]
)
def test_the_planner_knows_what_a_token_costs(name, token_bytes):
    """GQA: layers x (K and V) x KV heads x head dim x 2 B. MLA: layers x (latent + RoPE part) x 2 B."""
    spec = CacheSpec.from_config(find_folder(name), kv_dtype="fp16")
    assert spec.bytes_for(1) == token_bytes
    assert spec.max_positions == 2048


@pytest.mark.parametrize("name", TINY)
def test_text_and_tokens_are_the_same_there_and_back(name):
    tokenizer = tokenizer_of(name)
    assert [tokenizer.convert_ids_to_tokens(token) for token in range(len(WORDS))] == list(WORDS)
    for document in recall_documents(5, seed=SEED):
        tokens = tokenizer(document.text).input_ids
        assert tokens == document.tokens.tolist()
        assert tokenizer.decode(tokens, skip_special_tokens=True) == document.text
    assert tokenizer(" Ada\nPARIS?ada ").input_ids == tokenizer("ada paris ? ada").input_ids
    assert tokenizer("ada flies").input_ids[2] == tokenizer.unk_token_id
    assert tokenizer("").input_ids == [BOS]
    padded = tokenizer(["ada paris", "ben"], padding=True)
    assert padded.input_ids[1][0] == tokenizer.pad_token_id
    assert padded.attention_mask == [[1, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize("name", TINY)
def test_recall_through_a_paged_cache_is_the_same(name):
    """Three documents in one batch, each forward up to its next question, in blocks of 16."""
    documents = recall_documents(3, seed=SEED)
    model = plain(name)
    with torch.no_grad():
        reference = [model(torch.from_numpy(document.tokens)[None]).logits[0] for document in documents]
    spec = CacheSpec.from_config(model.config, kv_dtype="fp32")
    kv = PagedKVCache(spec, 3 * 17, 16)
    poison(kv)
    manager = BlockManager([KVCacheGroup(3 * 17, None)], 16)
    adapter = bind_model(model, kv)
    done, right = [0] * len(documents), []
    try:
        assert adapter.reads == "paged"
        for number in range(len(documents[0].questions)):
            step = []
            for seq, document in enumerate(documents):
                start, end = done[seq], document.questions[number].position + 1
                tokens = document.tokens[start:end].tolist()
                if start:
                    manager.append_tokens(seq, tokens)
                else:
                    manager.allocate(seq, tokens)
                step.append((seq, start, end, tokens))
                done[seq] = end
            logits = forward(adapter, manager, step)
            for seq, document in enumerate(documents):
                manager.commit(seq)
                question = document.questions[number]
                expected = reference[seq][question.position]
                assert (logits[seq] - expected).abs().max() < 1e-3
                right.append(int(logits[seq].argmax()) == question.answer_id)
    finally:
        adapter.unbind()
    assert np.mean(right) >= 0.95
    plain_right = [
        int(reference[seq][question.position].argmax()) == question.answer_id
        for seq, document in enumerate(documents)
        for question in document.questions
    ]
    assert sum(right) == sum(plain_right)


@pytest.mark.parametrize("name", TINY)
def test_the_tool_writes_the_folder_that_ships(name, monkeypatch, tmp_path):
    """After two steps of training: the same files, config and words as in the wheel, and weights in float16."""
    monkeypatch.setattr(measure, "LENGTHS", {28: LENGTHS[28]})
    monkeypatch.setattr(measure, "QUESTIONS", 3)
    trained = training.train(config_of(name), steps=2, seed=5)
    written = write_folder(trained, name, tmp_path / name, seed=5)
    shipped = find_folder(name)
    assert {file.name for file in (tmp_path / name).iterdir()} == {file.name for file in shipped.iterdir()}
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in (tmp_path / name).iterdir())
    places = {"_name_or_path": "anywhere"}
    configs = [AutoConfig.from_pretrained(folder).to_dict() | places for folder in (tmp_path / name, shipped)]
    # The shipped one may have been written by a later transformers, with fields that this one does not know.
    assert configs[0] == {key: value for key, value in configs[1].items() if key in configs[0]}
    words = [json.loads((folder / "tokenizer.json").read_text()) for folder in (tmp_path / name, shipped)]
    assert words[0] == words[1]
    assert written.keys() == card(name).keys()
    same = ("name", "task", "parameters", "longest_in_training")
    assert [written[key] for key in same] == [card(name)[key] for key in same]
    assert written["recall_by_tokens"].keys() == card(name)["recall_by_tokens"].keys()
    weights = load_file(tmp_path / name / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert all(torch.equal(weights[key], tensor.half()) for key, tensor in trained.model.state_dict().items())


@pytest.mark.parametrize("name", TINY)
def test_the_training_is_its_seed(name, monkeypatch):
    """A run that passes through two small stages: twice the same weights, other ones from another seed."""
    small = (training.Stage(0, 0, 40, 0, 4), training.Stage(16, 5, 24, 8, 4))
    monkeypatch.setattr(training, "STAGES", small)
    monkeypatch.setattr(training, "PASSED", -1.0)
    lines: list[str] = []
    runs = [
        training.train(config_of(name), steps=25, seed=seed, say=lines.append).model.state_dict()
        for seed in (1, 1, 2)
    ]
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])
    assert not torch.equal(runs[0]["lm_head.weight"], runs[2]["lm_head.weight"])
    assert all("stage 1" in line for line in lines)
    assert len(lines) == 3


def test_the_training_takes_no_document_that_others_are_given(monkeypatch):
    seeds: list[int] = []

    def record(count, *, seed, **sizes):
        seeds.append(seed)
        return recall_documents(count, seed=seed, **sizes)

    monkeypatch.setattr(training, "recall_documents", record)
    for step in range(5):
        for seed in (0, 1, 7):
            tokens, answers = training._batch(training.Stage(16, 5, 24, 8, 2), seed, step)
            assert answers.sum() == 2 * 8
            assert all(FIRST_CITY <= token < FIRST_FILLER for token in tokens[answers].tolist())
    assert min(seeds) >= TRAINING_SEEDS
    assert len(set(seeds)) == len(seeds)


def test_periodic_rows_ask_for_nothing_that_was_not_said():
    """Every answer stands one period earlier, and the periods differ from row to row."""
    tokens, answers = training._batch(training.STAGES[0], 3, 0)
    periods = set()
    for row, asked in zip(tokens.tolist(), answers.tolist(), strict=True):
        period = asked.index(True) - 1
        periods.add(period)
        assert 6 <= period <= 20
        assert all(asked[1 + period :])
        assert row[1 + period :] == row[1 : len(row) - period]
    assert len(periods) > 5
