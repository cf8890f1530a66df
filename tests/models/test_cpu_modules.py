"""Modules that compute another way on a CPU: the same results meanwhile, the same model afterwards, no weight twice."""

import copy
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from minikv import LLM, SamplingParams
from minikv.errors import DoesNotFitError
from minikv.models import cpu_modules
from minikv.models.cpu_modules import PackedWeight, plain_weight, use_faster_modules

SIZES = {
    "vocab_size": 640,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
PROMPT = [[5, 9, 100, 7, 5, 9]]


def qwen3(tied: bool = False, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    """Random, with linear layers large enough to be packed, but for ``k_proj`` and ``v_proj``."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=tied)).to(dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def layouts(model: nn.Module) -> dict[str, bool]:
    """{linear layer: whether its weight is packed}."""
    return {
        name: isinstance(module.weight, PackedWeight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


@pytest.fixture(params=["C", "oneDNN"])
def here(request, monkeypatch):
    """Weights are packed for one of the two; skips where this machine cannot."""
    if request.param == "oneDNN":
        monkeypatch.setenv("MINIKV_KERNELS", "reference")
    model = qwen3()
    with_packed = use_faster_modules(model)
    weight = model.model.layers[0].mlp.up_proj.weight
    packs = isinstance(weight, PackedWeight) and weight.is_mkldnn == (request.param == "oneDNN")
    with_packed.close()
    if not packs:
        pytest.skip(f"{request.param} packs no weights here")


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor(PROMPT)).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_the_same_meanwhile_and_every_byte_afterwards(tied, dtype, here):
    model = qwen3(tied, dtype)
    before, parameters = logits(model), dict(model.named_parameters())
    values = {name: parameter.clone() for name, parameter in parameters.items()}
    faster = use_faster_modules(model)
    packed = layouts(model)
    assert packed["model.layers.0.self_attn.q_proj"]
    assert packed["model.layers.1.mlp.down_proj"]
    assert not packed["model.layers.0.self_attn.k_proj"]  # too small to gain
    assert packed["lm_head"] != tied
    within = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    torch.testing.assert_close(logits(model), before, **within)
    faster.close()
    assert not any(layouts(model).values())
    assert torch.equal(logits(model), before)
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert torch.equal(parameter, values[name])
        assert parameter.requires_grad
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_an_llm_changes_a_model_until_it_closes_and_generate_is_unharmed(here):
    model = qwen3()
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(torch.tensor(PROMPT), **options)[0, len(PROMPT[0]) :].tolist()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(model, num_blocks=16) as llm:
        assert layouts(model)["model.layers.0.mlp.up_proj"]
        (output,) = llm.generate(PROMPT, params)
        assert list(output.token_ids) == expected
        with LLM(model, num_blocks=16) as second:
            assert list(second.generate(PROMPT, params)[0].token_ids) == expected
        assert layouts(model)["model.layers.0.mlp.up_proj"]  # the first one still uses it
    assert not any(layouts(model).values())
    assert model.generate(torch.tensor(PROMPT), **options)[0, len(PROMPT[0]) :].tolist() == expected


def test_a_second_llm_reads_the_prefixes_of_weights_that_the_first_has_packed(tmp_path, here):
    model, prompt = qwen3(), list(range(1, 50))
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    options = {"num_blocks": 16, "cpu_kv_bytes": 2**24, "prefix_dir": tmp_path}
    with LLM(model, **options) as first:
        first.generate([prompt], params)
    with LLM(model, num_blocks=16), LLM(model, **options) as second:
        assert second.generate([prompt], params)[0].num_cached == 48


def test_an_llm_that_cannot_be_built_or_is_dropped_leaves_the_model_as_it_was(here):
    model = qwen3()
    with pytest.raises(DoesNotFitError):
        LLM(model, cpu_kv_bytes=2**60, num_blocks=16)
    assert not any(layouts(model).values())
    LLM(model, num_blocks=16)
    gc.collect()
    assert not any(layouts(model).values())


def test_what_is_saved_or_copied_meanwhile_is_plain(here):
    model = qwen3()
    before, values = logits(model), {name: value.clone() for name, value in model.state_dict().items()}
    faster = use_faster_modules(model)
    saved = model.state_dict()
    for name, value in values.items():
        assert torch.equal(saved[name], value)
    copied = copy.deepcopy(model)
    assert not any(layouts(copied).values())
    torch.testing.assert_close(logits(copied), before, rtol=1e-4, atol=1e-5)
    again = use_faster_modules(copied)
    assert layouts(copied)["model.layers.0.mlp.up_proj"]
    again.close()
    assert torch.equal(logits(copied), before)
    faster.close()
    assert torch.equal(logits(model), before)


def test_with_a_gradient_it_computes_as_ever(here):
    model = qwen3()
    ids = torch.tensor(PROMPT)
    model(ids, labels=ids).loss.backward()
    expected = model.model.embed_tokens.weight.grad.clone()
    model.zero_grad()
    faster = use_faster_modules(model)
    model(ids, labels=ids).loss.backward()
    torch.testing.assert_close(model.model.embed_tokens.weight.grad, expected, rtol=1e-4, atol=1e-6)
    faster.close()


def test_a_norm_of_another_formula_stays_as_it_is():
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**SIZES, query_pre_attn_scalar=64)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02)  # Gemma's norm multiplies by 1 + weight
    before = logits(model)
    faster = use_faster_modules(model)
    assert "forward" not in model.model.norm.__dict__
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-5)
    faster.close()


class OutsideRMSNorm(nn.Module):
    """Adds ``eps`` to the root: nearly the same but for small hidden states."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(64)), 1e-4

    def forward(self, hidden_states):
        return self.weight * hidden_states / (hidden_states.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


def test_a_norm_that_differs_for_small_numbers_alone_stays_as_it_is():
    faster = use_faster_modules(nn.Sequential(OutsideRMSNorm()))
    assert faster.modules == ()
    faster.close()


class OwnMLP(nn.Module):
    """Llama's MLP but for its activation, which the caller gives, and what a subclass makes of the product."""

    def __init__(self, act_fn):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(256, 640, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(640, 256, bias=False), act_fn

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class UpGatedMLP(OwnMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


class ClampedMLP(OwnMLP):
    """As DeepSeek-V4's: what is far from zero is cut."""

    def forward(self, x):
        gate = self.gate_proj(x).clamp(max=10)
        return self.down_proj(self.act_fn(gate) * self.up_proj(x).clamp(-10, 10))


@pytest.mark.parametrize(
    ("mlp", "whole"),
    [
        (OwnMLP(nn.SiLU()), True),
        (OwnMLP(nn.GELU()), False),
        (UpGatedMLP(nn.SiLU()), False),
        (ClampedMLP(nn.SiLU()), False),
    ],
    ids=["SiLU", "GELU", "the other is gated", "clamped"],
)
@torch.no_grad()
def test_an_mlp_is_computed_whole_where_silu_gates_the_first_product(mlp, whole, here):
    x = torch.randn(3, 5, 256, generator=torch.Generator().manual_seed(0))
    expected, gate = mlp(x), mlp.gate_proj.weight.clone()
    faster = use_faster_modules(mlp)
    in_c = mlp.down_proj.weight.is_mkldnn is False
    assert ("forward" in mlp.__dict__) == (whole and in_c)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mlp.gate_proj(x), nn.functional.linear(x, gate), rtol=1e-4, atol=1e-5)
    again = use_faster_modules(mlp)
    faster.close()
    torch.testing.assert_close(mlp(x), expected, rtol=1e-4, atol=1e-5)
    again.close()
    assert torch.equal(mlp.gate_proj.weight, gate)
    assert not any("forward" in module.__dict__ for module in mlp.modules())


@pytest.mark.parametrize("what", ["another layer", "another forward", "another weight"])
@torch.no_grad()
def test_what_is_put_into_an_mlp_meanwhile_is_used(what, here):
    mlp, x = OwnMLP(nn.SiLU()), torch.ones(2, 256)
    faster, layer = use_faster_modules(mlp), mlp.gate_proj
    if what == "another layer":
        mlp.gate_proj = nn.Linear(256, 640, bias=False)
        plain = mlp.gate_proj.weight
    elif what == "another forward":
        layer.forward = lambda x: nn.functional.linear(x, plain)
        plain = torch.ones(640, 256) / 256
    else:
        layer.weight = nn.Parameter(plain := torch.ones(640, 256) / 256, requires_grad=False)
    expected = mlp.down_proj(nn.functional.silu(nn.functional.linear(x, plain)) * mlp.up_proj(x))
    torch.testing.assert_close(mlp(x), expected, rtol=1e-4, atol=1e-5)
    del faster


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@torch.no_grad()
def test_a_model_that_is_converted_while_packed_in_c_computes_with_what_it_has(dtype, here):
    mlp, x = OwnMLP(nn.SiLU()), torch.ones(2, 256)
    expected = mlp(x)
    faster = use_faster_modules(mlp)
    if not mlp.down_proj.weight.is_mkldnn:
        torch.testing.assert_close(mlp.to(dtype)(x.to(dtype)).float(), expected, rtol=5e-2, atol=5e-2)
        torch.testing.assert_close(mlp.float()(x), expected, rtol=5e-2, atol=5e-2)
    del faster


@torch.no_grad()
def test_a_copy_is_changed_whole_too(here):
    mlp = OwnMLP(nn.SiLU())
    faster = use_faster_modules(mlp)
    copied = copy.deepcopy(mlp)
    again = use_faster_modules(copied)
    assert ("forward" in copied.__dict__) == ("forward" in mlp.__dict__)
    torch.testing.assert_close(copied(x := torch.ones(2, 256)), mlp(x), rtol=1e-5, atol=1e-6)
    again.close()
    faster.close()


def test_a_weight_that_others_read_stays_in_rows(here):
    model = nn.ModuleDict({name: nn.Linear(512, 512) for name in ("q_proj", "dt_proj", "kv_b_proj")})
    faster = use_faster_modules(model)
    assert layouts(model) == {"q_proj": True, "dt_proj": False, "kv_b_proj": False}
    faster.close()


@torch.no_grad()
def test_a_hook_inside_an_mlp_is_called(here):
    mlp, seen = OwnMLP(nn.SiLU()), []
    faster = use_faster_modules(mlp)
    x = torch.ones(2, 256)
    expected = mlp(x)
    handle = mlp.gate_proj.register_forward_hook(lambda module, args, output: seen.append(output))
    torch.testing.assert_close(mlp(x), expected, rtol=1e-4, atol=1e-5)
    assert len(seen) == 1
    handle.remove()
    mlp(x)
    assert len(seen) == 1
    faster.close()


@pytest.mark.parametrize("place", [1, 3, 9, 13])
def test_an_interrupt_meanwhile_leaves_no_layer_changed(place, here, monkeypatch):
    model, real, calls = qwen3(), cpu_modules.MethodType, []

    def method(*args):
        calls.append(args)
        if len(calls) == place:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(cpu_modules, "MethodType", method)
    with pytest.raises(KeyboardInterrupt):
        use_faster_modules(model)
    assert not any(layouts(model).values())
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("wrong", ["raises", "differs"])
def test_a_product_that_is_not_there_or_is_wrong_changes_no_layer(wrong, monkeypatch):
    def product(rows, weight, bias):
        if wrong == "raises":
            raise AttributeError("no such operator")
        return rows.new_zeros(len(rows), len(plain_weight(weight)))

    def in_c(rows, panels, count, bias=None, *, gated=False):
        return product(rows, rows.new_empty(count, 1), bias)

    monkeypatch.setattr(cpu_modules, "_product", product)
    monkeypatch.setattr(cpu_modules.in_c, "linear", in_c)
    model = qwen3()
    before = logits(model)
    faster = use_faster_modules(model)
    assert not any(layouts(model).values())
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-6)
    faster.close()


@torch.no_grad()
def test_what_a_product_cannot_take_gets_torchs_own_error(here):
    layer = nn.Linear(256, 640)
    mlp = OwnMLP(nn.SiLU())
    model = nn.ModuleList([layer, mlp])
    faster = use_faster_modules(model)
    for module in (layer, mlp):
        with pytest.raises(RuntimeError, match="shapes"):
            module(torch.ones(2, 255))
        with pytest.raises(RuntimeError, match="dtype"):
            module(torch.ones(2, 256, dtype=torch.float64))
    faster.close()


@pytest.mark.parametrize("changed", ["dtype", "device"])
@torch.no_grad()
def test_torchs_defaults_do_not_matter(changed, here):
    model = qwen3()
    before = logits(model)
    try:
        if changed == "dtype":
            torch.set_default_dtype(torch.bfloat16)
        else:
            torch.set_default_device("meta")
        faster = use_faster_modules(model)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert layouts(model)["model.layers.0.mlp.up_proj"]
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-5)
    faster.close()


def test_a_layer_that_another_library_has_changed_is_left_to_it(here):
    model = qwen3()
    layer = model.model.layers[0].mlp.up_proj
    layer.forward = lambda input: nn.functional.linear(input, layer.weight)
    own = layer.forward
    faster = use_faster_modules(model)
    assert layer.forward is own
    assert not layouts(model)["model.layers.0.mlp.up_proj"]
    faster.close()
    assert layer.forward is own


MEMORY = """
import gc, sys, torch
from torch import nn
from minikv.models.cpu_modules import PackedWeight, use_faster_modules

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

small = nn.Sequential(nn.Linear(512, 512, bias=False))
use_faster_modules(small).close()  # what is compiled
model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(24)))  # 16 MiB each
with torch.no_grad():
    before = resident()
    faster = use_faster_modules(model)
    packed = sum(isinstance(layer.weight, PackedWeight) for layer in model)
    meanwhile = resident()
    faster.close()
    print(packed, meanwhile - before, resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_weight_is_kept_twice(here):
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    packed, meanwhile, afterwards = map(int, done.stdout.split())
    weight = 16 * 2**20
    assert packed == 24
    assert meanwhile < 2 * weight
    assert afterwards < 12 * weight  # what the allocator keeps for later


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of mapped files here")
def test_a_packed_model_keeps_no_file_of_weights_in_memory(tmp_path, here):
    qwen3().save_pretrained(tmp_path)
    model = Qwen3ForCausalLM.from_pretrained(tmp_path)
    expected = logits(model)
    with LLM(model, num_blocks=16) as llm:
        llm.generate(PROMPT, SamplingParams(max_tokens=2), progress=False)
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert torch.equal(logits(model), expected)
