"""What others have published on RULER, to lie beside our curves. Nothing here is measured by us."""

PUBLISHED = "RULER at 4,096 tokens, Llama-3.1-8B, % of the score, read off the plot of NVIDIA/kvpress to a point or so"
REMOVED = (50, 75, 90)  # % of the KV cache that is gone
FIGURES: dict[str, tuple[float, float, float]] = {
    "KVzip": (95, 95, 92),
    "AdaKV + ExpectedAttention": (91.5, 74, 30),
    "KeyDiff": (85, 74, 65),
    "TOVA": (75.5, 64, 38.5),
    "SnapKV, question unseen": (67, 40, 24),
    "StreamingLLM": (60, 40, 26),
    "H2O, as observed attention": (51, 29, 18),
    "random": (8, 0, 0),
}


def published_lines() -> list[str]:
    """The figures as text, a line for each policy."""
    told = [f"published, not ours: {PUBLISHED}"]
    told.append(f"{'':<28}" + "".join(f"{f'{100 - gone} % kept':>12}" for gone in REMOVED))
    told += [f"{name:<28}" + "".join(f"{each:>12g}" for each in found) for name, found in FIGURES.items()]
    return told


def published_details() -> dict[str, object]:
    """The same for a row's details, keyed by the share that is kept."""
    kept = [f"{100 - gone} %" for gone in REMOVED]
    return {"published": PUBLISHED} | {
        name: dict(zip(kept, found, strict=True)) for name, found in FIGURES.items()
    }
