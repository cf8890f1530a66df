"""What a reader's editor and ``mypy --strict`` say of a script that uses minikv as it is installed: with py.typed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).parent.parent

GOOD = """\
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from minikv import LLM, CacheSpec, SamplingParams, eviction_report, install_kv_eviction, plan_memory
from minikv.engine import EvictionConfig, RequestOutput
from minikv.eviction import H2O, Policy
from minikv.models import load

model = LlamaForCausalLM(LlamaConfig())
tokenizer = AutoTokenizer.from_pretrained("folder")
greedy = SamplingParams(temperature=0, top_k=-1, stop=["."], stop_token_ids=[2, 3])
policy: Policy = H2O(reduce="decay")
with install_kv_eviction(model, policy=policy, budget=8, scope="head", positions="reindexed") as eviction:
    kept: int = eviction.capacity
    print(eviction_report(model).text("zh"))
with LLM(model, tokenizer=tokenizer, kv_dtype=torch.bfloat16, cache="linear", tp="auto") as llm:
    outputs: list[RequestOutput] = llm.generate(["a", "b"], greedy)
    words: list[str] = outputs[0].text.split()
    again: bool = llm.reset_prefix_cache()
LLM(load("tiny-gqa", dtype="half"), eviction=EvictionConfig("keydiff"), prefix_dir=Path("x"), cpu_kv_bytes=8)
LLM("tiny-gqa", dtype="bfloat16", kv_dtype="fp8_e4m3", device=torch.device("cpu")).stream([[1, 2]])
total: int = CacheSpec.from_config("Qwen3-0.6B", kv_dtype="bfloat16", layout="vllm").bytes_for(3)
print(plan_memory("Qwen3-0.6B", gpu="H200", kv_dtype="fp8").num_blocks)
"""

BAD = """\
import minikv
from minikv import LLM, CacheSpec, SamplingParams, install_kv_eviction, plan_memory, simulate
from minikv.engine import EvictionConfig
from minikv.models import load

model = load("tiny-gqa").model
minikv.NoSuch  # attr-defined
minikv.cache.NoSuch  # attr-defined
minikv.engine.NoSuch  # attr-defined
minikv.eviction.NoSuch  # attr-defined
minikv.models.NoSuch  # attr-defined
minikv.plan.NoSuch  # attr-defined
install_kv_eviction(model, policy="keydif", budget=4)  # arg-type
install_kv_eviction(model, policy="keydiff", budget=4, scope="laier")  # arg-type
install_kv_eviction(model, policy="keydiff", budget=4, positions="orig")  # arg-type
install_kv_eviction(model, policy="keydiff", budget=4, when="prefil")  # arg-type
install_kv_eviction(model, budget=4)  # call-arg
EvictionConfig("keydif")  # arg-type
EvictionConfig("keydiff", unit="blok")  # arg-type
EvictionConfig()  # call-arg
LLM("tiny-gqa", dtype="bf17")  # arg-type
LLM("tiny-gqa", device=3)  # arg-type
LLM("tiny-gqa", cache="pagd")  # arg-type
LLM("tiny-gqa", kv_dtype="int9")  # arg-type
LLM("tiny-gqa", reads="pagd")  # arg-type
LLM("tiny-gqa", tp="all")  # arg-type
LLM("tiny-gqa", num_block=3)  # call-arg
LLM("tiny-gqa", gpu_memory_utilization=0.9)  # call-arg
LLM("tiny-gqa", tokenizer="tiny-gqa")  # arg-type
LLM(3)  # arg-type
LLM("tiny-gqa").generate("a")[0].outputs  # attr-defined
LLM("tiny-gqa").chat()  # call-arg
load("tiny-gqa", dtype="bf17")  # arg-type
SamplingParams(max_token=3)  # call-arg
SamplingParams(temperature="hot")  # arg-type
CacheSpec.from_config("Qwen3-0.6B", layout="vlm")  # arg-type
plan_memory("Qwen3-0.6B", gpu="H200", kv_dtype="int9")  # arg-type
simulate.Fleet.plan("Llama-3.1-70B", "H200", router="prefx")  # arg-type
"""


@pytest.mark.slow
def test_mypy_accepts_what_works_and_refuses_what_does_not(tmp_path):
    """One run for all scripts; its cache stays in ``build``, for torch and transformers take most of a minute."""
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    for page in ("guide.md", "guide.zh.md"):
        blocks = re.findall(
            r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL
        )
        assert len(blocks) >= 5
        for number, block in enumerate(blocks):
            (tmp_path / f"{page.replace('.', '_')}_{number}.py").write_text(block, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-color-output"),
            f"--cache-dir={ROOT / 'build' / 'mypy-user'}",
            "--untyped-calls-exclude=transformers",  # their ``eval`` has no types, which is no matter of ours
            *sorted(path.name for path in tmp_path.glob("*.py")),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert not done.stderr, done.stderr
    found = re.findall(r"^(\S+?):(\d+): error: .*\[([\w-]+)]$", done.stdout, re.MULTILINE)
    assert [each for each in found if each[0] != "bad.py"] == [], done.stdout
    due = [(number, line.split("# ")[1]) for number, line in enumerate(BAD.splitlines(), 1) if "# " in line]
    assert [(int(number), code) for _, number, code in found] == due, done.stdout


def test_the_names_of_policies_and_routers_are_those_of_their_tables():
    from minikv.eviction.policies.choices import PolicyName
    from minikv.eviction.policies.literature import POLICIES
    from minikv.simulate.router import ROUTERS, RouterName

    assert get_args(PolicyName) == tuple(POLICIES)
    assert get_args(RouterName) == tuple(ROUTERS)
