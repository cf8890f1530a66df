"""Lesson 15: what its prose says of its cells is what they show, on fewer texts than the lesson's own."""

from copy import deepcopy

import pytest
import torch

from minikv.course.lessons.l15.paged_model import OnBlocks
from minikv.course.lessons.l15.story import evicting_story
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction import H2O, Budget, Echo, KeyDiff, Knorm, Random
from minikv.eviction.hf.rotary import find_rotary
from minikv.eviction.study.curves import FULL, Setting, curve
from minikv.eviction.study.tasks import stream_cases
from minikv.models import load, recall_documents
from minikv.plan import CacheSpec, find_gpu
from minikv.plan.roofline import decode_work, gpu_roof


@pytest.fixture(scope="module")
def model():
    return load("tiny-mla", device="cpu").model


@pytest.fixture(scope="module")
def text():
    [document] = recall_documents(1, seed=1)
    return [int(token) for token in document.tokens], document.positions


def test_the_log_of_the_crash_is_keys_and_values_of_every_head():
    sizes = {
        layout: CacheSpec.from_config("DeepSeek-V3", layout=layout, kv_dtype="fp16").bytes_for(8192) / 2**20
        for layout in ("hf-expanded", "hf")
    }
    assert sizes == {"hf-expanded": 39040.0, "hf": 549.0}


def test_a_quarter_kept_brings_less_with_latents():
    roof = gpu_roof(find_gpu("H200"))

    def faster(name, context):
        whole, some = (decode_work(name, 32, tokens) for tokens in (context, context // 4))
        return roof.seconds(whole.flops, whole.num_bytes) / roof.seconds(some.flops, some.num_bytes)

    for context in (8_192, 32_768, 131_072):
        assert faster("DeepSeek-V3", context) < faster("Llama-3.1-70B", context)
    assert faster("DeepSeek-V3", 131_072) < 1.5 < 3 < faster("Llama-3.1-8B", 131_072)
    assert 200 < decode_work("DeepSeek-V3", 32, 8_192).attention_intensity < 260


def test_latents_are_of_nearly_one_length_and_knorm_finds_nothing(model):
    policies = {"random": Random(), "knorm": Knorm(), "h2o": H2O(), "keydiff": KeyDiff(), "echo": Echo()}
    points = curve(model, policies, [Setting(kept=0.25)], count=8)
    scores = {point.policy: point.score for point in points}
    assert scores[FULL].share > 0.98
    assert scores["keydiff"].share > 0.95
    assert scores["echo"].share > 0.95
    assert max(scores["knorm"].share, scores["h2o"].share) < scores["random"].share
    assert scores["keydiff"].perplexity > 2 * scores["echo"].perplexity


@torch.no_grad()
def test_a_shift_turns_the_rope_key_and_nothing_else(model, text):
    tokens, _ = text
    rotary, by = find_rotary(model, latent=True), 100
    before = model(torch.tensor([tokens[:193]])).past_key_values
    rest = torch.tensor([tokens[193:]])
    want = model(rest, past_key_values=deepcopy(before)).logits
    found = {}
    for what in ("rope", "nothing", "both"):
        moved = deepcopy(before)
        for layer in moved.layers:
            places = torch.full((1, 193), by)
            if what != "nothing":
                layer.values = rotary.turn(layer.values, places, back=True)
            if what == "both":
                layer.keys = rotary.turn(layer.keys, places, back=True)
        at = torch.arange(193, len(tokens))[None] - by
        found[what] = (model(rest, past_key_values=moved, position_ids=at).logits - want).abs().max()
    assert found["rope"] < 1e-3 < 1 < min(found["nothing"], found["both"])


def test_answers_alone_do_not_show_that_positions_come_from_the_cache(model):
    cases, found = stream_cases(3, length=193), []
    for next_position in (None, lambda cache: cache.layers[0].resident):
        sizes = {"n_sink": 4, "budget": 28, "n_recent": 16}
        logs, _ = read(model, cases, "keydiff", next_position=next_position, end=129, **sizes)
        found.append(graded(logs, cases, 0, 129))
    (recall, perplexity), (wrong_recall, wrong_perplexity) = found
    assert wrong_recall > 0.9 * recall
    assert wrong_perplexity > 5 * perplexity


@torch.no_grad()
def test_both_parts_of_a_row_have_to_move(model, text):
    tokens, asked = text
    right = {}
    for left in (None, "v", "k"):
        blocks = OnBlocks(model, "keydiff", Budget(4, 42, 2), num_blocks=40)
        blocks.read("A", tokens[:193])
        parts = [getattr(blocks.cache.layer(layer), left) for layer in (0, 1) if left]
        old = [part.clone() for part in parts]
        blocks.eviction.evict(["A"])
        for part, rows in zip(parts, old, strict=True):
            part.copy_(rows)
        parts, part = [], None
        logits = blocks.read("A", tokens[193:])
        right[left] = sum(int(logits[at - 193].argmax()) == tokens[at + 1] for at in asked)
        blocks.close()
    assert right[None] == len(asked) > right["v"] + 2
    assert right["v"] > right["k"]


def two_sequences(model, text, unit):
    tokens, _ = text
    [other] = recall_documents(1, seed=7)
    blocks = OnBlocks(model, "keydiff", Budget(4, 24, 12), num_blocks=24, unit=unit)
    blocks.read("A", tokens[:100])
    blocks.read("B", tokens[:64] + [int(token) for token in other.tokens[:40]])
    return blocks, tokens[:100]


def test_under_a_shared_prefix_an_eviction_wins_nothing(model, text):
    blocks, ours = two_sequences(model, text, "token")
    used, found = [blocks.manager.pools[0].num_used], []
    for name in "AB":
        blocks.eviction.evict([name])
        used.append(blocks.manager.pools[0].num_used)
        found.append(blocks.manager.match([*ours, 0]).num_tokens)
        assert len(blocks.found([ours])) == (found[-1] == 96) * 4, "of the 12 blocks that are found B holds 8"
    assert used == [18, 18, 10]
    assert found == [96, 0]
    assert not set(blocks.manager.block_table("A")) & set(range(8)), "A reads copies now"
    assert [each.num_tokens for each in blocks.tables()] == [40, 40]
    blocks.close()


def test_whole_blocks_go_without_a_copy(model, text):
    blocks, ours = two_sequences(model, text, "block")
    before = blocks.manager.block_table("A")
    blocks.eviction.evict(["A"])
    after = blocks.manager.block_table("A")
    assert set(after) < set(before)
    assert len(after) == 5
    assert set(blocks.found([ours])) <= set(before[8:]) - set(after)
    places = [blocks.eviction.positions("A", layer)[0].tolist() for layer in (0, 1)]
    assert places[0] == places[1]
    assert len(places[0]) < 40
    blocks.close()


def test_eviction_after_each_token_moves_one_row_a_layer(model, text):
    tokens, _ = text
    blocks = OnBlocks(model, "keydiff", Budget(4, 24, 12))
    blocks.read("A", tokens[:100])
    blocks.eviction.evict(["A"])
    for step in range(3):
        blocks.read("A", tokens[100 + step : 101 + step])
        before = [blocks.eviction.positions("A", layer)[0] for layer in (0, 1)]
        blocks.eviction.evict(["A"])
        for layer, old in enumerate(before):
            new = blocks.eviction.positions("A", layer)[0]
            assert int((old[: len(new)] != new).sum()) == 1
    blocks.close()


def test_the_story_of_shared_blocks_is_that_of_the_pool(model, text):
    tokens, _ = text
    [other] = recall_documents(1, seed=7)
    texts = {"A": tokens[:100], "B": tokens[:64] + [int(token) for token in other.tokens[:40]]}
    drawn, rows, positions = evicting_story(model, texts, "AB", "en")
    assert [row[:4] for row in rows] == [
        ("A", False, 13, 96),
        ("B", False, 18, 96),
        ("A", True, 18, 96),
        ("B", True, 10, 0),
    ]
    assert len(positions) == 40
    assert "B has evicted" in drawn.text()
