"""Every drawing of the course, made: what the tests of accessibility, of keys and of pictures go through.

``drawings()`` finds them in the package itself, so that a new one without a case here fails those tests.
"""

import functools
import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import anywidget
import torch

import minikv.course
from minikv import LLM, SamplingParams
from minikv.blocks import BlockManager
from minikv.course import diagrams, errata_table
from minikv.course.diagrams.svg import Diagram
from minikv.course.errata_table import ErrataTable
from minikv.course.lessons.l08.annotated_source import SourceView
from minikv.course.lessons.l08.flow_chart import FlowChart
from minikv.course.lessons.l11a.load import Ask, run_batches, run_load
from minikv.course.motion import BatchingMotion, MemoryBarMotion, PagingMotion, PagingRecorder
from minikv.course.motion.widget import Motion
from minikv.course.widgets import (
    AllocationWidget,
    AllocatorStep,
    BlocksWidget,
    BudgetWidget,
    EngineWidget,
    FleetWidget,
    GrowthWidget,
    HeatMapWidget,
    PoolWidget,
    ReportBar,
    RooflineWidget,
    SegmentsWidget,
    SequenceBlocks,
    SwapCostWidget,
    WalkWidget,
    report_bar,
)
from minikv.course.widgets.monitor_cache import CacheMonitor
from minikv.course.widgets.monitor_eviction import EvictionMonitor
from minikv.course.widgets.monitor_memory import MemoryMonitor
from minikv.eviction import install_kv_eviction
from minikv.memory import AllocatorSettings
from minikv.models import load
from minikv.simulate import Load
from minikv.units import GIB, MIB
from tests.course.engine_widget_world import PROMPTS, bare_model
from tests.course.monitor_world import Parked
from tests.course.test_allocation_widget import a_report
from tests.course.test_monitor_memory import Fake, cuda
from tests.eviction.hf.masking import small

MODULES = "minikv.course."


def drawings() -> set[str]:
    """Names of the classes that a notebook shows: an anywidget with a script, or one with a page of its own."""
    for module in pkgutil.walk_packages(minikv.course.__path__, MODULES):
        importlib.import_module(module.name)
    widgets = {one for one in _below(anywidget.AnyWidget) if "_esm" in vars(one)}
    pages = {one for one in _below(object) if "_repr_mimebundle_" in vars(one)}
    return {name(one) for one in widgets | pages if one.__module__.startswith(MODULES)}


def name(kind: type) -> str:
    """A module that was imported twice has two classes of one name."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _below(top: type) -> Iterator[type]:
    for one in type.__subclasses__(top):
        yield one
        yield from _below(one)


@contextmanager
def made(kind: type, lang: str) -> Iterator[Any]:
    """A drawing of ``kind`` with something to see in it; what it holds is given back."""
    with ExitStack() as after:
        yield CASES[kind](lang, after)


def _blocks(lang: str, after: ExitStack) -> BlocksWidget:
    widget = BlocksWidget(lang, num_blocks=12, block_size=16)
    for length in range(14, 36, 7):
        held = SequenceBlocks("A", tuple(range(-(-length // 16))), length)
        widget.add_step(
            [held, SequenceBlocks("B", (11, 0), 20)], {"en": "A grows.", "zh": "A 变长。"}, cached=[5]
        )
    return widget


def _pool(lang: str, after: ExitStack) -> PoolWidget:
    widget = PoolWidget(lang, num_blocks=12)
    for action, sequence in (("new", ""), ("new", ""), ("share", "B"), ("step", ""), ("free", "A")):
        widget.act(action, sequence)
    return widget


def _batching(lang: str, after: ExitStack) -> BatchingMotion:
    asks = [Ask(tuple(range(10 * number, 10 * number + 8)), new) for number, new in enumerate((2, 5, 3, 4))]
    options = dict(num_blocks=64, max_num_seqs=2, max_batched_tokens=64)
    names = ("static", "continuous") if lang == "en" else ("静态", "连续")
    runs = run_batches(asks, 2, **options), run_load(asks, **options)
    return BatchingMotion(lang, dict(zip(names, runs, strict=True)), 2)


def _paging(lang: str, after: ExitStack) -> PagingMotion:
    """Shared, copied, cached, found and free blocks."""
    recorder = PagingRecorder(BlockManager(num_blocks=12, block_size=4))
    recorder.allocate("A", list(range(10)))
    recorder.fork("A", "B")
    recorder.append("B", 30)
    recorder.allocate("C", [40, 41, 42, 43])
    recorder.free("C")
    recorder.allocate("D", [*range(8), 50])
    return PagingMotion(lang, recorder)


def _segments(lang: str, after: ExitStack) -> SegmentsWidget:
    steps = [
        AllocatorStep("malloc", "weights", GIB),
        AllocatorStep("malloc", "batch", 6 * GIB),
        AllocatorStep("free", "batch"),
        AllocatorStep("malloc", "survivor", 30 * MIB),
        AllocatorStep("malloc", "other", 5 * MIB, stream=3),
        AllocatorStep("record_stream", "other", stream=4),
        AllocatorStep("free", "other"),
        AllocatorStep("malloc", "next", 8 * GIB),
    ]
    settings = {"defaults": AllocatorSettings(), "expandable": AllocatorSettings(expandable_segments=True)}
    return SegmentsWidget(lang, steps=steps, capacity=9 * GIB, settings=settings)


def _engine(lang: str, after: ExitStack) -> EngineWidget:
    llm = after.enter_context(_llm(num_blocks=40))
    params = [SamplingParams(temperature=0, max_tokens=2 + 4 * number) for number in range(len(PROMPTS))]
    widget = EngineWidget(llm, PROMPTS, params, lang=lang)
    after.callback(widget.close)
    for _ in range(9):
        widget.step()
    return widget


def _cache(lang: str, after: ExitStack) -> CacheMonitor:
    llm = after.enter_context(_llm(num_blocks=40))
    monitor = CacheMonitor(llm, lang, 5, Parked())
    after.callback(monitor.close)
    llm.generate(PROMPTS[:2], SamplingParams(temperature=0, max_tokens=3))
    for prompt in PROMPTS:
        llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=9))
    llm.step()
    monitor.stop()
    return monitor


def _memory(lang: str, after: ExitStack) -> MemoryMonitor:
    monitor = MemoryMonitor(None, Fake(cuda, random.Random(5)), lang, 5, Parked())
    after.callback(monitor.close)
    for _ in range(30):
        monitor.tick()
    monitor.stop()
    return monitor


def _eviction(lang: str, after: ExitStack) -> EvictionMonitor:
    model = small("llama", number=3)
    after.enter_context(torch.no_grad())
    handle = after.enter_context(install_kv_eviction(model, policy="h2o", budget=8, n_sink=2, n_recent=4))
    monitor = EvictionMonitor(model, lang, 5, Parked())
    after.callback(monitor.close)
    ids = torch.randint(1, 90, (1, 60), generator=torch.Generator().manual_seed(0))
    past = handle.new_cache()
    for start, end in ((0, 20), *((at, at + 1) for at in range(20, 60))):
        model(ids[:, start:end], past_key_values=past)
        monitor.tick()
    monitor.stop()
    return monitor


def _llm(**sizes: int) -> LLM:
    return LLM(
        _model(), block_size=4, max_num_seqs=3, max_batched_tokens=16, max_model_len=64, seed=1, **sizes
    )


@functools.cache
def _model() -> Any:
    return bare_model()


@functools.cache
def _tiny() -> Any:
    return load("tiny-gqa", device="cpu", dtype="fp32").model


@functools.cache
def _trace() -> Any:
    return Load(
        20, 4.0, prompt_tokens=400, output_tokens=30, turns=2, think_seconds=5, system_tokens=1024
    ).trace()


def _diagram(lang: str) -> Diagram:
    """That with the most words: on patterns, beside them and on none."""
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate("A", list(range(10)))
    manager.commit("A")
    manager.allocate("B", [*range(8), 20])
    return diagrams.slots(manager, "B", lang)


CASES: dict[type, Callable[[str, ExitStack], Any]] = {
    AllocationWidget: lambda lang, after: AllocationWidget(lang),
    BlocksWidget: _blocks,
    BudgetWidget: lambda lang, after: BudgetWidget(lang, batch=16, context=32768),
    CacheMonitor: _cache,
    EngineWidget: _engine,
    EvictionMonitor: _eviction,
    FleetWidget: lambda lang, after: FleetWidget(lang, _trace(), replicas=2),
    GrowthWidget: lambda lang, after: GrowthWidget(lang, step=100),
    HeatMapWidget: lambda lang, after: HeatMapWidget(lang, model=_tiny()),
    MemoryMonitor: _memory,
    BatchingMotion: _batching,
    MemoryBarMotion: lambda lang, after: MemoryBarMotion(
        lang, "Llama-3.1-8B", "A100 SXM 40GB", context=4096, batch=64, steps=4
    ),
    PagingMotion: _paging,
    PoolWidget: _pool,
    ReportBar: lambda lang, after: report_bar(a_report(), lang),
    RooflineWidget: lambda lang, after: RooflineWidget(lang),
    SegmentsWidget: _segments,
    SwapCostWidget: lambda lang, after: SwapCostWidget(lang),
    WalkWidget: lambda lang, after: WalkWidget(lang, length=52, block_size=8, splits=2, step=2),
    ErrataTable: lambda lang, after: errata_table.errata_table(lang, slip="factor"),
    FlowChart: lambda lang, after: FlowChart(a_report(), lang),
    SourceView: lambda lang, after: SourceView(lang),
    Diagram: lambda lang, after: _diagram(lang),
}
WIDGETS = [kind for kind in CASES if issubclass(kind, anywidget.AnyWidget)]
MOTIONS = [kind for kind in WIDGETS if issubclass(kind, Motion)]

# Settings that cannot work: the sentence stands in the widget, and its bars are gone.
REFUSED: Mapping[type, dict[str, Any]] = {
    AllocationWidget: {"gpu": "T4"},
    BudgetWidget: {"context": 9_000_000},
    FleetWidget: {"gpu": "A10"},
    GrowthWidget: {"block_size": 0},
    HeatMapWidget: {"policy": "h3o"},
    RooflineWidget: {"batch": 0},
    SwapCostWidget: {"model": "Qwen2.5-0.5B", "tp": 8},
    WalkWidget: {"length": 0},
}
