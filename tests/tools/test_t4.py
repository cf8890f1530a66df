"""docs/t4.md is what the package computes, and what it names exists."""

import re

import pytest

from minikv.kernels.gpu.ahead import SHARED_KIB
from minikv.plan import plan_memory
from tools.t4 import CHUNK, PAGES, ROOT, fitting, page


@pytest.mark.parametrize("lang", PAGES)
def test_the_page_is_what_the_package_says(lang):
    written = (ROOT / "docs" / PAGES[lang]).read_text(encoding="utf-8")
    assert written == page(lang), "run python -m tools.t4"
    links = re.findall(r"\]\((\.\./[^)]+)\)", written)
    assert links
    assert all((ROOT / "docs" / link).resolve().is_file() for link in links)


def test_what_fits_fits_and_the_next_larger_does_not():
    rows = fitting()
    assert rows
    for name, half, eight in rows:
        assert half.needed_bytes <= half.limit_bytes, name
        assert eight.max_tokens > half.max_tokens, name
    names = {name for name, _, _ in rows}
    assert "Qwen3-8B" not in names
    assert not plan_memory("Qwen3-8B", gpu="H200", chunk=CHUNK).weight_bytes < rows[0][1].total_bytes


def test_a_t4_s_shared_memory_is_the_one_of_the_page():
    assert f"{SHARED_KIB[75]} KiB" in page("en")
