"""The folder of a tiny model: weights, config, tokenizer, and a card with what was measured."""

import copy
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from minikv.models.recall import BOS, WORDS
from tools.train_tiny.measure import QUESTIONS, recall_by_length
from tools.train_tiny.training import Trained, longest_document

# Computed in each of these with the weights of the file, which are float16.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def write_folder(trained: Trained, name: str, folder: Path, seed: int) -> dict[str, Any]:
    """Write everything into ``folder`` and return the card, measured on what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    in_training = recall_by_length(trained.model)
    copy.deepcopy(trained.model).half().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    recall = {"as trained, float32": in_training}
    for dtype in DTYPES:
        stored = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        recall[f"from the file, {str(dtype).removeprefix('torch.')}"] = recall_by_length(stored)
    card = {
        "name": name,
        "task": "recall: see minikv/models/recall.py",
        "made_by": f"python -m tools.train_tiny --model {name} --seed {seed}",
        "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
        "seed": seed,
        "steps": trained.steps,
        "stage_starts": trained.stage_starts,
        "wall_seconds": round(trained.seconds, 1),
        "threads": torch.get_num_threads(),
        "longest_in_training": longest_document(),
        "questions_each": QUESTIONS,
        "recall_by_tokens": recall,
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "transformers", "tokenizers", "numpy")},
        },
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes for the owner alone
    return card


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, whatever its case; <bos> comes first by itself; an unknown word is <unk>."""
    words = Tokenizer(WordLevel({word: token for token, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.normalizer = Lowercase()
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<bos>",
        unk_token="<unk>",
        pad_token="<pad>",
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
