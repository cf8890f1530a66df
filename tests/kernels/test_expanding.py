"""MLA prefill with K and V expanded: the absorbed result, in pieces of heads, and the queries from which on it pays."""

import pytest
import torch

from minikv.kernels import expanding
from minikv.kernels.expanding import LatentSizes, expanding_pays, latent_parts, parts_of
from minikv.plan.estimate import EXPANDED_BYTES, expanded_bytes, rebuilt_bytes
from tests.kernels.dense import Case, dense
from tests.kernels.test_attention import latent_case
from tests.models.running import World

DEEPSEEK = LatentSizes(
    heads=128, rank=512, rope=64, nope=128, value=128, itemsize=2, most_bytes=EXPANDED_BYTES, block_size=16
)
NOPE, ROPE, VALUE, RANK, HEADS = 8, 16, 12, 48, 4
MANY = 10  # queries from which on a sequence is expanded in these tests


@pytest.fixture(autouse=True)
def from_many_queries_on(request, monkeypatch):
    """On a CPU nothing is expanded; the tests that ask for this expand what has ``MANY`` queries."""
    if "made" in request.fixturenames:
        monkeypatch.setattr(expanding, "expanding_pays", lambda device, sizes, queries, keys: queries >= MANY)


@pytest.fixture
def made():
    """What ``latent_parts`` is given for sequences of these lengths, and the textbook's answer in float64."""

    def of(lengths, queries, most_bytes=2**29, sizes=(NOPE, ROPE, VALUE, RANK, HEADS)):
        nope, rope, value, rank, heads = sizes
        case, _ = latent_case(lengths, queries=queries, heads=heads, rank=rank, rope=rope)
        normal = torch.Generator().manual_seed(3)
        up = torch.randn(heads, nope + value, rank, generator=normal) * rank**-0.5
        query = torch.randn(sum(queries), heads, nope + rope, generator=normal)
        held = LatentSizes.of(up, case.kv, nope, most_bytes)
        both = [
            torch.einsum("nhr,hdr->nhd", latents.expand(-1, heads, -1), up.double()) for latents in case.keys
        ]
        keys = [
            torch.cat([of_one[..., :nope], rope_key.expand(-1, heads, -1)], -1)
            for of_one, rope_key in zip(both, case.values, strict=True)
        ]
        shapes = (torch.empty(1, 16, heads, width) for width in (nope + rope, value))
        tables = case.block_tables, case.lengths, case.query_starts
        values = [of_one[..., nope:] for of_one in both]
        due, _, _ = dense(Case(query, *shapes, *tables, keys, values, {"scale": 0.2}))
        parts = parts_of(case.kv, held, case.query_starts, queries, lengths)
        return (query, case.kv, up, parts, held), due

    return of


@pytest.mark.parametrize(
    ("lengths", "queries", "ways"),
    [
        ([37, 16], [37, 16], [37, 16]),
        ([50, 70, 33, 40], [1, 20, 33, 1], [0, 70, 33, 0]),
        ([50, 70, 33, 40, 90], [1, 3, 33, 1, 1], [0, 33, 0]),
        ([90, 12], [17, 9], [90, 0]),
        ([90, 12], [1, 1], [0]),
    ],
)
def test_each_sequence_of_a_batch_goes_its_way_to_the_same_attention(made, lengths, queries, ways):
    """Whole prompts, chunks behind a prefix, decodes beside them; float64 says what is due."""
    given, due = made(lengths, queries)
    assert [part.keys for part in given[3]] == ways
    assert sum(part.rows.stop - part.rows.start for part in given[3]) == sum(queries)
    torch.testing.assert_close(latent_parts(*given, scale=0.2).double(), due, rtol=1e-4, atol=1e-5)


def test_the_parts_are_found_without_a_wait_for_the_device(made):
    (_, kv, _, parts, sizes), _ = made([50, 70, 33], [1, 20, 33])
    there = type(kv)(*(x.to("meta") for x in (kv.k, kv.v, kv.block_tables, kv.lengths)))
    starts = torch.empty(4, dtype=torch.int32, device="meta")
    found = parts_of(there, sizes, starts, [1, 20, 33], [50, 70, 33])
    assert [part[:3] for part in found] == [part[:3] for part in parts]
    assert [part.block_tables.shape for part in found] == [part.block_tables.shape for part in parts]


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_that_take_turns_compute_the_same_bits(made, monkeypatch, heads):
    """A buffer for all blocks of one sequence and these heads, not a byte more, is expanded at a time."""
    (*given, sizes), _ = made([70, 33], [20, 33])
    whole = latent_parts(*given, sizes, scale=0.2)
    largest, expand = [], expanding.expand

    def counted(kv, up, nope):
        largest.append(len(up))
        made = expand(kv, up, nope)
        assert made.k[..., 0, 0].numel() * sizes.key_bytes(len(up)) <= fits.most_bytes
        return made

    monkeypatch.setattr(expanding, "expand", counted)
    fits = sizes._replace(most_bytes=5 * 16 * sizes.key_bytes(heads))
    assert torch.equal(latent_parts(*given, fits, scale=0.2), whole)
    assert largest[: HEADS // heads] == [heads] * (HEADS // heads)
    assert sizes._replace(most_bytes=fits.most_bytes - 1).heads_at_once(70) == heads // 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
def test_the_kernel_for_gpus_computes_it_interpreted(made, monkeypatch):
    """Keys wider than values, which are a view between them, and one query head for each."""
    pytest.importorskip("triton")
    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    given, due = made([20, 37], [1, 12], 48 * (2 * (16 + 16 + 16 + 8) + 8) * 4, (16, 8, 16, 32, 4))
    assert given[-1].heads_at_once(37) == 2
    torch.testing.assert_close(latent_parts(*given, scale=0.2).double(), due, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [None, 6])
def test_a_model_answers_the_same_whichever_way_it_goes(monkeypatch, chunk):
    """Chunks beside decodes in one step, and prompts of one token beside whole ones."""
    asked, mine = [], World("deepseek_v3")

    def pays(device, sizes, queries, keys):
        asked.append((queries, keys))
        return queries > 4

    monkeypatch.setattr(expanding, "expanding_pays", pays)
    assert mine.run(4, chunk=chunk).ties < len(mine.prompts)
    assert {queries > 4 for queries, _ in asked} == {True, False}
    assert len(asked) < 60, "once a step, and not in each layer"


@pytest.mark.parametrize(
    ("queries", "keys", "pays"),
    [
        *[(512, 512, True), (2048, 2048, True), (512, 4096, True), (2048, 131072, True)],
        *[(256, 256, False), (256, 4096, False), (64, 2048, False), (2, 64, False), (1, 131072, False)],
    ],
)
def test_many_queries_expand_and_few_do_not(queries, keys, pays):
    assert expanding_pays("cuda", DEEPSEEK, queries, keys) == pays


def test_the_threshold_is_that_of_the_two_sums():
    """For DeepSeek-V3: 2 * (576 + 512) = 2,176 FLOPs a pair and head, or 2 * 320 = 640 and the expansion."""
    least = next(n for n in range(2, 4096) if expanding_pays("cuda", DEEPSEEK, n, 4096))
    pairs = least * (4096 - least / 2)
    absorbed = 128 * (2176 * pairs + least * 2 * 512 * 256)
    expanded = 128 * (640 * pairs + 4096 * 2 * 512 * 256) + 206 * 2 * 4096 * DEEPSEEK.moved_bytes(128)
    assert expanded < absorbed < 1.01 * expanded
    assert 300 < least < 500


def test_what_is_expanded_is_bounded_and_not_done_where_no_figures_are_known(monkeypatch):
    """DeepSeek-V3 with all heads up to 4,672 keys (292 blocks); one of 131,072 takes four of its 128 at a time.

    Beside what transformers makes of a token, too, lies a copy of its rope key, and of its latent before that.
    """
    made = rebuilt_bytes("DeepSeek-V3", 1)
    assert DEEPSEEK.key_bytes(128) == made + 2 * 64
    assert DEEPSEEK.key_bytes(1) == 2 * (256 + 512), "the latent is larger than the keys of one head"
    assert [DEEPSEEK.moved_bytes(heads) - made for heads in (128, 4)] == [2 * 576, 32 * 2 * 576]
    assert [DEEPSEEK.heads_at_once(keys) for keys in (4672, 4673, 131072)] == [128, 64, 4]
    for tp in (1, 128):
        assert expanded_bytes("DeepSeek-V3", 4000, tp=tp) == 4000 * DEEPSEEK.key_bytes(128 // tp)
    assert DEEPSEEK.heads_at_once(2**20) == 0
    assert not expanding_pays("cuda", DEEPSEEK, 2048, 2**20)
    assert not expanding_pays("cpu", DEEPSEEK, 2048, 2048)
    monkeypatch.setitem(expanding.FLOPS_PER_BYTE, "cpu", 10)
    assert expanding_pays("cpu", DEEPSEEK, 2048, 2048)
