"""Modules of a model that compute the same in less time on a CPU: linear layers, MLPs, RMS norms. Lesson 04.

Linear layers: ``torch.nn.functional.linear`` reads a weight [N, K] row by row. A product that reads it in the order in
which it multiplies takes less time, so a weight is put in such an order once. In float32, where there is a C compiler,
it is that of ``minikv.kernels.cpu.linear``; otherwise that of oneDNN. The packed weight takes the place of the plain
one, so that nothing is kept twice, not in a mapped file either, and ``close`` puts the plain one back: the same values
in the same ``Parameter``. A weight that an embedding shares stays as it is, and oneDNN reads it in rows.

MLPs: ``down_proj(silu(gate_proj(x)) * up_proj(x))`` in C multiplies with both weights at once, and what it gives is
gated before it is written to memory.

RMS norms: transformers spells one out in six operations over the hidden states. In C it is one, where there is a C
compiler, and two passes are enough without.

The two functions of torch that oneDNN's order rests on have no public name. They are called here alone. Each module's
result is compared with the plain one before it is changed, and where they do not agree, or this torch or this processor
has no such function, the module stays as it is. The model's classes and its own code are not touched: a module gets
another ``forward`` until ``close``.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from minikv.kernels.cpu import linear as in_c
from minikv.kernels.cpu.norm import rms_norm
from minikv.models.wanted import wanted

LEAST_WEIGHTS = 2**17  # of a linear layer: below, what a call costs is more than it saves
ROWS = 64  # oneDNN's order is chosen for a product with so many rows, and serves other numbers
# Another order of the same sums. Results in bfloat16 are rounded themselves, to 1 part in 256.
READ_BY_OTHERS = ("kv_b_proj", "dt_proj")  # linear layers with a weight that attention or a scan reads
WITHIN = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@dataclass
class _Change:
    """How many users a changed module has; ``weight`` and ``hook`` of a linear layer: its own weight, emptied while a
    packed one stands in its place (None where it is not packed), and what writes it into a ``state_dict``; ``panels``
    of an MLP: those of its gate and of ``up_proj``, of which ``halves``, the packed weights of the two, are views."""

    weight: nn.Parameter | None = None
    hook: Any = None
    panels: Tensor | None = None
    halves: tuple[nn.Parameter, ...] = ()
    users: int = 1


_CHANGES: WeakKeyDictionary[nn.Module, _Change] = WeakKeyDictionary()


class FasterModules:
    """The modules that are changed for one user, until ``close``, or until nothing refers to this object."""

    def __init__(self, modules: list[nn.Module]):
        self.modules = tuple(modules)
        self.close = finalize(self, _undo, self.modules)


def use_faster_modules(model: nn.Module) -> FasterModules:
    """Change those modules of ``model`` that gain by it. Asked again, a module stays changed until all users closed.

    - ``nn.Linear`` on the CPU, in float32 or bfloat16, of ``LEAST_WEIGHTS`` or more, but for ``READ_BY_OTHERS``.
    - MLPs of three such layers in float32, the activation SiLU, without a bias of the first two.
    - Classes named ``...RMSNorm``, in float32, that compute what ``torch.nn.functional.rms_norm`` does.
    """
    names = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    memory = Counter(_address(each) for each in [*model.parameters(), *model.buffers()])

    def alone(layer: Any) -> bool:
        return names[id(layer.weight)] == memory[_address(layer.weight)] == 1

    for module in model.modules():
        if module not in _CHANGES and _own(module) in (_linear_forward, _mlp_forward, _norm_forward):
            del module.forward  # of a copy of a changed model: its weights are plain
    changed: dict[nn.Module, None] = {}
    try:
        for name, module in model.named_modules():
            if module in changed:  # with its MLP
                continue
            known = _CHANGES.get(module)
            if known is not None:
                known.users += 1
                changed[module] = None
                continue
            if "forward" in module.__dict__:  # changed by another library
                continue
            if type(module) is nn.Linear and not name.endswith(READ_BY_OTHERS):
                _change_linear(module, alone(module), changed)
            elif _has_gate(module) and all(alone(each) for each in _gate_and_up(module)):
                _change_mlp(module, changed)
            elif type(module).__name__.endswith("RMSNorm"):
                _change_norm(module, changed)
        if any(_CHANGES[each].weight is not None and _CHANGES[each].users == 1 for each in changed):
            _copy_the_rest(model, memory)
        return FasterModules(list(changed))
    except BaseException:  # Ctrl+C, or no memory: none stays changed without a user
        _undo(tuple(changed))
        raise


def plain_weight(weight: Tensor) -> Tensor:
    """A linear layer's weight in rows, whether or not it is packed."""
    return weight.plain() if isinstance(weight, PackedWeight) else weight


class PackedWeight(nn.Parameter):
    """A weight of ``rows`` rows in the order of C or of oneDNN. A copy of the model gets a plain one.

    ``half``: it is half of an MLP's panels, which C multiplies with whole.
    """

    rows: int
    half: bool

    @classmethod
    def of(cls, packed: Tensor, rows: int, half: bool = False) -> "PackedWeight":
        weight = cls(packed, requires_grad=False)
        weight.rows, weight.half = rows, half
        return weight

    def plain(self) -> Tensor:
        own = self.detach()
        return own.to_dense() if own.is_mkldnn else in_c.unpack(own, self.rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        copied = memo[id(self)] = nn.Parameter(self.plain(), requires_grad=False)
        return copied


def _copy_the_rest(model: nn.Module, memory: Counter[int]) -> None:
    """Copy the plain tensors of ``model`` that have memory of their own, by its addresses in ``memory``.

    Weights read from safetensors lie in the mapped file, and one of them keeps all of it in memory: those that are
    packed would be there twice.
    """
    for each in model.parameters():
        if type(each) is nn.Parameter and each.is_cpu and memory[_address(each)] == 1:
            each.data = each.data.clone()


def _change_linear(module: nn.Linear, alone: bool, changed: dict[nn.Module, None]) -> None:
    """``alone``: nothing else refers to the weight, so it may be packed."""
    weight = module.weight
    if not _is_plain(weight, tuple(WITHIN)) or weight.numel() < LEAST_WEIGHTS:
        return
    rows = _ramp(1, module.in_features, weight.dtype)
    try:
        plain = linear(rows, weight, module.bias)
        used = next(
            used for used in _orders(weight, alone) if _agree(_product(rows, used, module.bias), plain)
        )
    except (StopIteration, AttributeError, RuntimeError):  # this torch or this processor has no such function
        return
    if alone:
        _put_packed(module, used, changed)
    else:
        _put(module, _linear_forward, _Change(), changed)


def _put(module: nn.Module, forward: Callable, change: _Change, changed: dict[nn.Module, None]) -> None:
    changed[module] = None  # first, so that an interrupt finds what to undo
    _CHANGES[module] = change
    module.forward = MethodType(forward, module)


def _put_packed(module: nn.Linear, used: nn.Parameter, changed: dict[nn.Module, None]) -> None:
    own = module.weight
    _put(module, _linear_forward, change := _Change(own), changed)
    change.hook = module.register_state_dict_post_hook(_write_plain)
    module.weight = used
    own.data = own.data.new_empty(0)


def _orders(weight: nn.Parameter, alone: bool) -> Iterator[nn.Parameter]:
    """Yield the weight in each order that may serve, the fastest first."""
    if not alone:
        yield weight
        return
    for pack in (in_c.pack, lambda plain: torch.ops.mkldnn._reorder_linear_weight(plain, ROWS)):
        packed = pack(weight.detach())
        if packed is not None:
            yield PackedWeight.of(packed, len(weight))


def _has_gate(module: nn.Module) -> bool:
    """Whether it may be an MLP that can be changed whole."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(type(each) is nn.Linear and "forward" not in each.__dict__ for each in layers):
        return False
    return not _watched(module) and all(
        each.bias is None
        and _is_plain(each.weight, (torch.float32,))
        and each.weight.numel() >= LEAST_WEIGHTS
        for each in _gate_and_up(module)
    )


def _gate_and_up(mlp: Any) -> tuple[nn.Linear, nn.Linear]:
    return mlp.gate_proj, mlp.up_proj


def _change_mlp(module: Any, changed: dict[nn.Module, None]) -> None:
    gate, up = _gate_and_up(module)
    if gate.weight.shape != up.weight.shape:
        return
    panels = in_c.pack(gate.weight.detach(), up.weight.detach())
    if panels is None:
        return
    for most in (3, 3e4):  # also where a limit or another activation shows
        rows = _ramp(most, gate.in_features, torch.float32)
        with torch.no_grad():
            try:
                plain = type(module).forward(module, rows)
                found = module.down_proj(_gated(rows, panels, gate.out_features))
            except Exception:  # of another kind of MLP, which takes more than one tensor
                return
        if not isinstance(plain, Tensor) or not _agree(found, plain):
            return
    half = panels.shape[2] // 2
    halves = [
        PackedWeight.of(part, gate.out_features, True) for part in (panels[..., :half], panels[..., half:])
    ]
    for layer, part in zip((gate, up), halves, strict=True):
        _put_packed(layer, part, changed)
    _put(module, _mlp_forward, _Change(panels=panels, halves=tuple(halves)), changed)


def _change_norm(module: nn.Module, changed: dict[nn.Module, None]) -> None:
    weight: Any = getattr(module, "weight", None)
    eps = _eps(module)
    if not isinstance(eps, float) or not _is_plain(weight, (torch.float32,)) or weight.dim() != 1:
        return
    rows = 0.5 + _ramp(2.5, len(weight), torch.float32)
    rows = torch.cat([rows, rows * 1e-3])  # so small that it matters where ``eps`` is added
    with torch.no_grad():
        try:
            plain = type(module).forward(module, rows)
        except Exception:  # of another kind of norm, which takes more than one tensor
            return
        if not isinstance(plain, Tensor) or not _agree(_normed(rows, weight, eps), plain):
            return
    _put(module, _norm_forward, _Change(), changed)


def _ramp(most: float, width: int, dtype: torch.dtype) -> Tensor:
    """[2, ``width``]: numbers from ``-most`` to ``most``, whatever torch's defaults are."""
    return torch.linspace(-most, most, 2 * width, dtype=dtype, device="cpu").view(2, -1)


def _undo(modules: tuple[nn.Module, ...]) -> None:
    for module in modules:
        change = _CHANGES.get(module)
        if change is None:  # interrupted before it was changed
            continue
        change.users -= 1
        if change.users:
            continue
        del _CHANGES[module]
        module.__dict__.pop("forward", None)
        if change.hook is not None:
            change.hook.remove()
        if change.weight is not None:
            change.weight.data = plain_weight(module.get_parameter("weight"))
            module.weight = change.weight


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(weight, PackedWeight) and not weight.is_mkldnn:
        converted = weight.dtype != torch.float32 or not weight.is_contiguous()
        if weight.half or converted:
            return linear(rows, weight.plain(), bias)
        return in_c.linear(rows, weight, weight.rows, bias)
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def _gated(rows: Tensor, panels: Tensor, width: int) -> Tensor:
    return in_c.linear(rows, panels, width, gated=True)


def _linear_forward(module: nn.Linear, input: Tensor) -> Tensor:
    """``nn.Linear.forward`` in C or by oneDNN. Where a gradient may be asked for, as ever."""
    weight = module.weight
    if not _computes(input, module.in_features, weight.dtype):
        return linear(input, plain_weight(weight), module.bias)
    return wanted(lambda rows: _product(rows, weight, module.bias), input)


def _computes(x: Tensor, width: int, dtype: torch.dtype) -> bool:
    """Whether the faster way takes ``x``. What it does not take gets torch's own result, or its error."""
    plain = x.is_cpu and x.dtype == dtype and x.shape[-1] == width
    return plain and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def _mlp_forward(module: Any, x: Tensor) -> Tensor:
    """The MLP with its first two products in one. Where a gradient may be asked for, or a hook waits, as ever."""
    change, layers = _CHANGES.get(module), _gate_and_up(module)
    if change is None or change.panels is None or _watched(module):
        return type(module).forward(module, x)
    ours = all(
        layer.weight is half and half.dtype == torch.float32 and _own(layer) is _linear_forward
        for layer, half in zip(layers, change.halves, strict=True)
    )
    if not ours or not _computes(x, layers[0].in_features, torch.float32):
        return type(module).forward(module, x)
    panels, width = change.panels, layers[0].out_features
    return wanted(lambda rows: module.down_proj(_gated(rows, panels, width)), x)


def _watched(module: nn.Module) -> bool:
    """Whether a hook waits for what a layer inside ``module`` gets or gives."""
    return any(each._forward_hooks or each._forward_pre_hooks for each in module.children())


def _own(module: nn.Module) -> Callable | None:
    """The function that was put in place of the module's ``forward``."""
    return getattr(module.__dict__.get("forward"), "__func__", None)


def _norm_forward(module: Any, hidden_states: Tensor) -> Tensor:
    """The norm in few passes over the hidden states. Where a gradient may be asked for, as the class computes it."""
    if torch.is_grad_enabled() or hidden_states.dtype != torch.float32:
        return type(module).forward(module, hidden_states)
    return _normed(hidden_states, module.weight, _eps(module))


def _normed(hidden_states: Tensor, weight: Tensor, eps: float) -> Tensor:
    found = rms_norm(hidden_states, weight, eps)
    if found is not None:
        return found
    length = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True)
    scale = torch.rsub(length.square_(), eps, alpha=-1 / len(weight)).rsqrt_()  # 1 / sqrt(eps + length^2 / N)
    return (hidden_states * scale).mul_(weight)


def _eps(module: nn.Module) -> Any:
    """The constant of a norm, under either of the names that transformers' classes have for it."""
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _write_plain(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    """``state_dict`` of a packed layer has the weight in rows."""
    state[prefix + "weight"] = plain_weight(module.get_parameter("weight"))


def _is_plain(weight: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether it is a parameter in rows on the CPU, neither sharded nor quantized."""
    return (
        type(weight) is nn.Parameter and weight.is_cpu and weight.dtype in dtypes and weight.is_contiguous()
    )


def _agree(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= WITHIN[expected.dtype] * expected.abs().max())


def _address(tensor: Tensor) -> int:
    """Of a tensor's memory; 0 where it has none of its own: packed, sharded, quantized."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
