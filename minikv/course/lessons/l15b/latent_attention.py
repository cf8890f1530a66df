"""Exercise 15b.1: the attention scores of heads that all read one row of latents a token."""

from functools import partial

import torch

from minikv.course.exercise import Exercise, Misconception


def latent_scores(
    state: torch.Tensor,
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    return _scores(state, q_latent, q_rope, latent, rope, scale)


def _sum(probs: torch.Tensor) -> torch.Tensor:
    return probs.sum((0, 1))


def _scores(state, q_latent, q_rope, latent, rope, scale, *, join=_sum, causal=True, softmax=-1):
    logits = (q_latent @ latent.T + q_rope @ rope.T) * scale
    if causal:
        logits = logits.masked_fill(_later(logits), -torch.inf)
    score = join(logits.softmax(softmax))
    score[: len(state)] += state
    return score


def _later(logits: torch.Tensor) -> torch.Tensor:
    """Return [queries, tokens] bool: True where a token comes after the query."""
    queries, tokens = logits.shape[1:]
    return torch.ones(queries, tokens, dtype=torch.bool).triu(tokens - queries + 1)


def scores_of_latents(state, q_latent, q_rope, latent, rope, scale):
    return _scores(state, q_latent, 0 * q_rope, latent, rope, scale)


def scores_of_rope(state, q_latent, q_rope, latent, rope, scale):
    return _scores(state, 0 * q_latent, q_rope, latent, rope, scale)


def scores_scaled_by_width(state, q_latent, q_rope, latent, rope, scale):
    """Scales by the width of the cached row instead of the key's."""
    width = latent.shape[1] + rope.shape[1]
    return _scores(state, q_latent, q_rope, latent, rope, width**-0.5)


def scores_of_logits(state, q_latent, q_rope, latent, rope, scale):
    """Adds logits instead of probabilities."""
    logits = ((q_latent @ latent.T + q_rope @ rope.T) * scale).clone()
    score = logits.masked_fill(_later(logits), 0.0).sum((0, 1))
    score[: len(state)] += state
    return score


def scores_of_this_step(state, q_latent, q_rope, latent, rope, scale):
    return _scores(state[:0], q_latent, q_rope, latent, rope, scale)


def scores_shifted(state, q_latent, q_rope, latent, rope, scale):
    """Aligns the old scores with the last columns, as if the new tokens came first."""
    score = _scores(state[:0], q_latent, q_rope, latent, rope, scale)
    score[len(score) - len(state) :] += state
    return score


def draw_steps(rng) -> list[dict]:
    """Draw decodes and chunks; two to eight heads; all numbers of the size that a trained model has."""
    cases = []
    for i in range(30):
        heads, queries = (2, 4, 8)[i % 3], (1, 3, 2, 5)[i % 4]
        before, rank, turned = rng.randint(3, 5 + i // 4), rng.choice([5, 8]), rng.choice([2, 4])
        random = torch.Generator().manual_seed(rng.randrange(2**31))

        def draw(*shape, random=random):
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        cases.append(
            {
                "state": 4 * torch.rand(before, generator=random, dtype=torch.float64),
                "q_latent": draw(heads, queries, rank),
                "q_rope": draw(heads, queries, turned),
                "latent": draw(before + queries, rank),
                "rope": draw(before + queries, turned),
                "scale": rng.choice([6, 12]) ** -0.5,
            }
        )
    return cases


LATENT = Exercise(
    id="15b.1",
    minutes=6,
    name="latent_scores",
    signature=("state", "q_latent", "q_rope", "latent", "rope", "scale"),
    cases=draw_steps,
    reference=latent_scores,
    misconceptions=(
        Misconception("mean_of_heads", partial(_scores, join=lambda probs: probs.mean(0).sum(0))),
        Misconception("max_of_heads", partial(_scores, join=lambda probs: probs.amax(0).sum(0))),
        Misconception("first_head", partial(_scores, join=lambda probs: probs[0].sum(0))),
        Misconception("last_query", partial(_scores, join=lambda probs: probs[:, -1].sum(0))),
        Misconception("mean_of_queries", partial(_scores, join=lambda probs: probs.mean(1).sum(0))),
        Misconception("over_heads", partial(_scores, softmax=0)),
        Misconception("latents_only", scores_of_latents),
        Misconception("rope_only", scores_of_rope),
        Misconception("later_too", partial(_scores, causal=False)),
        Misconception("width", scores_scaled_by_width),
        Misconception("logits", scores_of_logits),
        Misconception("this_step", scores_of_this_step),
        Misconception("shifted", scores_shifted),
    ),
)
