"""Exercise 15.1: the blocks that eviction returns to the pool, with K and V for every head and with one latent."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception


def freed(layers: list[dict], itemsize: int, block_size: int, lengths: list[int], capacity: int) -> tuple:
    return _freed(layers, itemsize, block_size, lengths, capacity)


def _row(layer: dict) -> int:
    """Return the numbers of one token in one layer."""
    if layer["kind"] == "mla":
        return layer["latent"] + layer["rope"]
    return 2 * layer["kv_heads"] * layer["head_dim"]


def _blocks(length: int, capacity: int, size: int) -> int:
    return -(-length // size) - -(-min(length, capacity) // size)


def _freed(layers, itemsize, block_size, lengths, capacity, *, row=_row, blocks=_blocks):
    back = sum(blocks(length, capacity, block_size) for length in lengths)
    return back, back * block_size * itemsize * sum(map(row, layers))


def _on_mla(count):
    """Count another number for a layer with latents."""
    return partial(_freed, row=lambda layer: count(layer) if layer["kind"] == "mla" else _row(layer))


def freed_one_layer(layers, itemsize, block_size, lengths, capacity):
    return _freed(layers[:1], itemsize, block_size, lengths, capacity)


def freed_tokens(layers, itemsize, block_size, lengths, capacity):
    """Counts the bytes of the evicted tokens, also where their blocks stay."""
    blocks, _ = freed(layers, itemsize, block_size, lengths, capacity)
    gone = sum(max(0, length - capacity) for length in lengths)
    return blocks, gone * itemsize * sum(map(_row, layers))


def freed_together(layers, itemsize, block_size, lengths, capacity):
    """Counts all sequences as one, so that they share last blocks."""
    before, after = sum(lengths), sum(min(length, capacity) for length in lengths)
    blocks = -(-before // block_size) - -(-after // block_size)
    return blocks, blocks * block_size * itemsize * sum(map(_row, layers))


def draw_pools(rng) -> list[dict]:
    """Draw models of three kinds; texts below the capacity, on a block's end, one more and one less, and long."""
    cases = []
    for i in range(48):
        gqa = {"kind": "gqa", "kv_heads": rng.choice([2, 4, 8]), "head_dim": rng.choice([16, 32, 64])}
        mla = {
            "kind": "mla",
            "heads": rng.choice([4, 8]),
            "nope": rng.choice([16, 32]),
            "v": rng.choice([16, 24]),
            "latent": rng.choice([48, 64]),
            "rope": rng.choice([8, 16]),
        }
        size = rng.choice([4, 8, 16])
        capacity = size * rng.randint(2, 5) + rng.choice([0, 1, size - 1, 2])
        edges = [size * rng.randint(6, 12 + i) + rest for rest in (0, 1, size - 1)]
        short = rng.randint(2, capacity - 1)
        lengths = rng.sample([*edges, capacity + 1, capacity + size, short], rng.randint(2, 5))
        layers = [[gqa], [mla], [mla, mla | {"latent": 2 * mla["latent"]}], [gqa, mla]][i % 4]
        cases.append(
            {
                "layers": layers * rng.randint(2, 4),
                "itemsize": rng.choice([2, 4]),
                "block_size": size,
                "lengths": lengths,
                "capacity": capacity,
            }
        )
    return cases


FREED = Exercise(
    id="15.1",
    minutes=7,
    name="freed",
    signature=("layers", "itemsize", "block_size", "lengths", "capacity"),
    cases=draw_pools,
    reference=freed,
    misconceptions=(
        Misconception("heads", _on_mla(lambda layer: layer["heads"] * _row(layer))),
        Misconception(
            "expanded",
            _on_mla(lambda layer: layer["heads"] * (layer["nope"] + layer["rope"] + layer["v"])),
        ),
        Misconception("no_rope", _on_mla(lambda layer: layer["latent"])),
        Misconception("latent_twice", _on_mla(lambda layer: 2 * layer["latent"] + layer["rope"])),
        Misconception(
            "keys_only",
            partial(_freed, row=lambda layer: _row(layer) // 2 if layer["kind"] == "gqa" else _row(layer)),
        ),
        Misconception("one_layer", freed_one_layer),
        Misconception(
            "rounded_down", partial(_freed, blocks=lambda length, most, size: max(0, length - most) // size)
        ),
        Misconception(
            "rounded_up", partial(_freed, blocks=lambda length, most, size: -(-max(0, length - most) // size))
        ),
        Misconception("tokens", freed_tokens),
        Misconception("together", freed_together),
        Misconception(
            "short_grows",
            partial(_freed, blocks=lambda length, most, size: -(-length // size) - -(-most // size)),
        ),
    ),
)
