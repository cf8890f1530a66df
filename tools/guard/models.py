"""The guard's cases with a model: the two tiny ones and a random one with windows, through an ``LLM`` and nano."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from minikv import LLM, SamplingParams, nano
from minikv.engine import EventLog, EvictionConfig, RequestOutput, summary
from minikv.eviction import Policy, View
from minikv.models import load, recall_documents
from minikv.plan.preemption import TransferRates
from tools.guard import Case, refusal

TINY = ("tiny-gqa", "tiny-mla")
SWAP, RECOMPUTE = TransferRates(1e9, 1e9, 1.0), TransferRates(1.0, 1.0, 1e9)
TIGHT: dict[str, Any] = {"num_blocks": 26, "max_batched_tokens": 24}
GREEDY = SamplingParams(temperature=0, max_tokens=16)


class Failing(Policy):
    """A policy whose every fortieth answer is an error, so that the step that asked fails."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, view: View) -> torch.Tensor:
        self.asked += 1
        if self.asked % 40 == 0:
            raise RuntimeError(f"answer {self.asked}")
        return view.positions.float()


class Steps:
    """The clock of a case: it moves on by a second a step, whatever is timed in between."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@cache
def model(name: str) -> Any:
    """A tiny model by name, or "windows": two layers with a window of 7 tokens and one without, random weights."""
    if name in TINY:
        return load(name, device="cpu")
    config = Gemma3TextConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, sliding_window=7, max_position_embeddings=256, bos_token_id=None,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return Gemma3ForCausalLM(config).eval()


@cache
def prompts(name: str) -> list[list[int]]:
    """Twelve prompts of 6 to 60 tokens; three begin alike, one is there twice, one repeats itself."""
    texts = [[int(token) for token in each.tokens] for each in recall_documents(6, seed=7)]
    if name not in TINY:
        texts = [[token % 90 for token in each] for each in texts]
    stem = texts[0][:33]
    found = [each[:length] for each, length in zip(texts, (6, 17, 60, 31, 48, 24), strict=True)]
    return [*found, *(stem + each[:5] for each in texts[1:4]), found[2], found[3][:12] * 4, found[4][:16]]


@contextmanager
def engine(name: str, **options: Any) -> Iterator[tuple[LLM, EventLog, Steps]]:
    log, clock = EventLog(), Steps()
    sizes = {"block_size": 4, "num_blocks": 400, "max_num_seqs": 8, "max_batched_tokens": 64, "seed": 3}
    with LLM(model(name), clock=clock, enforce_eager=True, **{"emit": log, **sizes, **options}) as llm:
        yield llm, log, clock


def drive(
    llm: LLM,
    clock: Steps,
    asked: list[tuple[int, list[int], SamplingParams]],
    each: Callable[[int], Any] = int,
) -> list[Any]:
    """Adds each request before the step of its number and runs to the end; the tokens and outputs as lines."""
    lines: list[Any] = []
    waiting, step = sorted(enumerate(asked), key=lambda pair: pair[1][0]), 0
    while waiting or llm.has_work:
        while waiting and waiting[0][1][0] <= step:
            number, (_, prompt, params) = waiting.pop(0)
            llm.add_request(prompt, params, request_id=number)
        each(step)
        clock.now += 1.0
        out = llm.step()
        lines += [["token", step, *map(plain, token)] for token in out.tokens]
        lines += [line for found in out.finished for line in output(found)]
        step += 1
        if step % 10 == 0:
            lines += [repr(llm), llm.totals, repr(llm.snapshot())]
    return lines


def output(found: RequestOutput) -> list[Any]:
    """A line for each completion of a request."""
    return [
        [
            "output", found.request, list(found.prompt_token_ids), found.num_cached, done.sample, list(done.token_ids),
            done.text, done.finish_reason, done.num_preemptions, done.num_drafted, done.num_accepted, repr(done.error),
            asdict(done.timing), plain(done.logprobs),
        ]
        for done in found.completions
    ]  # fmt: skip


def plain(value: Any) -> Any:
    """Numbers and words as they are, log-probabilities to four digits."""
    if isinstance(value, float):
        return round(value, 4)
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def run(name: str, params: SamplingParams | None = None, gap: int = 2, **options: Any) -> list[Any]:
    """All prompts, one more every ``gap`` steps: tokens, outputs, events and what is left."""
    asked = [(gap * number, prompt, params or GREEDY) for number, prompt in enumerate(prompts(name))]
    with engine(name, **options) as (llm, log, clock):
        lines = drive(llm, clock, asked)
        llm.manager.check_invariants()
        return [*lines, *told(llm, log)]


def told(llm: LLM, log: EventLog) -> list[Any]:
    """The events, what they add up to, and the manager at the end."""
    return [
        *(plain(asdict(event)) for event in log.events),
        repr(summary(log.events)),
        repr(llm.manager.stats()),
        llm.manager.text("zh"),
        llm.text("en"),
    ]


def sampled(name: str) -> list[Any]:
    """Filters, logprobs, several samples, seeds, stop words, texts."""
    kinds = [
        SamplingParams(temperature=0.8, top_p=0.9, max_tokens=9, logprobs=3, n=2),
        SamplingParams(temperature=1.3, top_k=5, min_p=0.02, seed=5, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0, logprobs=0, max_tokens=7, n=3),
        SamplingParams(temperature=0.5, max_tokens=30, stop=[" the"], seed=1),
        SamplingParams(temperature=0, max_tokens=30, stop_token_ids=(20, 70, 100)),
    ]
    asked = [(number, prompt, kinds[number % len(kinds)]) for number, prompt in enumerate(prompts(name))]
    with engine(name, num_blocks=60) as (llm, log, clock):
        return [*drive(llm, clock, asked), *told(llm, log)]


def aborted(name: str) -> list[Any]:
    """Requests that are aborted while they wait, run and fork; a reset of the prefix cache; a clear at the end."""
    asked = [
        (number, prompt, SamplingParams(temperature=0, max_tokens=14, n=1 + number % 2))
        for number, prompt in enumerate(prompts(name))
    ]
    with engine(name, cpu_kv_bytes=2**18, swap_rates=SWAP, **TIGHT) as (llm, log, clock):
        lines: list[Any] = []

        def interfere(step: int) -> None:
            lines.append([step, llm.abort(step * 3 % 13), llm.reset_prefix_cache()])

        lines += drive(llm, clock, asked, interfere)
        return [*lines, llm.abort("nobody"), llm.reset_prefix_cache(), *told(llm, log)]


def broken(name: str) -> list[Any]:
    """A listener that raises in the middle of steps: what fails, what goes on, what is said."""
    lines: list[Any] = []
    for at in (3, 40, 90, 141):
        log = EventLog()

        def emit(event: Any, log: EventLog = log, at: int = at) -> None:
            log(event)
            if len(log.events) == at:
                raise RuntimeError(f"event {at}")

        with engine(name, emit=emit, **TIGHT) as (llm, _, clock):
            for number, prompt in enumerate(prompts(name)[:6]):
                lines.append(refusal(partial(llm.add_request, prompt, GREEDY, request_id=number)))
            while llm.has_work:
                clock.now += 1
                try:
                    lines += [line for found in llm.step().finished for line in output(found)]
                except RuntimeError as error:
                    lines.append(str(error))
            lines += [plain(asdict(event)) for event in log.events]
    return lines


def texts(name: str) -> list[Any]:
    """``generate`` and ``stream`` of texts, with salts, and of nothing."""
    words = [each.text for each in recall_documents(3, seed=2, facts=4, context=20, queries=2, span=8)]
    with engine(name) as (llm, _, _):
        lines = [line for found in llm.generate(words, GREEDY, salt=["", "a", ""]) for line in output(found)]
        lines += [
            list(map(plain, token))
            for token in llm.stream(words[:2], SamplingParams(temperature=0, max_tokens=6))
        ]
        return [*lines, llm.generate([], GREEDY), refusal(partial(llm.generate, words, [GREEDY]))]


def threads(name: str) -> list[Any]:
    """Four callers at once: each gets its own answers (who is served when is not recorded)."""
    found: dict[int, list[Any]] = {}
    with engine(name) as (llm, _, _):

        def ask(number: int) -> None:
            asked = prompts(name)[3 * number : 3 * number + 3]
            found[number] = [list(each.token_ids) for each in llm.generate(asked, GREEDY)]

        callers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    return [found[number] for number in sorted(found)]


def prefix_files(name: str) -> list[Any]:
    """Prefix blocks saved in a folder by one LLM and found by the next."""
    lines: list[Any] = []
    with TemporaryDirectory() as folder:
        for _ in range(2):
            lines += run(name, prefix_dir=folder, cpu_kv_bytes=2**20, swap_rates=SWAP, num_blocks=40)
        lines += sorted(path.suffix for path in Path(folder).iterdir())
    return lines


def refused() -> list[Any]:
    """What an LLM and its parameters refuse, in both languages."""
    makes: list[dict[str, Any]] = [
        {"num_blocks": 0}, {"kv_bytes": 5}, {"block_size": 0}, {"max_num_seqs": 0}, {"max_batched_tokens": 0},
        {"max_model_len": 10**9}, {"cache": "ring"}, {"kv_dtype": "int3"}, {"reads": "never"}, {"prompt_lookup": -1},
        {"utilization": 2}, {"cpu_kv_bytes": 1}, {"cpu_block_size": 6}, {"prefix_dir": "x"}, {"tp": 0}, {"seed": -1},
        {"eviction": 5}, {"gpu_memory_utilization": 0.5}, {"swap_space": 4}, {"num_blocks": 4, "kv_bytes": 2**20},
        {"eviction": EvictionConfig("h2o"), "prompt_lookup": 2}, {"cache": "linear", "cpu_kv_bytes": 2**20},
    ]  # fmt: skip
    params: list[dict[str, Any]] = [
        {"temperature": -1}, {"top_p": 0}, {"top_k": -2}, {"max_tokens": 0}, {"n": 0}, {"seed": "a"}, {"stop": [""]},
        {"logprobs": -1}, {"stop_token_ids": [-1]}, {"ignore_eos": 1}, {"max_new_tokens": 3}, {"presence_penalty": 1},
    ]  # fmt: skip
    lines = [[repr(options), refusal(partial(_open, options))] for options in makes]
    lines += [[repr(options), refusal(partial(SamplingParams, **options))] for options in params]
    evictions: list[dict[str, Any]] = [
        {"budget": 0},
        {"evict_every": 0},
        {"scope": "x"},
        {"unit": "y"},
        {"policy": 3},
    ]
    lines += [[repr(options), refusal(partial(_open, {"eviction": options}))] for options in evictions]
    with engine("tiny-gqa", num_blocks=8, max_model_len=100) as (llm, _, _):
        asks: list[Any] = [[], [1.5], [True], "", "a word", [10**9], [-1], None, [1] * 200, [1] * 34, {1: 2}]
        lines += [[repr(asked), refusal(partial(llm.add_request, asked, GREEDY))] for asked in asks]
        odd: list[dict[str, Any]] = [{"request_id": []}, {"salt": b"x"}]
        lines += [refusal(partial(llm.add_request, [1], GREEDY, **named)) for named in odd]
        llm.add_request([1, 2], GREEDY, request_id="one")
        lines.append(refusal(partial(llm.add_request, [1], GREEDY, request_id="one")))
        for missing in ("llm_engine", "get_tokenizer", "nothing"):
            lines.append(refusal(partial(getattr, llm, missing)))
    return [*lines, refusal(llm.step), refusal(partial(llm.generate, [[1]], GREEDY)), repr(llm)]


def _open(options: dict[str, Any]) -> None:
    if isinstance(options.get("eviction"), dict):
        options = {"eviction": EvictionConfig(**{"policy": "h2o", **options["eviction"]})}
    LLM(model("tiny-gqa"), **{"num_blocks": 30, **options}).close()


def small_engine(name: str) -> list[Any]:
    """nano: the same prompts with room and without, greedy and drawn."""
    lines: list[Any] = []
    for blocks in (400, 26):
        llm = nano.LLM(name, num_blocks=blocks, block_size=4, max_num_seqs=8, max_num_batched_tokens=24)
        for params in (
            nano.SamplingParams(temperature=0, max_tokens=12),
            nano.SamplingParams(temperature=0.7, max_tokens=9, seed=4),
        ):
            lines += [asdict(each) for each in llm.generate(prompts(name), params)]
    return lines


def _cases() -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    evict: dict[str, Any] = {"budget": 14, "n_recent": 6, "evict_every": 4, "prefill_chunk": 16}
    for name in TINY:
        yield f"llm {name} greedy", partial(run, name)
        yield f"llm {name} sampled", partial(sampled, name)
        yield f"llm {name} preempted", partial(run, name, gap=0, **TIGHT)
        yield f"llm {name} chunks", partial(run, name, max_num_seqs=4, max_batched_tokens=7)
        yield f"llm {name} swapped", partial(run, name, gap=0, cpu_kv_bytes=2**20, swap_rates=SWAP, **TIGHT)
        yield (
            f"llm {name} recomputed",
            partial(run, name, gap=1, cpu_kv_bytes=2**18, swap_rates=RECOMPUTE, **TIGHT),
        )
        yield f"llm {name} drafts", partial(run, name, prompt_lookup=4, **TIGHT)
        yield f"llm {name} linear", partial(run, name, cache="linear", num_blocks=4, max_model_len=128)
        yield f"llm {name} aborted", partial(aborted, name)
        yield f"llm {name} texts", partial(texts, name)
        yield f"nano {name}", partial(small_engine, name)
    for policy in ("h2o", "streaming", "snapkv"):
        yield (
            f"llm eviction {policy}",
            partial(run, "tiny-gqa", eviction=EvictionConfig(policy, **evict), num_blocks=40),
        )
    yield (
        "llm eviction blocks",
        partial(run, "tiny-gqa", eviction=EvictionConfig("h2o", unit="block", **evict), num_blocks=40),
    )
    yield (
        "llm eviction swapped",
        partial(
            run,
            "tiny-gqa",
            gap=0,
            eviction=EvictionConfig("h2o", **evict),
            cpu_kv_bytes=2**20,
            swap_rates=SWAP,
            **TIGHT,
        ),
    )
    yield "llm failing", lambda: run("tiny-gqa", eviction=EvictionConfig(Failing(), **evict), num_blocks=40)
    yield "llm windows", partial(run, "windows", **TIGHT)
    yield (
        "llm windows swapped drafts",
        partial(run, "windows", gap=0, cpu_kv_bytes=2**20, swap_rates=SWAP, prompt_lookup=3, **TIGHT),
    )
    yield "llm int8", partial(run, "tiny-gqa", kv_dtype="int8", **TIGHT)
    yield "llm block of one", partial(run, "tiny-gqa", block_size=1, num_blocks=100)
    yield "llm broken", partial(broken, "tiny-gqa")
    yield "llm threads", partial(threads, "tiny-gqa")
    yield "llm prefix files", partial(prefix_files, "tiny-gqa")
    yield "llm refused", refused


CASES: dict[str, Case] = dict(_cases())
