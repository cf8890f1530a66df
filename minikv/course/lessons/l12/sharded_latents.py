"""Exercise 12.3: the bytes of latents on each rank, with tensor parallelism and with data-parallel attention."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception


def latent_bytes(
    lengths: list[int], ranks: int, way: str, layers: int, kv_lora_rank: int, rope_dim: int, itemsize: int
) -> list[int]:
    return _latent_bytes(lengths, ranks, way, layers, kv_lora_rank, rope_dim, itemsize)


def _latent_bytes(
    lengths,
    ranks,
    way,
    layers,
    kv_lora_rank,
    rope_dim,
    itemsize,
    *,
    tp_divided=False,
    dp_everywhere=False,
    dp_divided=False,
    in_turn=False,
    last_of_equals=False,
    most_tokens=False,
    longest_first=False,
    k_and_v=1,
    with_rope=True,
    all_layers=True,
):
    """Apply the rule. Each keyword argument, changed, gives one wrong answer."""
    elements = kv_lora_rank + (rope_dim if with_rope else 0)
    token = k_and_v * (layers if all_layers else 1) * elements * itemsize
    total = sum(lengths)
    if way == "tp" or dp_everywhere:
        return [total * token // (ranks if tp_divided else 1)] * ranks
    if dp_divided:
        return [total * token // ranks] * ranks
    tokens = [0] * ranks
    for number, length in enumerate(sorted(lengths, reverse=True) if longest_first else lengths):
        best = max(tokens) if most_tokens else min(tokens)
        equal = [rank for rank in range(ranks) if tokens[rank] == best]
        rank = number % ranks if in_turn else equal[-1 if last_of_equals else 0]
        tokens[rank] += length
    return [count * token for count in tokens]


def draw_requests(rng) -> list[dict]:
    """Draw both layouts; fewer requests than ranks and more, one of them long; totals that the ranks divide."""
    cases = []
    for i in range(40):
        ranks = (2, 4, 8, 3)[i % 4]
        count = rng.randint(2, ranks) if i % 3 == 0 else ranks + rng.randint(1, 2 + i // 5)
        lengths = [rng.randint(1, 40) for _ in range(count)]
        lengths[rng.randrange(count - 1)] += rng.choice([0, 60, 200])
        if i % 5 == 2:
            lengths[1] = lengths[0]
        case = {"lengths": lengths, "ranks": ranks, "way": ("tp", "dp")[i // 2 % 2]}
        sizes = {"layers": rng.randint(2, 61), "kv_lora_rank": ranks * rng.choice([32, 64, 128])}
        cases.append(
            {**case, **sizes, "rope_dim": ranks * rng.choice([8, 16]), "itemsize": rng.choice([1, 2])}
        )
    return cases


LATENTS = Exercise(
    id="12.3",
    minutes=6,
    name="latent_bytes",
    signature=("lengths", "ranks", "way", "layers", "kv_lora_rank", "rope_dim", "itemsize"),
    cases=draw_requests,
    reference=latent_bytes,
    misconceptions=(
        Misconception("divided_by_tp", partial(_latent_bytes, tp_divided=True)),
        Misconception("dp_everywhere", partial(_latent_bytes, dp_everywhere=True)),
        Misconception("dp_divided", partial(_latent_bytes, dp_divided=True)),
        Misconception("in_turn", partial(_latent_bytes, in_turn=True)),
        Misconception("last_of_equals", partial(_latent_bytes, last_of_equals=True)),
        Misconception("most_tokens", partial(_latent_bytes, most_tokens=True)),
        Misconception("longest_first", partial(_latent_bytes, longest_first=True)),
        Misconception("k_and_v", partial(_latent_bytes, k_and_v=2)),
        Misconception("rope_forgotten", partial(_latent_bytes, with_rope=False)),
        Misconception("one_layer", partial(_latent_bytes, all_layers=False)),
    ),
)
