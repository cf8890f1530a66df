"""How a tiny model learns to recall: from periodic sequences over short documents to long ones.

A model that is shown long documents at once stays at chance for a long time: attention has nothing to follow yet.
Sequences that repeat themselves teach it the one step that recall is made of, finding what came behind the same token
before. Their period is drawn anew for each row, for with one period the model learns a distance instead.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedConfig

from minikv.models.recall import BOS, FIRST_NAME, TRAINING_SEEDS, WORDS, recall_documents

LEARNING_RATE = 3e-3
WARM_UP = 50  # steps
REST_WEIGHT = 0.2  # of the loss on what is no answer
PASSED = 0.95  # the moving average of right answers at which the next stage begins
MEMORY = 0.95  # of that average, a step


@dataclass(frozen=True)
class Stage:
    """Documents of one size, ``batch`` of them a step. ``context`` 0: periodic sequences of ``span`` tokens."""

    context: int
    facts: int
    span: int
    queries: int
    batch: int


STAGES = (
    Stage(0, 0, 64, 0, 64),
    Stage(16, 5, 24, 8, 64),
    Stage(48, 8, 48, 12, 48),
    Stage(96, 12, 64, 16, 40),
    Stage(192, 24, 64, 16, 24),
)


def longest_document() -> int:
    """Tokens of the longest sequence that the training shows, <bos> included."""
    return 1 + max(stage.context + stage.span for stage in STAGES)


@dataclass(frozen=True)
class Trained:
    """A trained model in float32 and eval mode, and what the training took: steps, seconds, when each stage began."""

    model: Any
    steps: int
    seconds: float
    stage_starts: tuple[int, ...]


def train(
    config: PreTrainedConfig, *, steps: int, seed: int, say: Callable[[str], None] = lambda line: None
) -> Trained:
    """Train a new model of ``config`` for ``steps`` steps; ``say`` gets a line now and then.

    The same seed gives the same weights on the same machine with the same number of threads.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    start, right, stage, starts = time.perf_counter(), 0.0, 0, [0]
    for step in range(steps):
        shown = _shown(stage, step)
        tokens, answers = _batch(STAGES[shown], seed, step)
        loss, share = _loss(model, tokens, answers)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if shown == stage:
            right = MEMORY * right + (1 - MEMORY) * share
            if right > PASSED and stage + 1 < len(STAGES):
                stage, right = stage + 1, 0.0
                starts.append(step + 1)
        if step % 25 == 24:
            seconds = time.perf_counter() - start
            say(f"step {step + 1:>5}  stage {stage}  loss {loss:.3f}  right {right:.3f}  {seconds:.0f} s")
    return Trained(model.eval(), steps, time.perf_counter() - start, tuple(starts))


def _rate(step: int, steps: int) -> float:
    """The learning rate's factor: up to 1 in WARM_UP steps, level, and down to 0 over the last third."""
    return min((step + 1) / WARM_UP, 1.0, 3 * (steps - step) / steps)


def _shown(stage: int, step: int) -> int:
    """Every third step shows an earlier stage, in turn, so that nothing is forgotten: short documents included."""
    return step // 3 % stage if stage and step % 3 == 2 else stage


def _batch(stage: Stage, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [batch, n] int64, and for each whether it is an answer: what the model is to know, bool."""
    if not stage.context:
        return _periodic(np.random.default_rng([seed, TRAINING_SEEDS, step]), stage)
    documents = recall_documents(
        stage.batch,
        seed=TRAINING_SEEDS * (seed + 1) + step,
        facts=stage.facts,
        context=stage.context,
        queries=stage.queries,
        span=stage.span,
    )
    tokens = torch.from_numpy(np.stack([document.tokens for document in documents]))
    answers = torch.zeros_like(tokens, dtype=torch.bool)
    asked = torch.from_numpy(np.stack([document.positions for document in documents]))
    return tokens, answers.scatter(1, asked + 1, True)


def _periodic(random: np.random.Generator, stage: Stage) -> tuple[torch.Tensor, torch.Tensor]:
    """Random words that repeat after 6 to 20 of them; from the second time on each is an answer."""
    tokens = np.full((stage.batch, 1 + stage.span), BOS)
    answers = np.zeros(tokens.shape, bool)
    for row, right in zip(tokens, answers, strict=True):
        period = int(random.integers(6, 21))
        words = random.integers(FIRST_NAME, len(WORDS), period)
        row[1:] = np.resize(words, stage.span)
        right[1 + period :] = True
    return torch.from_numpy(tokens), torch.from_numpy(answers)


def _loss(model: Any, tokens: torch.Tensor, answers: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The loss of a batch, and the share of its answers that the model gives."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    each = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    asked = answers[:, 1:]
    loss = each[asked].mean() + REST_WEIGHT * each[~asked].mean()
    right = (logits.argmax(-1) == tokens[:, 1:])[asked].float().mean()
    return loss, float(right)
