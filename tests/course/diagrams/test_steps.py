"""Diagrams of steps: launches over time, drafts accepted and taken back, a sequence's blocks after each call."""

from xml.etree import ElementTree

import pytest

from minikv.blocks import BlockManager
from minikv.course.diagrams import block_moments, drafts, launch_times, moment
from minikv.course.lessons.l13b.drafted import DraftStep, draft_steps
from minikv.course.lessons.l13b.launches import Kernel, launched, step_kernels
from minikv.errors import UnknownNameError
from minikv.look import look

SVG = "{http://www.w3.org/2000/svg}"
GPU = "H100 SXM 80GB"


def timelines(nbytes=3_350_000, count=50):
    kernels = [Kernel("mm", nbytes)] * count
    return [launched(kernels, GPU, graph=graph) for graph in (False, True)]


def launches_drawn(lang):
    return launch_times("some model", *timelines(), lang)


def drafts_drawn(lang):
    return drafts([DraftStep((5, 6, 7), 1, 8), DraftStep((), 0, 9)], lambda token: f"w{token}", lang)


def rolled_back():
    manager = BlockManager(num_blocks=6, block_size=4)
    manager.allocate("S", [1, 2, 3])
    moments = [moment(manager, "S", "allocate", [1, 2, 3, 4, 5])]
    manager.append_tokens("S", [4, 5, 6])
    moments.append(moment(manager, "S", "append_tokens", [1, 2, 3, 4, 5]))
    manager.truncate("S", 4)
    manager.commit("S")
    return [*moments, moment(manager, "S", "truncate", [1, 2, 3, 4, 5])]


def moments_drawn(lang):
    return block_moments(rolled_back(), lang)


STEPS = {"launches": launches_drawn, "drafts": drafts_drawn, "moments": moments_drawn}


def boxes(diagram, fill):
    tree = ElementTree.fromstring(diagram.svg)
    return [one for one in tree.iter(SVG + "rect") if one.get("fill") == fill]


@pytest.mark.parametrize("count", [1, 20])
def test_a_gpu_waits_for_launches_that_take_longer_than_kernels(count):
    eager, graph = timelines(nbytes=0, count=count)
    assert (len(eager.launches), len(graph.launches)) == (count, 1)
    assert eager.seconds == pytest.approx(count * 6e-6 + 2e-6)
    assert graph.seconds == pytest.approx(6e-6 + count * 2e-6)
    assert graph.waiting == pytest.approx(6e-6)
    assert eager.waiting == pytest.approx(eager.seconds - count * 2e-6)


def test_long_kernels_hide_the_launches():
    eager, graph = timelines(nbytes=335_000_000)
    assert eager.seconds == pytest.approx(graph.seconds)


def test_kernels_never_overlap_and_none_starts_before_its_launch():
    for line in timelines(nbytes=30_000_000):
        ends = [begin + length for begin, length in line.kernels]
        assert all(begin >= end for (begin, _), end in zip(line.kernels[1:], ends, strict=False))
        assert line.kernels[0][0] >= sum(line.launches[0])


def test_a_step_reads_all_weights_once_and_the_whole_cache():
    few, many = (step_kernels("Qwen2.5-0.5B", 1, context) for context in (8, 24))
    assert len(few) == len(many)
    weights = sum(kernel.nbytes for kernel in few if kernel.name in ("mm", "addmm"))
    assert weights > 2 * 490e6  # 0.49 B parameters in bfloat16
    reads = [sum(one.nbytes for one in step if one.name == "attention") for step in (few, many)]
    layers, kv_heads, dim = 24, 2, 64
    assert reads[1] - reads[0] >= 16 * 2 * layers * kv_heads * dim * 2


@pytest.mark.parametrize("shown", [60e-6, 240e-6])
def test_the_picture_counts_the_kernels_that_end_in_it(shown):
    eager, graph = timelines()
    lines = launch_times("m", eager, graph, shown=shown).text().splitlines()
    for line, said in zip((eager, graph), lines[1:], strict=True):
        ended = sum(begin + length <= shown for begin, length in line.kernels)
        assert said.endswith(f": {ended}")
        assert f"{line.seconds * 1e3:.2f} ms" in said


def test_spans_are_to_scale():
    diagram = launch_times("m", *timelines(nbytes=33_500_000), shown=240e-6)
    widths = {float(one.get("width")) for one in boxes(diagram, look(0).fill) if one.get("height") == "22"}
    assert max(widths) == pytest.approx(10 * 800 / 240, abs=0.1)  # 10 us each


def test_each_step_gives_its_accepted_drafts_and_one_token():
    text = drafts_drawn("en").text()
    assert "3 tokens in 2 steps" in text
    assert "step 1: accepted w5; own w8; rejected w6 w7" in text
    assert "step 2: accepted -; own w9; rejected -" in text


def test_steps_of_a_run_make_up_its_text():
    from minikv import LLM, SamplingParams
    from minikv.engine import EventLog
    from minikv.models import load, recall_prompt

    log = EventLog()
    with LLM(load("tiny-gqa", device="cpu"), prompt_lookup=3, num_blocks=64, emit=log) as llm:
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        [out] = llm.generate([recall_prompt(seed=0).text], params)
    steps = draft_steps(log, out.prompt_token_ids, out.token_ids)
    said = [token for step in steps for token in (*step.drafts[: step.accepted], step.own)]
    assert said == list(out.token_ids[1:])
    assert any(step.accepted for step in steps)
    assert any(step.accepted < len(step.drafts) for step in steps)


def test_moments_say_what_came_what_went_and_what_can_be_found():
    lines = moments_drawn("en").text().splitlines()
    assert lines[0].startswith(
        "allocate: 3 tokens, 1 blocks; 5 blocks free; another request would find 0 of 5"
    )
    assert "6 tokens, 2 blocks; 4 blocks free" in lines[1]
    assert "would find 4 of 5; block 0, published; tokens 1 2 3 4" in lines[2]
    diagram = moments_drawn("en")
    assert len(boxes(diagram, look(0).fill)) == 3 + 3 + 4 + 1  # kept tokens of each moment, and the legend
    tree = ElementTree.fromstring(diagram.svg)
    gone = [one for one in tree.iter(SVG + "rect") if one.get("stroke-dasharray")]
    assert len(gone) == 2 + 1


def test_a_moment_of_an_unknown_sequence_is_refused():
    with pytest.raises(UnknownNameError):
        moment(BlockManager(num_blocks=2, block_size=4), "Z", "call")
