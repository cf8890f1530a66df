"""The page's model writes the tokens of torch, and keeps those that ``install_kv_eviction`` keeps."""

import json
import random
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from minikv import install_kv_eviction
from minikv.i18n import LANGUAGES
from minikv.models import load
from minikv.models.recall import SPECIALS, WORDS
from tests.longer import parameter
from tools.project import ROOT
from tools.site.frame import filled
from tools.site.model import MODEL_RUN, POLICIES, values
from tools.site.pages import Page
from tools.site.record import model_run
from tools.site.words import words

NODE = shutil.which("node")
FOLDER = ROOT / "minikv" / "models" / "data" / "tiny-gqa"
MODULE = ROOT / "tools" / "site" / "assets" / "model.js"
WRITTEN = 6
BUDGETS = (3, 8)

needs_node = pytest.mark.skipif(NODE is None, reason="no node here")


def texts(count: int, *, repeats: bool) -> list[str]:
    """Words of the model's vocabulary; without ``repeats`` no word twice, since keys of one word are equally long."""
    rng = random.Random(0)
    known = WORDS[len(SPECIALS) :]
    lengths = [rng.randint(6, 40) for _ in range(count)]
    return [
        " ".join(rng.choices(known, k=length) if repeats else rng.sample(known, length)) for length in lengths
    ]


def run_in_node(cases: list[dict], count: int) -> dict:
    asked = {"module": MODULE.as_uri(), "folder": str(FOLDER), "count": count, "cases": cases}
    runner = Path(__file__).with_name("model_runner.mjs")
    done = subprocess.run([NODE, runner], input=json.dumps(asked), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def ours():
    return load("tiny-gqa", dtype="fp32")


def in_python(text: str, policy: str, budget: int, count: int) -> tuple[list[int], list[list[int]] | None]:
    """The tokens written, and the positions that each layer has kept."""
    model, tokenizer = ours()
    inputs = tokenizer(text, return_tensors="pt")
    options = {"max_new_tokens": count, "do_sample": False}
    begin = inputs["input_ids"].shape[1]
    if policy == "full":
        return model.generate(**inputs, **options)[0, begin:].tolist(), None
    with install_kv_eviction(model, policy=policy, budget=budget, n_sink=1, n_recent=3) as handle:
        kept = handle.new_cache()
        written = model.generate(**inputs, **options, past_key_values=kept)[0, begin:].tolist()
    return written, [sorted(layer.positions[0, 0].tolist()) for layer in kept.layers]


@needs_node
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [parameter(10, False), parameter(200, True)])
def test_the_page_s_model_writes_and_keeps_what_the_package_does(policy, count):
    asked = [
        {"text": text, "rules": {"policy": policy, "budget": budget, "sinks": 1, "recent": 3}}
        for text in texts(count, repeats=policy != "knorm")
        for budget in (BUDGETS if policy != "full" else BUDGETS[:1])
    ]
    # What the model writes repeats words, and Knorm cannot tell a word from itself: there the prompt is evicted alone.
    written_tokens = 1 if policy == "knorm" else WRITTEN
    answers = run_in_node(asked, written_tokens)["answers"]
    evicted = 0
    for case, answer in zip(asked, answers, strict=True):
        written, kept = in_python(case["text"], policy, case["rules"]["budget"], written_tokens)
        assert answer["written"] == written, case
        assert kept is None or answer["kept"] == kept, case
        evicted += len(answer["prompt"]) + written_tokens - 1 > len(answer["kept"][0])
    assert evicted if policy != "full" else not evicted


@needs_node
def test_logits_and_token_ids_are_those_of_torch():
    model, tokenizer = ours()
    asked = ["Ada PARIS the old cat sleeps ben oslo ? ada", "no-such word?  the", ""]
    told = run_in_node([{"text": text, "rules": {"policy": "full"}} for text in asked], 1)
    for text, answer, logits in zip(asked, told["answers"], told["logits"], strict=True):
        ids = tokenizer(text)["input_ids"]
        assert answer["prompt"] == ids
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, -1]
        assert torch.allclose(torch.tensor(logits), expected, atol=1e-4)


def test_the_run_that_the_page_begins_with_is_today_s():
    assert json.loads(MODEL_RUN.read_text(encoding="utf-8")) == model_run()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_draws_that_run_before_anything_is_loaded(lang):
    told = values(words(lang))
    run = model_run()
    for (before, after), kept in zip(told["layers"], run["kept"], strict=True):
        slots = [slot for page in before for slot in page]
        assert [word for _, word in slots if word] == run["tokens"]
        assert [at for at, (kind, _) in enumerate(slots) if kind == "new"] == sorted(kept)
        assert [word for page in after for _, word in page if word] == [run["tokens"][at] for at in kept]
    html = filled("model.html", Page("model", lang, f"{lang}/model.html"), **told)
    assert html.count("<li ") == 2 * (5 + 2)
    assert run["written"] != run["full"]
    assert run["written"] in html.partition('class="example"')[2]
