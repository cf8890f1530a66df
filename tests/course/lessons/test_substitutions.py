"""The numbers that stand under a lesson's formulas are those that the package computes, in both languages."""

from pathlib import Path

import pytest
import torch

from minikv.blocks import BlockManager
from minikv.course.capstone import Plan, floor, serve, tiny_task
from minikv.course.lessons.l07.growth import bytes_copied
from minikv.course.lessons.l08.engine_memory import CHUNK, start_up
from minikv.course.lessons.l10.bytes_moved import Shape
from minikv.course.lessons.l10.bytes_moved import floor as bytes_floor
from minikv.course.lessons.l11a.load import Ask, run_load
from minikv.course.lessons.l12.parallel_layouts import two_ways
from minikv.course.lessons.l16.culprit import culprit
from minikv.course.lessons.l17.traffic import BUSY, ONE_PROMPT, md1_wait
from minikv.engine.ext.decode_buffers import DecodeSizes
from minikv.eviction import Budget
from minikv.memory.allocator.rules import round_size, segment_size
from minikv.models import load
from minikv.plan import CacheSpec, find_gpu, max_batch_size, plan_memory, rebuilt_bytes, weight_bytes
from minikv.plan.flops import crossing_length, flop_cost, step_flops
from minikv.plan.logs.vllm_pool import vllm_pool
from minikv.plan.other_engines import OPTIONS, Startup, pool_bytes
from minikv.plan.preemption import TransferRates, recompute_seconds, swap_seconds
from minikv.plan.roofline import decode_work, gpu_roof
from minikv.simulate import Fleet
from minikv.units import GIB

SOURCES = Path(__file__).parents[3] / "notebooks" / "src"


def the_blocks_of_a_sequence() -> list[str]:
    blocks = -(-41 // 16)
    return [f"41 / 16 \\rceil = {blocks}", f"{blocks} \\cdot 16 - 41 = {blocks * 16 - 41}", "= 77.3$"]


def the_flops_of_a_step() -> list[str]:
    model, _ = load("tiny-gqa", dtype="fp32")
    cost = flop_cost(model.config)
    said = [f"= {each:,}" for each in (cost.per_token, cost.per_pair, cost.lm_head)]
    said += [f"= {step_flops(model.config, 16, cached).total:,}$" for cached in (False, True)]
    return [*said, f"+ 1 = {crossing_length(model.config)}$", f"{crossing_length('Llama-3.1-8B'):,}"]


def the_bytes_of_a_token() -> list[str]:
    spec, weights = CacheSpec.from_config("Llama-3.1-8B"), weight_bytes("Llama-3.1-8B").total
    scaled = CacheSpec.from_config("Llama-3.1-8B", kv_dtype="fp8_scaled").bytes_for(1)
    exact = 7 * weights / (3 * spec.bytes_for(1))
    return [f"= {spec.bytes_for(1):,} ", f"= {scaled:,} B", f"7 \\cdot {weights:,}", f"= {exact:,.2f}$"]


def the_bytes_of_layers_that_differ() -> list[str]:
    gemma, hybrid = CacheSpec.from_config("Gemma-2-9B"), CacheSpec.from_config("Qwen3-Next-80B-A3B")
    pool = vllm_pool(CacheSpec.from_config("Gemma-4-31B", layout="vllm"))
    blocks = pool.num_blocks(50 * GIB)
    new = pool.tokens_printed(blocks, rule="new", max_model_len=131_072, batched_tokens=2048)
    budget = plan_memory("Qwen3-8B", gpu="A100 SXM 80GB")
    return [
        f"= {gemma.bytes_for(32_768):,} ",
        f"24,576 = {hybrid.bytes_for(4096):,} ",
        f"{CacheSpec.from_config('Llama-3.1-8B', tp=16).bytes_for(1):,} \\text{{ B",
        f"= {budget.spec.block_bytes(16):,}$",
        f"= {budget.measured_form()['available']:,} ",
        f"= {budget.num_blocks:,}$",
        f"= {pool.tokens_printed(blocks, rule='old'):,} ",
        f"\\cdot 131,072 \\rfloor = {new:,}$",
    ]


def the_bytes_of_a_latent() -> list[str]:
    expanded, latent = (
        CacheSpec.from_config("DeepSeek-V3", layout=layout).layers[0].token_bytes
        for layout in ("hf-expanded", "hf")
    )
    indexed = CacheSpec.from_config("DeepSeek-V3.2", layout="hf").layers[0]
    return [
        f"= {expanded:,} ",
        f"= {latent:,}$",
        f"= {rebuilt_bytes('DeepSeek-V3', 1):,} ",
        f"= {max_batch_size('DeepSeek-V3', 18 * 10**9, 512)}$",
        f"{latent:,} + {indexed.index_bytes} = {indexed.token_bytes:,} B",
    ]


def the_floor_of_a_step() -> list[str]:
    work, roof = decode_work("Llama-3.1-8B", 1, 4096), gpu_roof(find_gpu("A100 SXM 80GB"))
    limit = (
        work.weight_flops + work.attention_flops
    ) / work.cache_bytes  # of many sequences, weights left out
    return [
        f"{work.weight_bytes:,} + 1 \\cdot 4,096 \\cdot 131,072 = {work.num_bytes:,}",
        f"{work.weight_flops:,} + 4,096 \\cdot 524,288) = {work.flops:,}",
        f"= {work.intensity:.2f}$ FLOP/",
        f"= {roof.ridge:.0f}$",
        f"= {1e3 * roof.seconds(work.flops, work.num_bytes):.2f}$",
        f"= {1e3 * work.flops / roof.tflops / 1e12:.3f}$",
        f"= {limit:.0f}$ FLOP/",
    ]


def what_a_view_keeps() -> list[str]:
    token = CacheSpec.from_config("Llama-3.1-8B").slope() // 32 // 2  # K of one token in one layer
    return [f"$8,388,608 - 2 \\cdot 16,384 = {4096 * token - 16 * token:,}$"]


def the_room_of_a_linear_cache() -> list[str]:
    strides = (32_768, 16_384, 8_192, 4_096, 16, 1)
    offset = sum(index * stride for index, stride in zip((3, 1, 0, 1, 149, 5), strides, strict=True))
    rows = (150, 40, 700, 12)
    paged = sum(-length % 16 for length in rows) * 1024
    return [f"+ 5 = {offset:,}$", f"= {(4 * 1024 - sum(rows)) * 1024:,}$", f"= {paged:,}$"]


def what_joining_copies() -> list[str]:
    token, rounded = CacheSpec.from_config("Llama-3.1-8B").bytes_for(1), round_size(10_485_160, (1,) * 16)
    copied = bytes_copied(1, 1024, 256, token)
    return [
        f"{token:,} \\cdot 256 \\cdot (2 \\cdot 1,024 + 256 + 1) = {copied:,}$",
        f"256 \\cdot 131,072 = {2 * 256 * token:,}$",
        f"\\rceil = 512 \\cdot {rounded // 512:,} = {rounded:,}$",
        f"| {segment_size(rounded):,} |",
    ]


def the_blocks_that_fit() -> list[str]:
    started = start_up(0.9, warmup_tokens=CHUNK, staging=5 * GIB)
    terms, block = started.terms, started.block_bytes
    plan = plan_memory("Llama-3.1-8B", gpu="H200", chunk=CHUNK)
    return [
        f"{terms.limit:,} - {terms.used:,} - {terms.peak:,} + {terms.current:,} = {terms.available:,}",
        f"\\lfloor {terms.available:,} / {block:,} \\rfloor = {started.num_blocks:,}",
        f"\\cdot 2 = {plan.activation_bytes // CHUNK:,}\\",
    ]


def the_pools_of_four_engines() -> list[str]:
    card = Startup(80 * 10**9, 6 * 10**9, 20 * 10**9, 4 * 10**9)
    return [f" = {pool_bytes(engine, card, 0.9) / 10**9:g}$ GB" for engine in OPTIONS]


def the_slots_of_a_table() -> list[str]:
    manager = BlockManager(num_blocks=6, block_size=4)
    manager.allocate("P", range(8))  # blocks 0 and 1
    manager.allocate("Q", range(100, 112))  # blocks 2, 3 and 4
    manager.append("P", 8)
    table, slot = manager.block_table("P"), manager.slot_mapping("P", 8, 9)[0]
    assert (table[8 // 4], slot) == (5, 20)
    key = CacheSpec.from_config("Llama-3.1-8B").slope() // 32 // 2  # of a token, in a layer
    return [
        f"table[8 // 4] * 4 + 8 % 4 = {table[8 // 4]} * 4 + {8 % 4} = {slot}`",
        f"{16 * key:,} B",
        "(16 - 1) / 2 = 7.5`",
    ]


def the_floor_of_a_kernel() -> list[str]:
    shape = Shape((8192,) * 32)
    parts = [shape.kv_bytes, shape.edge_bytes, shape.table_bytes]
    return [" + ".join(f"{part:,}" for part in parts) + f" = {bytes_floor(shape).num_bytes:,} B`"]


def the_softmax_of_four_logits() -> list[str]:
    logits, values = torch.tensor([2.0, 90, 89, 1]), torch.arange(1.0, 5)
    powers = (logits - 90).exp()
    lse, halves = logits.logsumexp(0), torch.stack([logits[:2].logsumexp(0), logits[2:].logsumexp(0)])
    shares = (halves - lse).exp()
    assert torch.allclose(shares @ torch.tensor([2.0, 3.0]), logits.softmax(0) @ values)
    return [
        f"= {(powers * values).sum():.4f} / {powers.sum():.4f} = {logits.softmax(0) @ values:.4f}`",
        f"= {lse:.4f}`",
        f"{shares[0]:.3f} * 2 + {shares[1]:.3f} * 3 = {logits.softmax(0) @ values:.3f}`",
    ]


def the_limits_of_a_step() -> list[str]:
    spec = CacheSpec.from_config("Llama-3.1-8B")
    blocks, request = 55 * GIB // spec.block_bytes(16), -(-2047 // 16)
    return [
        f"/ (16 × {spec.slope():,} B) = {blocks:,} |",
        f"{blocks:,} / {request} = {blocks // request} ",
        f"{blocks // request} * {request} = {blocks:,}`",
        f"= {16 / (0.0015 + 0.0000388 * 16):,.0f}`",
    ]


def the_tax_of_preemption() -> list[str]:
    asks = [Ask(tuple(range(100 * i, 100 * i + 6)), 18) for i in range(5)]
    ran = run_load(asks, num_blocks=16, block_size=4, max_num_seqs=8, max_batched_tokens=64)
    once = sum(len(ask.prompt) + ask.new - 1 for ask in asks)
    computed = once + ran.recomputed
    assert ran.tax == ran.recomputed / computed
    return [
        f"5 × (6 + 17) = {once} ",
        f"{once} + {ran.recomputed} = {computed} |",
        f"`{ran.recomputed} / {computed} = {ran.tax:.1%}`",
    ]


def the_bytes_of_int8() -> list[str]:
    scaled, bf16 = (CacheSpec.from_config("Llama-3.1-8B", kv_dtype=d).slope() for d in ("int8", "bf16"))
    return [
        f"(128 × 1 + 4) = {scaled:,}`",
        f"128 × 2 = {bf16:,}`",
        f"(128 + 4) = {bf16 / scaled:.2f}`",
    ]


def what_a_graph_borrows() -> list[str]:
    sizes = DecodeSizes(
        max_rows=256, width=8192 // 16, num_kv_cache_groups=1, vocabulary=128_256, dtype=torch.bfloat16
    )
    logits = 256 * sizes.vocabulary * sizes.dtype.itemsize
    tokens = -(-sizes.num_bytes // CacheSpec.from_config("Llama-3.1-8B").slope())
    launched, kernels = 1590 * 6e-3, 9.63 - 6.36
    return [
        f"256 × 128,256 × 2 = {logits:,}`",
        f" {tokens} ",
        f"1,590 × 6 µs = {launched:.2f}",
        f"0.006 + {kernels:.2f} = {0.006 + kernels:.2f}",
    ]


def the_tokens_that_are_kept() -> list[str]:
    kept = Budget(n_sink=2, budget=8, n_recent=4)
    rows = torch.tril(torch.ones(4, 4))
    scores = (rows / rows.sum(1, keepdim=True)).sum(0).tolist()
    return [
        f"2 + 8 + 4 = {kept.capacity} ",
        f"1/4 = {scores[0]:.2f}`",
        " + ".join(f"{score:.2f}" for score in scores) + " = 1 × 4`",
    ]


def what_a_rank_keeps() -> list[str]:
    rank = CacheSpec.from_config("Qwen3-30B-A3B", tp=8).bytes_for(1)
    latents = CacheSpec.from_config("DeepSeek-V3", tp=8).bytes_for(1)
    said = [f"128 \\cdot 2 = {rank:,}$", f"(512 + 64) \\cdot 2 = {latents:,}$"]
    for model in ("DeepSeek-V3", "Llama-3.1-70B"):
        tp, dp = two_ways(model, "B200 SXM", 8)
        said += [
            f"{tp.tokens:,}",
            f"8 \\cdot {dp.longest:,} = {dp.tokens:,}$",
            f" {dp.tokens / tp.tokens:.2f} ",
        ]
    rates = TransferRates(25e9, 20e9, 20_000.0)
    swap, again = swap_seconds(4096 * 131_072, rates), recompute_seconds(4096, rates)
    return [*said, f"= {1e3 * swap:.2f}$", f"= {1e3 * again:.2f}$"]


def the_time_to_first_token() -> list[str]:
    fleet = Fleet.plan("Llama-3.1-70B", "H200", tp=2, router="prefix", block_size=BUSY.hash_block)
    clock = fleet.step_time
    work = clock.cost.work([(0, 8192)], [])
    parts, service = clock.parts(work), clock.seconds(prefill=[(0, ONE_PROMPT)])
    ms = [f"{1e3 * seconds:,.1f}" for seconds in (*parts, parts.total)]
    moved = CacheSpec.from_config("Llama-3.1-70B").bytes_for(7168)
    return [
        f"${work.flops / 1e12:.2f} \\cdot 10^12 /".replace("^12", "^{12}"),
        f"${work.num_bytes / 1e9:.2f} \\cdot 10^9 /",
        f"\\max({ms[0]},\\ {ms[1]}) + {ms[2]} + {ms[3]} = {ms[4]}$",
        f"{parts.total:.3f} + {parts.total:.3f} = {2 * round(parts.total, 3):.3f}$",
        f"4.5 \\cdot {service:.3f} = {md1_wait(0.9, service):.2f}$",
        f"327,680 \\cdot 7,168 = {moved:,}$",
    ]


def what_an_eviction_frees() -> list[str]:
    blocks = 8192 // 16 - 2048 // 16
    said = [
        f"{blocks} × 16 × 70,272 = {blocks * 16 * CacheSpec.from_config('DeepSeek-V3', layout='hf').slope():,} B"
    ]
    for model in ("Llama-3.1-8B", "DeepSeek-V3"):
        work = decode_work(model, 32, 8192)
        half = work.weight_bytes / (work.cache_bytes / 8192)
        said += [f"{work.weight_bytes:,}", f"{half:,.0f}"]
    return said


def one_score_from_two_heads() -> list[str]:
    latent = rope = torch.eye(2)  # of two tokens
    logits = 0.5 * (torch.tensor([[2.0, 0], [2, 0]]) @ latent.T + torch.tensor([[0.0, 1], [2, 0]]) @ rope.T)
    assert logits.tolist() == [[1, 0.5], [2, 0]]
    return [
        f"{value:.3f}" for row in (*logits.softmax(-1), logits.softmax(-1).sum(0)) for value in row.tolist()
    ]


def the_shares_of_the_used_memory() -> list[str]:
    end = culprit("naive")
    total, free, reserved, allocated, pinned = (
        f"{value / GIB:.2f}" for value in (end.capacity, end.free, end.reserved, end.allocated, end.stuck)
    )
    used = f"{(end.capacity - end.free) / GIB:.2f}"
    return [f"{total} - {free} = {used}", f"{allocated} + {pinned} + ({reserved} - {allocated} - {pinned})"]


def the_floor_of_a_load() -> list[str]:
    task = tiny_task()
    bound, clock = floor(task), task.step_time(None)
    rate, bandwidth = 0.6 * clock.roof.tflops * 1e12, 0.8 * clock.roof.bandwidth_gb_s * 1e9
    weights = clock.cost.weight_bytes(1)
    read = round(bound.bandwidth * bandwidth) - bound.steps * weights
    naive = serve(task, Plan())
    return [
        f"{round(bound.compute * rate):,} / {rate / 1e9:.2f}e9 = {bound.compute:.4f}",
        f"({bound.steps} × {weights:,} + {read:,}) / {bandwidth / 1e6:.1f}e6 = {bound.bandwidth:.4f}",
        f"{bound.since:.2f} + {bound.compute:.4f} + {bound.steps} × 0.002 = {bound.seconds:.4f}",
        f"100 × {bound.seconds:.4f} / {naive.seconds:.4f} = {100 * bound.seconds / naive.seconds:.1f}",
    ]


@pytest.mark.parametrize(
    ("lesson", "numbers"),
    [
        ("00_start_here", the_blocks_of_a_sequence),
        ("01_why_a_cache", the_flops_of_a_step),
        ("02_how_many_bytes", the_bytes_of_a_token),
        ("02b_layers_that_differ", the_bytes_of_layers_that_differ),
        ("03_the_2_86x_mistake", the_bytes_of_a_latent),
        ("04_the_roofline", the_floor_of_a_step),
        ("05_owned_and_borrowed", what_a_view_keeps),
        ("06_the_linear_cache", the_room_of_a_linear_cache),
        ("07_allocate_once", what_joining_copies),
        ("08_allocate_kv_cache", the_blocks_that_fit),
        ("09_pages_and_blocks", the_slots_of_a_table),
        ("10_kernels", the_floor_of_a_kernel),
        ("10_kernels", the_softmax_of_four_logits),
        ("11a_continuous_batching", the_limits_of_a_step),
        ("11b_when_blocks_run_out", the_tax_of_preemption),
        ("12_beyond_one_gpu", what_a_rank_keeps),
        ("13_half_the_bytes", the_bytes_of_int8),
        ("13b_fewer_cheaper_steps", what_a_graph_borrows),
        ("14_what_to_forget", the_tokens_that_are_kept),
        ("15_eviction_on_mla", what_an_eviction_frees),
        ("15_eviction_on_mla", one_score_from_two_heads),
        ("16_where_did_6gb_go", the_shares_of_the_used_memory),
        ("17_a_fleet_on_paper", the_time_to_first_token),
        ("18_capstone", the_floor_of_a_load),
        ("D_other_engines", the_pools_of_four_engines),
    ],
)
def test_numbers_under_a_formula(lesson, numbers):
    prose = (SOURCES / f"{lesson}.py").read_text(encoding="utf-8").replace("{,}", ",")
    for said in numbers():
        assert prose.count(said) >= 2, said
