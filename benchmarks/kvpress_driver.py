"""kvpress in a process and an environment of its own, where minikv is not: compressed contexts, answers, seconds.

    python -c "from kvpress_driver import main; main()" JOB

JOB is a file of JSON, written by ``benchmarks.kvpress_peer``: a folder of weights and tokens, and the presses that are
asked. Log-probabilities [B, n - context, vocabulary] float32 go to a file for each press, what a press was given and
what it kept to another where that is asked, what else is found to standard output as one line of JSON, after whatever
the libraries have to say.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import kvpress
import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils.logging import disable_progress_bar


def main():
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    disable_progress_bar()
    found = {"versions": {name: version(name) for name in ("kvpress", "transformers", "torch")}}
    found["answers"] = [answer(job["answers"], asked) for asked in job["answers"]["presses"]]
    found["prefills"] = prefills(job["prefills"])
    print("\n" + json.dumps(found))


def press_of(asked, kept, tokens):
    """The press of a name and its options, around another one where it says so; ``kept`` of ``tokens`` tokens stay."""
    torch.manual_seed(0)  # some draw a sketch
    inner = {"compression_ratio": 1 - (kept + 0.5) / tokens} if "around" not in asked else {}
    if "around" in asked:
        inner["press"] = press_of(asked["around"], kept, tokens)
    return getattr(kvpress, asked["press"])(**inner, **asked.get("options", {}))


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def answer(job, asked):
    """{"entries": of the cache in each layer} after the last context, or why the press cannot be used."""
    model, context, rows, chosen = load(job["folder"]), job["context"], [], []
    try:
        for tokens in torch.tensor(job["tokens"]).split(1):
            cache, press = DynamicCache(), press_of(asked, asked["kept"], context)
            if "choices" in asked:
                press.compress = watched(press.compress, chosen)
            with press(model):
                model.model(input_ids=tokens[:, :context], past_key_values=cache)
            entries = [layer.keys.shape[2] for layer in cache.layers]
            places = torch.arange(context, tokens.shape[1])[None]
            out = model(input_ids=tokens[:, context:], past_key_values=cache, position_ids=places)
            rows.append(out.logits.float().log_softmax(-1))
    except Exception as error:
        return {"why": f"{type(error).__name__}: {error}"}
    np.save(asked["file"], torch.cat(rows).numpy())
    if chosen:
        keys, values, kept = (torch.cat(each).numpy() for each in zip(*chosen, strict=True))
        np.savez(asked["choices"], keys=keys, values=values, kept=kept)
    return {"entries": entries}


def watched(compress, chosen):
    """``compress`` of a press. Its keys and values [1, H, S, D] and the places [1, H, kept] that it keeps are added to
    ``chosen``, once for each context and layer."""

    def compressing(module, hidden_states, keys, values, attentions, kwargs):
        kept = compress(module, hidden_states, keys, values, attentions, kwargs)
        places = (kept[0].unsqueeze(3) == keys.unsqueeze(2)).all(-1).long().argmax(-1)
        chosen.append((keys, values, places))
        return kept

    return compressing


@torch.no_grad()
def prefills(job):
    """The CPU seconds of a prefill without a press, then with each: of all rounds the best, None where it fails."""
    model, tokens, best = load(job["folder"]), torch.tensor([job["tokens"]]), {}
    for _ in range(job["rounds"]):
        for number, asked in enumerate([None, *job["presses"]]):
            press = None if asked is None else press_of(asked, job["kept"], tokens.shape[1])
            start = time.thread_time()
            try:
                if press is None:
                    model.model(input_ids=tokens, past_key_values=DynamicCache())
                else:
                    with press(model):
                        model.model(input_ids=tokens, past_key_values=DynamicCache())
            except Exception:
                continue
            best[number] = min(best.get(number, float("inf")), time.thread_time() - start)
    return [best.get(number) for number in range(1 + len(job["presses"]))]
