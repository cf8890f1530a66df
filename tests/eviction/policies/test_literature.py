"""Each policy computes what its paper says, and one of one's own takes a few lines."""

from dataclasses import FrozenInstanceError, dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction import (
    H2O,
    POLICIES,
    TOVA,
    KeyDiff,
    Knorm,
    Needs,
    Policy,
    PyramidKV,
    Random,
    Seen,
    SnapKV,
    StreamingLLM,
    View,
    policy_of,
)


def view(tokens=20, seed=0, padding=0, **given):
    """Random keys and values of two rows and three heads; the second row begins with padding."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(2, 3, tokens, 8, generator=generator)
    starts = torch.tensor([0, padding])
    positions = (torch.arange(tokens) - starts[:, None]).clamp(min=-1)[:, None].expand(2, 3, tokens)
    whole = {
        "keys": keys,
        "values": keys.flip(-1),
        "state": torch.rand(2, 3, tokens, generator=generator),
        "window_probs": torch.rand(2, 3, tokens, generator=generator),
        "positions": positions,
        "valid": positions[:, 0] >= 0,
    }
    return View(**(whole | given))


@pytest.mark.parametrize("name", POLICIES)
def test_a_score_for_every_token(name):
    given = view(padding=5)
    score = policy_of(name).score(given)
    assert score.shape == (2, 3, 20)
    assert score.dtype == torch.float32
    assert score.isfinite().all()


@pytest.mark.parametrize("page", ["guide.md", "guide.zh.md"])
def test_the_guide_has_a_row_for_each_name_and_says_which_run_on_blocks(page):
    text = (Path(__file__).parents[3] / "docs" / page).read_text(encoding="utf-8")
    rows = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("| `")]
    on_blocks = {
        cells[0].strip(" `"): cells[4].strip() in ("yes", "支持") for cells in rows if len(cells) == 5
    }
    # Those with a budget for each layer: layers on blocks share a table
    assert on_blocks == {name: name not in ("pyramidkv", "echo-layers") for name in POLICIES}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_a_frozen_value(name):
    assert policy_of(name) == policy_of(name)
    assert policy_of(policy_of(name)) == policy_of(name)
    with pytest.raises(FrozenInstanceError):
        policy_of(name).extra = 1


def test_streaming_keeps_the_latest():
    score = StreamingLLM().score(view())
    assert (score.diff(dim=-1) > 0).all()


def test_knorm_and_keydiff_against_their_formulas():
    given = view(padding=4)
    assert torch.allclose(Knorm().score(given), -given.keys.pow(2).sum(-1).sqrt())
    for row, start in ((0, 0), (1, 4)):
        for head in range(3):
            keys = given.keys[row, head]
            unit = keys / keys.norm(dim=-1, keepdim=True)
            cosine = torch.cosine_similarity(keys, unit[start:].mean(0)[None], dim=-1)
            assert torch.allclose(KeyDiff().score(given)[row, head], -cosine, atol=1e-6)


def test_tova_and_snapkv_read_the_window():
    given = view()
    assert torch.equal(TOVA().score(given), given.window_probs)
    smooth = SnapKV(queries=4, kernel=3).score(given)
    padded = torch.nn.functional.pad(given.window_probs, (1, 1))
    assert torch.allclose(smooth, (padded[..., :-2] + padded[..., 1:-1] + padded[..., 2:]) / 3)
    assert torch.equal(SnapKV(kernel=1).score(given), given.window_probs)
    with pytest.raises(ArgumentError) as refused:
        TOVA().score(view(window_probs=None))
    assert refused.value.code == "eviction_no_window"


def naive_h2o(policy, probs):
    """probs [T, S] of one head, causal: the score of every token after all queries."""
    scores = []
    for token in range(probs.shape[1]):
        column = probs[token:, token]  # the queries that can see it
        ages = torch.arange(len(column) - 1, -1, -1)
        scores.append(
            {
                "sum": column.sum(),
                "mean": column.mean(),
                "max": column.max(),
                "decay": (column * policy.decay**ages).sum(),
            }[policy.reduce]
        )
    return torch.stack(scores)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "decay"])
@pytest.mark.parametrize("chunks", [[12], [1] * 12, [5, 1, 6], [3, 3, 3, 3]], ids=str)
def test_h2o_does_not_depend_on_the_chunks(reduce, chunks):
    policy = H2O(reduce, decay=0.8)
    probs = torch.rand(12, 12, generator=torch.Generator().manual_seed(4)).tril()
    state, start = torch.zeros(1, 1, 0), 0
    for size in chunks:
        end = start + size
        state = torch.nn.functional.pad(state, (0, size))
        rows = probs[start:end, :end]
        weight = policy.query_weight(torch.arange(size - 1, -1, -1))
        rows = rows if weight is None else rows * weight[:, None]
        column = rows.amax(0) if policy.over_queries == "max" else rows.sum(0)
        state = policy.observe(column.view(1, 1, -1), Seen(state, size, torch.arange(end).view(1, 1, -1)))
        start = end
    positions = torch.arange(12).view(1, 1, -1)
    seen = view(12, state=state, positions=positions, valid=positions[0] >= 0)
    assert torch.allclose(policy.score(seen)[0, 0], naive_h2o(policy, probs), atol=1e-6)


def test_a_sum_favours_early_tokens_and_a_mean_does_not():
    """Every query looks at all tokens alike: the sum keeps the first ones, the mean has no such reason."""
    even = torch.ones(50, 50).tril() / torch.arange(1, 51)[:, None]
    assert (naive_h2o(H2O(), even).diff() < 0).all()
    late = naive_h2o(H2O("mean"), even)
    assert late.max() / late.min() < naive_h2o(H2O(), even).max() / naive_h2o(H2O(), even).min() / 10


def test_random_is_a_fixed_uniform_sample():
    positions = torch.arange(4000).view(1, 1, -1).expand(2, 3, -1)
    given = view(4000, positions=positions, valid=positions[:, 0] >= 0)
    score = Random(1).score(given)
    assert torch.equal(score, Random(1).score(given))
    assert ((score >= 0) & (score < 1)).all()
    assert abs(score.mean() - 0.5) < 0.02
    kept = score[0, 0].topk(1000).indices.float()
    assert abs(kept.mean() / 4000 - 0.5) < 0.03, "no age is favoured"
    others = (
        Random(2).score(given),
        Random(1).score(view(4000, positions=positions, valid=given.valid, layer=1)),
    )
    for other in (*others, score.roll(1, 1)):
        assert abs(torch.corrcoef(torch.stack((score[0, 0], other[0, 0])))[0, 1]) < 0.06
    shuffled = torch.randperm(4000, generator=torch.Generator().manual_seed(0))
    moved = view(4000, positions=positions[..., shuffled], valid=given.valid)
    assert torch.equal(Random(1).score(moved), score[..., shuffled]), (
        "a token keeps its number in another slot"
    )


@pytest.mark.parametrize("num_layers", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("budget", [0, 1, 13, 64])
@pytest.mark.parametrize("steepness", [0.0, 0.5, 1.0])
def test_a_pyramid_falls_and_keeps_the_sum(num_layers, budget, steepness):
    shares = PyramidKV(steepness=steepness).layer_budgets(budget, num_layers)
    assert sum(shares) == budget * num_layers
    assert len(shares) == num_layers
    assert all(0 <= later <= earlier for earlier, later in pairwise(shares))
    if steepness == 0:
        assert set(shares) == {budget}


def test_a_policy_of_ones_own_is_three_lines():
    @dataclass(frozen=True)
    class Oldest(Policy):
        def score(self, view):
            return -view.positions.float()

    assert policy_of(Oldest()).needs == Needs.NOTHING
    assert Oldest().score(view())[0, 0].argmax() == 0
    assert Oldest().layer_budgets(5, 3) == (5, 5, 5)
    state = torch.ones(1, 1, 4)
    assert Oldest().observe(None, Seen(state, 1, state.long())) is state
    with pytest.raises(NotImplementedError):
        Policy().score(view())


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: policy_of("h20"), "unknown_choice"),
        (lambda: policy_of(H2O), "eviction_not_a_policy"),
        (lambda: H2O("median"), "unknown_choice"),
        (lambda: H2O(group="min"), "unknown_choice"),
        (lambda: H2O(decay=0.0), "out_of_range"),
        (lambda: SnapKV(kernel=4), "eviction_even_kernel"),
        (lambda: SnapKV(queries=0), "bad_count"),
        (lambda: PyramidKV(steepness=1.5), "out_of_range"),
        (lambda: Random(-1), "bad_count"),
    ],
)
def test_refusals(make, code):
    with pytest.raises(ArgumentError) as refused:
        make()
    assert refused.value.code == code
    assert refused.value.text("zh")
