"""Prefill and decode: the rows are those that a real model computed."""

import re

import pytest
import torch

from minikv.course.diagrams import step_rows, watch_rows
from minikv.look import look
from minikv.models import load


@pytest.fixture(scope="module")
def steps():
    """Of two runs over a prompt of 5 tokens, 3 new ones each, by the name of the run."""
    model, _ = load("tiny-gqa", dtype="fp32", device="cpu")
    ids, runs = torch.tensor([[2, 20, 30, 40, 50]]), {}
    for name, use_cache in (("without", False), ("with", True)):
        with watch_rows(model) as runs[name]:
            model.generate(ids, max_new_tokens=3, use_cache=use_cache, do_sample=False)
    model(ids)  # is not watched any more
    return runs


def test_a_cache_leaves_one_row_to_compute(steps):
    assert steps == {"without": [(5, 5), (6, 6), (7, 7)], "with": [(5, 5), (1, 6), (1, 7)]}


@pytest.mark.parametrize(("lang", "say"), [("en", "{} rows of each"), ("zh", "各计算 {} 行")])
def test_every_figure_is_in_the_text(steps, lang, say):
    diagram = step_rows([str(n) for n in range(8)], steps, lang)
    for words in (diagram.text(), diagram.alt):
        assert say.format(18) in words
        assert say.format(7) in words
        assert len(re.findall(r"\b[01567]\b", words)) >= 12


def test_other_steps_draw_another_picture(steps):
    fewer = {name: run[:2] for name, run in steps.items()}
    words = [str(n) for n in range(8)]
    assert step_rows(words, fewer).svg != step_rows(words, steps).svg


def test_what_is_read_from_the_cache_is_drawn_for_k_and_v_alone(steps):
    """In the decode steps: 5 and 6 rows of two columns."""
    diagram = step_rows([str(n) for n in range(8)], {"with": steps["with"]})
    tile = re.search(r'<pattern id="([^"]+)"[^>]*><rect[^>]*fill="' + look("cached").fill, diagram.svg)[1]
    legend = 1
    assert diagram.svg.count(f"url(#{tile})") == 2 * (5 + 6) + legend
