"""Exercises 10.3 and 10.4: a softmax that reads one tile at a time, and the merge of two of its results."""

import math

from minikv.course.exercise import Exercise, Misconception

Tile = tuple[list[float], list[float]]  # logits, -inf where a key is hidden; and the value of each key

# 10.3 ------------------------------------------------------------------------------------------------------


def attend(tiles: list[Tile]) -> tuple[float, float]:
    largest, total, weighted = -math.inf, 0.0, 0.0
    for logits, values in tiles:
        new = max(largest, *logits)
        if new == -math.inf:
            continue  # all keys so far are hidden
        rescale = math.exp(largest - new)
        weights = [math.exp(x - new) for x in logits]
        total = total * rescale + sum(weights)
        weighted = weighted * rescale + sum(w * v for w, v in zip(weights, values, strict=True))
        largest = new
    return weighted / total, largest + math.log(total)


def attend_without_max(tiles):
    total = weighted = 0.0
    for logits, values in tiles:
        weights = [math.exp(x) for x in logits]
        total += sum(weights)
        weighted += sum(w * v for w, v in zip(weights, values, strict=True))
    return weighted / total, math.log(total)


def _attend_rescaling(carried: bool, total_too: bool, weighted_too: bool):
    def wrong(tiles):
        largest, total, weighted = -math.inf, 0.0, 0.0
        for logits, values in tiles:
            new = max(largest, *logits) if carried else max(logits)
            if new == -math.inf:
                continue
            rescale = math.exp(largest - new) if carried else 1.0
            weights = [math.exp(x - new) for x in logits]
            total = total * (rescale if total_too else 1) + sum(weights)
            weighted = weighted * (rescale if weighted_too else 1)
            weighted += sum(w * v for w, v in zip(weights, values, strict=True))
            largest = new
        return weighted / total, largest + math.log(total)

    return wrong


def attend_as_given(tiles):
    """The attempt of the task: no maximum is carried, no sum rescaled, and a hidden tile gives NaN."""
    largest, total, weighted = -math.inf, 0.0, 0.0
    for logits, values in tiles:
        largest = max(logits)
        weights = [math.exp(x - largest) for x in logits]
        total += sum(weights)
        weighted += sum(w * v for w, v in zip(weights, values, strict=True))
    return weighted / total, largest + math.log(total)


def attend_not_rescaled_nan(tiles):
    """Carries the maximum and rescales nothing; a hidden first tile gives NaN."""
    largest, total, weighted = -math.inf, 0.0, 0.0
    for logits, values in tiles:
        largest = max(largest, *logits)
        weights = [math.exp(x - largest) for x in logits]
        total += sum(weights)
        weighted += sum(w * v for w, v in zip(weights, values, strict=True))
    return weighted / total, largest + math.log(total)


def attend_mean_of_tiles(tiles):
    """Computes each tile by itself and returns the mean of the results."""
    seen = [tile for tile in tiles if max(tile[0]) > -math.inf]
    outs = [attend([tile])[0] for tile in seen]
    return sum(outs) / len(outs), attend(tiles)[1]


def attend_hidden_is_nan(tiles):
    """Subtracts -inf from -inf, which gives NaN, and NaN stays NaN."""
    largest, total, weighted = -math.inf, 0.0, 0.0
    for logits, values in tiles:
        new = max(largest, *logits)
        rescale = math.exp(largest - new)
        weights = [math.exp(x - new) for x in logits]
        total = total * rescale + sum(weights)
        weighted = weighted * rescale + sum(w * v for w, v in zip(weights, values, strict=True))
        largest = new
    return weighted / total, largest + math.log(total)


def attend_lse_without_max(tiles):
    out, lse = attend(tiles)
    return out, lse - max(x for logits, _ in tiles for x in logits)


def draw_rows(rng) -> list[dict]:
    """Draw two tiles and more, of several keys each; logits from small to beyond every exp; tiles that are hidden."""
    cases = []
    for i in range(42):
        size = 2 + i % 3
        top = (3.0, 30.0, 900.0)[i % 3]
        tiles = []
        for _ in range(2 + i // 10):
            logits = [round(rng.uniform(1.0, top), 1) for _ in range(size)]
            values = [round(rng.uniform(0.5, 9.0), 1) for _ in range(size)]
            if rng.random() < 0.3:
                logits[-1] = -math.inf
            tiles.append((logits, values))
        # The largest logit is in the first tile, or in the last; only the last makes the earlier result be rescaled.
        tiles.sort(key=lambda tile: max(tile[0]), reverse=i % 4 == 0)
        if i % 4 == 2 and len(tiles) > 2:
            tiles.append(tiles.pop(0))  # or in the middle: what comes after it has to be scaled as well
        if i % 6 == 5:
            tiles.insert(i // 6 % 2, ([-math.inf] * size, [1.0] * size))
        cases.append({"tiles": tiles})
    return cases


ATTEND = Exercise(
    id="10.3",
    minutes=7,
    name="attend",
    signature=("tiles",),
    cases=draw_rows,
    reference=attend,
    misconceptions=(
        Misconception("no_maximum", attend_without_max),
        Misconception("as_given", attend_as_given),
        Misconception("max_not_carried", _attend_rescaling(False, True, True), within=("as_given",)),
        Misconception("not_rescaled", _attend_rescaling(True, False, False), within=("not_rescaled_nan",)),
        Misconception("not_rescaled_nan", attend_not_rescaled_nan, within=("not_rescaled",)),
        Misconception("sum_not_rescaled", _attend_rescaling(True, False, True)),
        Misconception("output_not_rescaled", _attend_rescaling(True, True, False)),
        Misconception("mean_of_tiles", attend_mean_of_tiles),
        Misconception("hidden_is_nan", attend_hidden_is_nan, within=("as_given", "not_rescaled_nan")),
        Misconception("lse_without_max", attend_lse_without_max),
    ),
)

# 10.4 ------------------------------------------------------------------------------------------------------

Part = tuple[list[float], float]


def merge(out_a: list[float], lse_a: float, out_b: list[float], lse_b: float) -> Part:
    largest = max(lse_a, lse_b)
    if largest == -math.inf:
        return [0.0] * len(out_a), -math.inf
    a, b = math.exp(lse_a - largest), math.exp(lse_b - largest)
    return [(x * a + y * b) / (a + b) for x, y in zip(out_a, out_b, strict=True)], largest + math.log(a + b)


def _weighted(share):
    """Weight the two outputs with ``share(lse_a, lse_b)``; the lse is right."""

    def wrong(out_a, lse_a, out_b, lse_b):
        a, b = share(lse_a, lse_b)
        out = [x * a + y * b for x, y in zip(out_a, out_b, strict=True)]
        return out, merge(out_a, lse_a, out_b, lse_b)[1]

    return wrong


def merge_mean_unguarded(out_a, lse_a, out_b, lse_b):
    """The plain average, and an lse that is NaN where both parts are empty."""
    lse = math.nan if lse_a == lse_b == -math.inf else merge(out_a, lse_a, out_b, lse_b)[1]
    return [(x + y) / 2 for x, y in zip(out_a, out_b, strict=True)], lse


def merge_mean_of_both(out_a, lse_a, out_b, lse_b):
    return [(x + y) / 2 for x, y in zip(out_a, out_b, strict=True)], (lse_a + lse_b) / 2


def _share_of_lse(lse_a, lse_b):
    if -math.inf in (lse_a, lse_b):
        return (0.0, 0.0) if lse_a == lse_b else (float(lse_a > lse_b), float(lse_b > lse_a))
    return lse_a / (lse_a + lse_b), lse_b / (lse_a + lse_b)


def merge_overflows(out_a, lse_a, out_b, lse_b):
    a, b = math.exp(lse_a), math.exp(lse_b)
    if a + b == 0:
        return [0.0] * len(out_a), -math.inf
    return [(x * a + y * b) / (a + b) for x, y in zip(out_a, out_b, strict=True)], math.log(a + b)


def merge_empty_is_nan(out_a, lse_a, out_b, lse_b):
    if lse_a == lse_b == -math.inf:
        return [math.nan] * len(out_a), math.nan
    return merge(out_a, lse_a, out_b, lse_b)


def merge_largest_lse(out_a, lse_a, out_b, lse_b):
    return merge(out_a, lse_a, out_b, lse_b)[0], max(lse_a, lse_b)


def draw_parts(rng) -> list[dict]:
    """Draw lse values near and far apart, beyond every exp, and splits without a key: zeros and -inf."""
    cases = []
    for i in range(40):
        dim = 2 + i // 8
        outs = [[round(rng.uniform(0.5, 9.0), 1) for _ in range(dim)] for _ in "ab"]
        base = (rng.uniform(1, 4), rng.uniform(5, 40), rng.uniform(800, 1000))[i % 3]
        lses = [round(base, 1), round(base + rng.uniform(0.1, 4), 1)]
        if i % 2:
            lses.reverse()
        empty = {4: "a", 9: "b", 14: "ab", 19: "a", 24: "b", 29: "ab"}.get(i, "")
        for place, name in enumerate("ab"):
            if name in empty:
                outs[place], lses[place] = [0.0] * dim, -math.inf
        cases.append({"out_a": outs[0], "lse_a": lses[0], "out_b": outs[1], "lse_b": lses[1]})
    return cases


MERGE = Exercise(
    id="10.4",
    minutes=5,
    name="merge",
    signature=("out_a", "lse_a", "out_b", "lse_b"),
    cases=draw_parts,
    reference=merge,
    misconceptions=(
        Misconception("mean", _weighted(lambda lse_a, lse_b: (0.5, 0.5)), within=("mean_unguarded",)),
        Misconception("mean_unguarded", merge_mean_unguarded),
        Misconception("mean_of_both", merge_mean_of_both),
        Misconception("sum", _weighted(lambda lse_a, lse_b: (1.0, 1.0))),
        Misconception("lse_as_weight", _weighted(_share_of_lse)),
        Misconception("overflows", merge_overflows),
        Misconception("empty_is_nan", merge_empty_is_nan),
        Misconception("largest_lse", merge_largest_lse),
    ),
)
