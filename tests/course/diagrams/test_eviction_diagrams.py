"""Diagrams of lessons 14 to 15b: they show what a real eviction did, another policy or budget draws another picture."""

import re

import numpy as np
import pytest
import torch

from minikv.course.diagrams import attention_sums, forward_calls, head_blocks, kept_tokens, turned_parts
from minikv.course.lessons.l15b.calls import record_calls
from minikv.eviction import H2O, KeyDiff, install_kv_eviction
from minikv.eviction.study.trace import trace_eviction
from minikv.i18n import LANGUAGES
from minikv.models import load, recall_documents
from minikv.plan.catalog import find_model
from tests.course.diagrams.test_diagrams import NUMBERS, said

TOKENS = 30
[DOCUMENT] = recall_documents(1, facts=4, context=TOKENS - 1, queries=2, span=8)
FACTS = [question.source for question in DOCUMENT.questions]


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu").model


def trace(model, policy=None, budget=6, scope="head"):
    return trace_eviction(
        model,
        DOCUMENT.tokens[:TOKENS],
        policy=policy or H2O(),
        prompt=TOKENS,
        n_sink=2,
        budget=budget,
        n_recent=2,
        scope=scope,
    )


def of_tokens(traces, lang="en"):
    return kept_tokens(traces, DOCUMENT.words[:TOKENS], lang, facts=FACTS)


@torch.no_grad()
def recorded(model, steps=(20, 3, 1), budget=6):
    ids = torch.from_numpy(DOCUMENT.tokens[: sum(steps)])[None]
    with install_kv_eviction(model, policy="h2o", n_sink=2, budget=budget, n_recent=2) as installed:
        cache = installed.new_cache()
        with record_calls(cache) as calls:
            for new in ids.split(steps, 1):
                model(new, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)  # not recorded
    return calls


def of_parts(lang="en", rank=32):
    latent = {**find_model("DeepSeek-V3").config, "kv_lora_rank": rank}
    return turned_parts({"Llama": "Llama-3.1-8B", "latent": latent}, 1026, 1021, lang)


DRAWN = {
    "kept_tokens": lambda model, lang: of_tokens({"one": trace(model), "two": trace(model, KeyDiff())}, lang),
    "forward_calls": lambda model, lang: forward_calls(recorded(model), lang),
    "attention_sums": lambda model, lang: attention_sums([[1, 0], [0.25, 0.75]], lang),
    "turned_parts": lambda model, lang: of_parts(lang),
    "head_blocks": lambda model, lang: head_blocks(trace(model).kept[1, :, -1], 4, lang),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_it_says_the_same_figures_in_both_languages_and_in_its_picture(model, draw):
    english, chinese = (draw(model, lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
        assert re.search("[\u4e00-\u9fff]", say(chinese))
        assert not re.search("[\u4e00-\u9fff][,:;]|[,:;] ?[\u4e00-\u9fff]", say(chinese)), "Chinese marks"
    assert set(NUMBERS.findall(english.text())) <= set(NUMBERS.findall(" ".join(said(english))))


@pytest.mark.parametrize(("scope", "rows"), [("head", 4), ("layer", 2)])
def test_a_row_for_each_list_of_kept_tokens(model, scope, rows):
    found = trace(model, scope=scope)
    title, *lines = of_tokens({"": found}).text().splitlines()
    assert len(lines) == rows
    assert f"{TOKENS} tokens" in title
    lists = found.kept[:, :, -1].reshape(-1, TOKENS) if scope == "head" else found.kept[:, 0, -1]
    for line, kept in zip(lines, lists, strict=True):
        places = np.flatnonzero(kept)
        assert line.endswith(": " + " ".join(DOCUMENT.words[place] for place in places))
        assert f", {len(places)} tokens stay, {len(set(places.tolist()) & set(FACTS))} of them" in line


@pytest.mark.parametrize("budget", [2, 9])
def test_as_many_bars_are_filled_as_tokens_stay(model, budget):
    diagram = of_tokens({"": trace(model, budget=budget)})
    heights = re.findall(r'<rect[^>]* height="([\d.]+)"[^>]*fill="url', diagram.svg)
    assert len(heights) == 4 * (budget + 4) + 1, "and one in the legend"
    assert min(float(height) for height in heights) >= 8, "its pattern can be seen"


def test_layers_of_several_traces_stand_together(model):
    lines = of_tokens({"A": trace(model, scope="layer"), "B": trace(model, KeyDiff(), scope="layer")}).text()
    assert re.findall(r"(?m)^(.), layer (\d)", lines) == [("A", "0"), ("B", "0"), ("A", "1"), ("B", "1")]


@pytest.mark.parametrize("steps", [(20, 3, 1), (9, 4)])
@pytest.mark.parametrize("budget", [3, 6])
def test_the_calls_of_a_forward_stand_in_their_order_with_their_rows(model, steps, budget):
    calls, room = recorded(model, steps, budget), budget + 4
    assert [call.name for call in calls] == ["update", "observe", "evict"] * 2 * len(steps)
    assert {call.seen for call in calls} == {sum(steps[: n + 1]) for n in range(len(steps))}
    held, rows = 0, []
    for new in steps:
        rows.append([new, held, held + new, min(room, held + new)])
        held = rows[-1][-1]
    title, _, *lines = forward_calls(calls, layer=1).text().splitlines()
    assert f"Layer 1 in {len(steps)} forwards" in title
    for number, (line, (new, before, most, after)) in enumerate(zip(lines, rows, strict=True)):
        figures = [number, new, before, most, most, most, most, after]
        assert [int(one) for one in NUMBERS.findall(line)] == figures


@pytest.mark.parametrize("tokens", [2, 4, 7])
def test_column_sums_add_up_to_the_queries(tokens):
    probs = [[float(token <= query) / (query + 1) for token in range(tokens)] for query in range(tokens)]
    *_, last = attention_sums(probs).text().splitlines()
    want = [sum(1 / (query + 1) for query in range(token, tokens)) for token in range(tokens)]
    assert NUMBERS.findall(last) == [f"{one:.2f}" for one in [*want, tokens]]


@pytest.mark.parametrize("size", [4, 7])
def test_blocks_are_needed_by_any_head_that_keeps_one_of_their_tokens(model, size):
    kept = trace(model).kept[0, :, -1]
    text = head_blocks(kept, size).text()
    blocks = -(-TOKENS // size)
    padded = np.pad(kept, ((0, 0), (0, blocks * size - TOKENS))).reshape(2, blocks, size)
    in_place, moved = re.findall(r": (\d+) of (\d+) blocks", text)
    assert in_place == (str(padded.any(2).any(0).sum()), str(blocks))
    assert moved == (str(-(-int(kept[0].sum()) // size)), str(blocks))
    for head in range(2):
        line = re.search(rf"(?m)^head {head} keeps (\d+) (.*)$", text)
        assert int(line[1]) == kept[head].sum()
        assert [int(one) for one in line[2].split()] == padded[head].sum(1).tolist()


@pytest.mark.parametrize("rank", [64, 512])
def test_a_move_turns_k_or_the_rope_key_alone(rank):
    lines = [" ".join(line.split()) for line in of_parts(rank=rank).text().splitlines()]
    assert "Llama K 2,048 B turned back with RoPE" in lines
    assert "Llama V 2,048 B the same bits" in lines
    assert f"latent latent {2 * rank:,} B the same bits" in lines
    assert "latent rope 128 B turned back with RoPE" in lines
    assert f"latent row {2 * rank + 128:,} B" in lines
    assert f"turned: 128 of {2 * rank + 128:,} B" in said(of_parts(rank=rank))
