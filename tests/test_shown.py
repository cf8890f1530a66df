"""What an object says of itself where a cell ends in it: one short line, a plain table, the same in both languages.

Every class of the package that has a ``shown`` is made here once, under a model name that is out for trouble.
"""

import ast
import re
import tempfile
from dataclasses import asdict, replace
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import minikv
from minikv import LLM
from minikv.blocks import BlockManager, BlockPool, KVCacheGroup
from minikv.cache import HostPool, LinearKVCache, LinearPages, PagedKVCache, allocate_kv_cache
from minikv.course.capstone import Plan, serve
from minikv.course.capstone.bound import Floor
from minikv.course.your_engine.finding import Finding as PartFinding
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.race import Lane, Race
from minikv.course.your_engine.report import EngineReport
from minikv.course.your_engine.run import Effect, Examined, Seen
from minikv.engine import EventLog, Scheduler, summary
from minikv.engine.profile import Phase, Profile
from minikv.errors import ArgumentError
from minikv.eviction import Budget, EvictionReport, PagedEviction, install_kv_eviction, trace_eviction
from minikv.eviction.hf.report import Finding
from minikv.look import report_style
from minikv.memory import (
    Arena,
    CachingAllocator,
    MemoryStats,
    MemoryTimeline,
    PeakReport,
    ownership,
    retention_report,
)
from minikv.models import load
from minikv.models.fidelity import LogitError
from minikv.plan import CacheSpec, LayerSpec, plan_gguf, plan_memory
from minikv.plan.logs.check_log import check_log
from minikv.plan.measured import MeasuredTerms
from minikv.shown import LONGEST_LINE, Shown, one_line
from minikv.simulate import Calibration, Fleet, Target, Trace, TraceRequest, fewest, simulate
from minikv.units import GIB
from tests.course.capstone_world import small_task
from tests.in_turn import in_turn
from tests.plan.gguf.by_hand import PAIRS, header, pair, words

HOSTILE = '<script>alert("1")</script>&<b>\n' + "x" * 200
VOID = {"br", "hr", "img", "meta", "link", "input"}


def hostile_spec(**changes):
    """The cache of a small model with that name: full, sliding and latent layers."""
    layers = (
        LayerSpec("full", 2, 16, 16),
        LayerSpec("sliding", 2, 16, 16, window=32),
        LayerSpec("full", 2, 16, 16),
    )
    return CacheSpec(
        **{"layers": layers, "name": HOSTILE, "model_type": "<i>", "max_positions": 8192} | changes
    )


def a_latent_spec():
    return hostile_spec(layers=(LayerSpec("latent", 1, 64, 8), LayerSpec("linear", state_bytes=4096)))


def a_gguf_plan():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(header((*PAIRS, pair("general.name", 8, words(HOSTILE)))))
        return plan_gguf(path, gpu="H200", batch=3)


def a_budget():
    return replace(plan_memory("Llama-3.1-8B", gpu="H200", batch=8), spec=hostile_spec())


def a_manager():
    manager = BlockManager([KVCacheGroup(64), KVCacheGroup(32, window=16)], 4)
    manager.allocate("a", range(40))
    manager.commit("a")
    manager.allocate("b", range(50))
    return manager


def a_paged_cache(closed=False):
    cache = PagedKVCache(hostile_spec(), [1024, 64], 16)
    if closed:
        cache.close()
    return cache


def a_linear_cache():
    cache = LinearKVCache(hostile_spec(), 40, 64)
    cache.commit(range(40))
    return cache


@cache
def an_allocation(device="cpu"):
    report = allocate_kv_cache(load("tiny-gqa").model, num_blocks=8, warmup_tokens=32)[1]
    if device == "cuda":
        stats = MemoryStats("cuda:0", 80 * GIB, 60 * GIB, 16 * GIB, 17 * GIB, 18 * GIB, 0, nvml="gone")
        terms = MeasuredTerms(80 * GIB, 0.9, 20 * GIB, 18 * GIB, 16 * GIB)
        report = replace(report, stats=stats, terms=terms, how="measured", device="cuda:0")
    return replace(report, spec=hostile_spec())


@cache
def an_llm(cache="paged", closed=False):
    llm = LLM(load("tiny-gqa"), cache=cache, num_blocks=4 if cache == "linear" else 64)
    object.__setattr__(llm.cache.spec, "name", HOSTILE)
    llm.add_request([1, 2, 3])
    if closed:
        llm.close()
    return llm


@cache
def a_run():
    """The events of a run with a preempted sequence, swaps and drafts, and what an evicting one adds."""
    log = EventLog()
    with LLM(load("tiny-gqa"), num_blocks=64, emit=log) as llm:
        llm.generate([[5, 6, 7] * 20, list(range(40))], progress=False)
    return replace(
        summary(log.events), swaps=2, host_hit_rate=0.25, acceptance=0.5, lost_tokens=7,
        evicted_tokens=1234, length=100.5, resident=50.25,
    )  # fmt: skip


def a_memory_report():
    with LLM(load("tiny-gqa"), num_blocks=64) as llm:
        report = llm.memory_report()
    return replace(report, model=HOSTILE, activation_bytes=12_345, warmup_tokens=77)


def a_profile():
    phases = (
        Phase("load", 1.5, 10, 2000, 3000),
        Phase("prefill", 0.25, 2000, 4096, None, tokens=99, steps=3),
    )
    return Profile("cpu", "rss", phases)


def an_arena_report():
    arena = Arena(1 << 16, name=HOSTILE)
    kept = arena.borrow("<td>", (16, 8), torch.float32)
    arena.borrow("gone", (100,), torch.int8)
    report = arena.report()
    del kept
    return report


HOLD = []


@cache
def a_retention_report():
    HOLD.clear()
    report = retention_report(lambda: HOLD.append(torch.ones(1000)), device="cpu")
    return replace(report, cycle_bytes=12, freed_bytes=34)


def an_eviction_report():
    layers = {0: {"dropped": 5, "peak_resident": 64}, 1: {"dropped": 7, "peak_resident": 70}}
    findings = (Finding("sinks_gone", (0, 1), {"n_sink": 2}),)
    return EvictionReport(HOSTILE, 64, 65, layers, findings)


def a_verdict():
    log = "Available KV cache memory: 50.00 GiB\nGPU KV cache size: 409,600 tokens"
    return replace(check_log(log, model="Llama-3.1-8B", tp=1), model=HOSTILE)


@cache
def an_outcome():
    trace = Trace(HOSTILE, tuple(TraceRequest(0.1 * n, 700, 9, (4, 5)) for n in range(20)))
    return simulate(trace, Fleet.plan("Llama-3.1-8B", "H200", replicas=2, host_kv_bytes=GIB))


def a_timeline():
    with MemoryTimeline("cpu", hz=0.01) as timeline:
        timeline.mark("<load>\x1b[2J")
    return timeline


def a_fewest():
    trace = Trace(HOSTILE, tuple(TraceRequest(0.01 * n, 2000, 200) for n in range(60)))
    make = partial(Fleet.plan, "Llama-3.1-8B", "H200")
    return fewest(trace, make, Target(p99_ttft=0.5))


def a_calibration():
    return Calibration(an_outcome().fleet.step_time, 12, 0.125, 0.5, 0.75, 5)


def an_engine_report():
    part = KeptPart("free", "def free(self, seq): ...", "", "2026-11-23T10:15:00Z", "0.1.0")
    found = PartFinding("09.2", "raised", "tiny-gqa", 30, 20, 50, got=HOSTILE, line=40, source=HOSTILE)
    effect = Effect("token", "tiny-gqa", request=50, place=30, due=17, got=19)
    seen = Seen(48, 548, 184, 15, 48, 90)
    told = Examined(
        {"09.2": 87}, {"09.2": found}, {"09.2": effect}, {"09.2": HOSTILE}, seen, replace(seen, requests=72)
    )
    return EngineReport({"09.2": part}, asdict(told))


def a_race():
    absent = {"code": "race_raised", "values": {"kind": "ValueError", "message": HOSTILE}}
    lanes = (
        Lane("static", 0.25, 2605056), Lane("generate_batch", absent=absent), Lane("nano", 0.125, 819200),
        Lane("yours", 0.5, 819200), Lane("minikv", 0.375, 819200),
    )  # fmt: skip
    return Race(lanes, 32, 837, 5, 0, ("09.2",), "cpu", 20.5)


MAKERS = {
    "EngineReport": an_engine_report,
    "Race": a_race,
    "Fewest": a_fewest,
    "Calibration": a_calibration,
    "LogitError": lambda: LogitError(120, 0.5, 0.125, 2.25, 0.0625, 0.99),
    "Task": lambda: small_task(4),
    "Run": lambda: serve(small_task(4), Plan()),
    "Floor": lambda: Floor(0.5, 12, 3456, 3999, 77, 41, 0.125, 2.5, 0.75),
    "MemoryStats": lambda: MemoryStats.read("cpu"),
    "MemoryStats of a GPU": lambda: MemoryStats("cuda:0", 80 * GIB, GIB, 3, 5, 7, 0, nvml="<b>gone"),
    "MemoryTimeline": a_timeline,
    "PeakReport": lambda: PeakReport("cuda:0", 5 * GIB, 7 * GIB, 6 * GIB),
    "Ownership": lambda: ownership(torch.zeros(1000)[10:100]),
    "ArenaReport": an_arena_report,
    "RetentionReport": a_retention_report,
    "MemoryReport": a_memory_report,
    "Profile": a_profile,
    "Metrics": a_run,
    "EvictionReport": an_eviction_report,
    "LogVerdict": a_verdict,
    "Outcome": an_outcome,
    "Answers": lambda: an_outcome().answers(),
    "CacheSpec": hostile_spec,
    "CacheSpec of MLA": a_latent_spec,
    "MemoryBudget": a_budget,
    "GGUFPlan": a_gguf_plan,
    "BlockManager": a_manager,
    "ManagerStats": lambda: a_manager().stats(),
    "PagedKVCache": a_paged_cache,
    "PagedKVCache, closed": lambda: a_paged_cache(closed=True),
    "LinearKVCache": a_linear_cache,
    "LinearUse": lambda: a_linear_cache().use(),
    "LinearPages": lambda: LinearPages(a_linear_cache()),
    "AllocationReport": an_allocation,
    "AllocationReport of a GPU": lambda: an_allocation("cuda"),
    "LLM": an_llm,
    "LLM, linear": lambda: an_llm("linear"),
    "LLM, closed": lambda: an_llm(closed=True),
}


every_object = in_turn("name", MAKERS)


@cache
def made(name):
    return MAKERS[name]()


def an_installed_eviction():
    model = load("tiny-gqa").model
    return install_kv_eviction(model, policy="h2o", budget=16, n_sink=2, n_recent=4)


def a_paged_eviction():
    cache = a_paged_cache()
    manager = BlockManager([KVCacheGroup(1024), KVCacheGroup(64, window=32)], 16)
    return PagedEviction(cache, manager, "knorm", budget=Budget(budget=32, n_sink=2, n_recent=8))


def a_trace_of_eviction():
    return trace_eviction(
        load("tiny-gqa").model, list(range(40)), budget=8, policy="knorm", n_sink=2, n_recent=4
    )


# What is no report, and would be an address or many screens otherwise.
LINES = {
    "Loaded": lambda: replace(load("tiny-gqa"), name=HOSTILE),
    "Trace": lambda: Trace(HOSTILE, (TraceRequest(0.5, 700, 9),) * 1000),
    "Fleet": lambda: Fleet.plan("Llama-3.1-8B", "H200", replicas=2),
    "EventLog": lambda: EventLog(),
    "Scheduler": lambda: Scheduler(BlockManager(8, 4)),
    "BlockPool": lambda: BlockPool(8, 4),
    "HostPool": lambda: HostPool(a_paged_cache(), [8, 4]),
    "CachingAllocator": lambda: CachingAllocator(),
    "EvictionHandle": an_installed_eviction,
    "PagedEviction": a_paged_eviction,
    "EvictionTrace": a_trace_of_eviction,
}


@in_turn("name", LINES)
def test_what_is_no_report_has_a_line_too(name):
    thing = LINES[name]()
    line = repr(thing)
    assert line.startswith(f"<{name}")
    assert len(line) <= LONGEST_LINE
    assert line.isprintable()
    assert "0x" not in line


class Page(HTMLParser):
    """Reads HTML, and refuses tags that do not match."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def figures(text):
    """Every number in it (bf16 and p99 are words), in any order: a sentence may name them in another one."""
    return sorted(
        number.strip(".,").replace(",", "") for number in re.findall(r"(?<![A-Za-z0-9])[0-9][0-9.,]*", text)
    )


# What a report is made of, said in a phrase of the report; an error; and the lessons' own sentences.
PHRASES = {"MiniKVError", "Hint", "Finding", "Holder", "CacheFound", "Eager"}


def classes_of_the_package():
    """(file, class) of every class outside of the widgets and the lessons."""
    room = Path(minikv.__file__).parent
    for path in sorted(room.rglob("*.py")):
        if not {"widgets", "lessons"} & set(path.parts):
            tree = ast.parse(path.read_text("utf-8"))
            yield from ((path, node) for node in tree.body if isinstance(node, ast.ClassDef))


def test_every_report_of_the_package_is_looked_at_here():
    told = {
        node.name
        for _, node in classes_of_the_package()
        if any("html_of" in ast.unparse(line) for line in node.body if isinstance(line, ast.Assign))
    }
    made = {name.split(" ")[0].rstrip(",") for name in MAKERS}
    bases = {"Pages": "PagedKVCache"}
    assert {bases.get(name, name) for name in told} <= made


def test_what_has_a_text_in_both_languages_has_html_too():
    for path, node in classes_of_the_package():
        if "course" in path.parts or node.name in PHRASES:
            continue
        written = [line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == "text"]
        assert not any("lang" in ast.unparse(line.args) for line in written), f"{path}: {node.name}"


@every_object
def test_its_repr_is_one_short_line_without_an_address(name):
    shown_object = made(name)
    line = repr(shown_object)
    assert line.startswith(f"<{type(shown_object).__name__}")
    assert line.endswith(">")
    assert len(line) <= LONGEST_LINE
    assert line.isprintable()
    assert "0x" not in line
    assert re.search("[0-9]", line) or "closed" in line


@every_object
def test_its_html_is_a_table_that_asks_for_nothing(name):
    shown_object = made(name)
    html = shown_object._repr_html_()
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= set("style div b table caption thead tbody tr th td span".split())
    assert "http" not in html
    assert "url(" not in html
    assert len(page.all("table")) == len(page.all("caption")) == bool(shown_object.shown().rows)
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))
    assert all(
        name in ("style", "class", "scope", "align", "aria-hidden")
        for _, found in page.tags
        for name in found
    )


@every_object
def test_its_html_has_the_looks_style_and_none_of_its_own(name):
    """The only style of an element is the length of a bar: a host without style sheets loses nothing but looks."""
    shown_object = made(name)
    html = shown_object._repr_html_()
    style, _, body = html.partition("</style>")
    assert style + "</style>" == report_style(body)
    styles = [found["style"] for _, found in Page(html).tags if "style" in found]
    assert all(re.fullmatch(r"--share:[0-9.]+%", style) for style in styles)
    assert len(styles) == sum(share > 0 for share in shown_object.shown().shares)


@every_object
def test_figures_are_aligned_without_a_style_sheet(name):
    shown_object = made(name)
    right = sorted(shown_object.shown().right)
    body = shown_object._repr_html_().partition("<tbody>")[2]
    for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL):
        sides = re.findall(r"<t[dh]([^>]*)>", row)
        assert [place for place, said in enumerate(sides) if 'align="right"' in said] == right


@every_object
def test_a_name_is_text_not_a_tag(name):
    shown_object = made(name)
    words = " ".join(Page(shown_object._repr_html_()).words)
    if HOSTILE[:20] in shown_object.text():
        assert HOSTILE[:20] in words


@every_object
def test_both_languages_say_the_same_figures(name):
    shown_object = made(name)
    english, chinese = shown_object.text("en"), shown_object.text("zh")
    assert "\x1b" not in english + chinese
    assert figures(english) == figures(chinese)
    assert re.search("[\u4e00-\u9fff]", chinese)
    assert not re.search("[\u4e00-\u9fff]", english)


@every_object
def test_html_and_text_say_the_same_figures(name):
    shown_object = made(name)
    for lang in ("en", "zh"):
        words = " ".join(Page(shown_object.shown(lang)._repr_html_()).words)
        assert figures(words) == figures(shown_object.text(lang))


@every_object
def test_a_language_that_is_not_ours_is_refused(name):
    shown_object = made(name)
    for say in (shown_object.text, shown_object.shown):
        with pytest.raises(ArgumentError, match="fr"):
            say("fr")


def test_a_chinese_cell_ends_in_the_chinese_table():
    shown = hostile_spec().shown("zh")
    assert isinstance(shown, Shown)
    assert repr(shown) == shown.text()
    assert "层数" in shown._repr_html_()


def test_a_line_keeps_its_figures_where_the_name_is_long():
    line = one_line("CacheSpec", "a" * 300, "32 layers", "128.00 KiB a token")
    assert len(line) == LONGEST_LINE
    assert line.endswith("a: 32 layers, 128.00 KiB a token>")
    assert "…" in line
    assert one_line("X", "\n\x1b[31m", "1") == "<X \\n\\x1b[31m: 1>"
    assert len(one_line("X", "name", "9" * 500)) == LONGEST_LINE


def test_what_a_reader_saw_before_was_longer_than_a_screen():
    """The two that printed 7,391 and 6,232 characters."""
    budget = plan_memory("Llama-3.1-8B", gpu="H200")
    assert repr(budget) == (
        "<MemoryBudget Llama-3.1-8B on 1 x H200 SXM: "
        "KV 108.95 GiB, 55,781 blocks of 16 tokens, 1 x 4,096 tokens fit>"
    )
    assert repr(budget.spec) == "<CacheSpec Llama-3.1-8B: 32 layers, 128.00 KiB a token, KV in bf16, tp=1>"
