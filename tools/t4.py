"""docs/t4.md and docs/t4.zh.md: what the course and the engine do on a free Colab T4, computed by the package.

python -m tools.t4            write both pages
python -m tools.t4 --check    fail where a page is not what the package says
"""

import argparse
import tomllib
from pathlib import Path

from minikv.errors import MiniKVError
from minikv.kernels.sdpa_prefill import MOST_BYTES
from minikv.plan import MemoryBudget, plan_memory
from minikv.plan.catalog import find_gpu, model_names
from minikv.units import GIB, MIB
from tools.notebooks.course import open_course

ROOT = Path(__file__).parent.parent
WORDS = Path(__file__).with_suffix(".toml")
PAGES = {"en": "t4.md", "zh": "t4.zh.md"}
CHUNK = 2048  # tokens that one forward prefills: the engine's default


def fitting() -> list[tuple[str, MemoryBudget, MemoryBudget]]:
    """The decoders of the catalogue that fit, with their budgets in float16 and in int8, the largest first."""
    found = []
    for name in model_names():
        try:
            half, eight = (_budget(name, kv_dtype) for kv_dtype in ("fp16", "int8"))
        except MiniKVError:  # too large, or not known well enough to say
            continue
        if half.fits and all(layer.kind != "cross" for layer in half.spec.layers):
            found.append((name, half, eight))
    return sorted(found, key=lambda row: -row[1].weight_bytes)


def _budget(name: str, kv_dtype: str) -> MemoryBudget:
    budget = plan_memory(name, gpu="T4", kv_dtype=kv_dtype, chunk=CHUNK, context=2048)
    stored = budget.weights
    # A float32 file, loaded as float16
    if stored is not None and stored.total == 4 * (stored.num_parameters or 0):
        budget = plan_memory(
            name, gpu="T4", kv_dtype=kv_dtype, chunk=CHUNK, context=2048, weight_bytes=stored.total // 2
        )
    return budget


def page(lang: str) -> str:
    """The whole page in ``lang``."""
    gpu = find_gpu("T4")
    template = tomllib.loads(WORDS.read_text(encoding="utf-8"))[lang]
    words = template["head"].format(
        memory=(gpu.total_bytes or 0) / GIB, bandwidth=gpu.bandwidth_gb_s, tflops=gpu.fp16_tflops,
        capability=gpu.compute_capability, chunk=CHUNK, most=MOST_BYTES // MIB,
    )  # fmt: skip
    for name, half, eight in fitting():
        words += f"| {name} | {half.weight_bytes / GIB:.2f} | {half.max_tokens:,} | {eight.max_tokens:,} |\n"
    words += template["lessons"]
    for lesson in open_course(ROOT).lessons:
        link = f"../notebooks/{lang}/{lesson.stem}.ipynb"
        words += f"| [{lesson.number} {lesson.title[lang]}]({link}) | {lesson.t4[lang]} |\n"
    return words


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    stale = 0
    for lang, name in PAGES.items():
        path, new = ROOT / "docs" / name, page(lang)
        if check:
            stale += not path.exists() or path.read_text(encoding="utf-8") != new
        else:
            path.write_text(new, encoding="utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    raise SystemExit(main())
