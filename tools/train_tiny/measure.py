"""What a model has learned: the share of right answers on documents that the training never saw."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from minikv.models.recall import Document, recall_documents

HELD_OUT = 7  # a seed far below the training's
QUESTIONS = 1_600  # at least so many a length

# Tokens of a document: its sizes. The last three are the training's longest length, twice and four times that.
LENGTHS: dict[int, dict[str, int]] = {
    28: {"facts": 4, "context": 24, "queries": 1, "span": 3},
    41: {"facts": 5, "context": 16, "queries": 8, "span": 24},
    97: {"facts": 8, "context": 48, "queries": 12, "span": 48},
    161: {"facts": 12, "context": 96, "queries": 16, "span": 64},
    257: {"facts": 24, "context": 192, "queries": 16, "span": 64},
    513: {"facts": 24, "context": 448, "queries": 16, "span": 64},
    1025: {"facts": 24, "context": 960, "queries": 16, "span": 64},
}


@torch.no_grad()
def recall(model: Any, documents: Sequence[Document], batch: int = 16) -> float:
    """The share of questions that the greedy next token of ``model`` answers; documents of one length."""
    right = []
    for start in range(0, len(documents), batch):
        some = documents[start : start + batch]
        tokens = torch.from_numpy(np.stack([document.tokens for document in some])).to(model.device)
        asked = torch.from_numpy(np.stack([document.positions for document in some])).to(model.device)
        said = model(input_ids=tokens, use_cache=False).logits.argmax(-1)
        right.append(said.gather(1, asked) == tokens.gather(1, asked + 1))
    return float(torch.cat(right).float().mean())


def recall_by_length(model: Any) -> dict[int, float]:
    """``recall`` at every one of LENGTHS, on the same documents each time."""
    return {
        length: round(
            recall(model, recall_documents(-(-QUESTIONS // sizes["queries"]), seed=HELD_OUT, **sizes)), 4
        )
        for length, sizes in LENGTHS.items()
    }
