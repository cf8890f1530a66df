"""Exercise 14.2: the attention that each token in the cache has received so far, a row a KV head."""

import torch

from minikv.course.exercise import Exercise, Misconception


def add_mass(scores: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    return _add(scores, _group_sum(scores, probs.sum(1)))


def _group_sum(scores: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Sum [query heads, tokens] to [KV heads, tokens]: neighbouring query heads read the same KV head."""
    return columns.view(len(scores), -1, columns.shape[1]).sum(1)


def _add(scores: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Add ``mass`` to ``scores``; new tokens begin at 0."""
    mass = mass.clone()
    mass[:, : scores.shape[1]] += scores
    return mass


def mass_of_other_heads(scores, probs):
    """Adds query head h to KV head h % KV heads instead of h // group."""
    columns = probs.sum(1)
    return _add(scores, columns.view(-1, len(scores), columns.shape[1]).sum(0))


def mass_mean_of_group(scores, probs):
    columns = probs.sum(1)
    return _add(scores, columns.view(len(scores), -1, columns.shape[1]).mean(1))


def mass_max_of_group(scores, probs):
    columns = probs.sum(1)
    return _add(scores, columns.view(len(scores), -1, columns.shape[1]).amax(1))


def mass_of_first_in_group(scores, probs):
    columns = probs.sum(1)
    return _add(scores, columns[:: len(columns) // len(scores)])


def mass_of_last_query(scores, probs):
    return _add(scores, _group_sum(scores, probs[:, -1]))


def mass_mean_of_queries(scores, probs):
    return _add(scores, _group_sum(scores, probs.mean(1)))


def mass_of_this_step(scores, probs):
    return _group_sum(scores, probs.sum(1))


def mass_without_new(scores, probs):
    """Leaves out the new tokens: the result has as many columns as before."""
    return scores + _group_sum(scores, probs.sum(1))[:, : scores.shape[1]]


def mass_new_at_mean(scores, probs):
    """Lets new tokens begin at the mean of the old scores."""
    mass = _add(scores, _group_sum(scores, probs.sum(1)))
    mass[:, scores.shape[1] :] += scores.mean(1, keepdim=True)
    return mass


def mass_shifted(scores, probs):
    """Aligns the old scores with the last columns, as if the new tokens came first."""
    mass = _group_sum(scores, probs.sum(1)).clone()
    mass[:, probs.shape[2] - scores.shape[1] :] += scores
    return mass


def draw_steps(rng) -> list[dict]:
    """Draw decode steps and chunks of a prompt; groups of 2 to 4 query heads; each query's probabilities sum to 1."""
    cases = []
    for i in range(32):
        kv_heads, group = (2, 4, 3)[i % 3], (2, 3, 4)[(i // 3) % 3]
        queries = (1, 3, 2, 5)[i % 4]
        before = rng.randint(3, 5 + i // 4)
        random = torch.Generator().manual_seed(rng.randrange(2**31))
        shape = (kv_heads * group, queries, before + queries)
        hidden = torch.ones(queries, before + queries, dtype=torch.bool).triu(before + 1)
        logits = 2 * torch.randn(shape, generator=random, dtype=torch.float64)
        probs = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        scores = 4 * torch.rand(kv_heads, before, generator=random, dtype=torch.float64)
        cases.append({"scores": scores, "probs": probs})
    return cases


MASS = Exercise(
    id="14.2",
    minutes=5,
    name="add_mass",
    signature=("scores", "probs"),
    cases=draw_steps,
    reference=add_mass,
    misconceptions=(
        Misconception("other_heads", mass_of_other_heads),
        Misconception("mean_of_group", mass_mean_of_group),
        Misconception("max_of_group", mass_max_of_group),
        Misconception("first_in_group", mass_of_first_in_group),
        Misconception("last_query", mass_of_last_query),
        Misconception("mean_of_queries", mass_mean_of_queries),
        Misconception("this_step", mass_of_this_step),
        Misconception("no_new", mass_without_new),
        Misconception("new_at_mean", mass_new_at_mean),
        Misconception("shifted", mass_shifted),
    ),
)
