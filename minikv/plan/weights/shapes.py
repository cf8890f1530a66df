"""The vocabulary of weight shapes: a tensor, the dimensions that tensor parallelism cuts, and the usual layers.

A linear layer's weight is written (out, in), even if the class stores the transpose (GPT-2); the experts of a layer
are one tensor (experts, out, in). A dimension is an int, or a tuple of ``Cut``s where ranks share it. The families of
models are in the files beside this one, ``decoder.py``, ``moe.py`` and others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from minikv.errors import ArgumentError
from minikv.plan.spec.architectures import split_heads
from minikv.plan.spec.config import Config


@dataclass(frozen=True)
class Cut:
    """``size`` elements divided over ranks, made of ``units`` (heads, channels) that stay whole.

    ``copied``: where ranks outnumber the units, each unit is on several ranks (KV heads). ``padded``: the last
    rank's part is filled up to the others' (the vocabulary). Otherwise tp has to divide ``units``.
    """

    what: str
    size: int
    units: int
    copied: bool = False
    padded: bool = False

    def on_rank(self, tp: int) -> int:
        """Elements on one of ``tp`` ranks. Raises ``ArgumentError`` or ``ConfigError`` where tp does not fit."""
        if self.padded:
            return -(-self.size // tp)
        if self.copied:
            return self.size // self.units * split_heads(self.units, tp)
        if self.units % tp:
            raise ArgumentError("state_does_not_divide", what=self.what, value=self.units, tp=tp)
        return self.size // tp


Cuts = tuple[Cut, ...]
Dim = int | Cuts


@dataclass(frozen=True)
class Tensor:
    """One tensor of the whole model. ``quantizable``: a quantized checkpoint may store it in fewer bits.

    ``itemsize``: bytes of an element where it does not have the model's dtype.
    """

    name: str
    layer: int | None
    dims: tuple[Dim, ...]
    kind: str
    quantizable: bool = False
    itemsize: int | None = None

    def shape(self, tp: int) -> tuple[int, ...]:
        """The shape on one of ``tp`` ranks."""
        return tuple(
            dim if isinstance(dim, int) else sum(cut.on_rank(tp) for cut in dim) for dim in self.dims
        )

    @property
    def split(self) -> str:
        """ "column" (outputs), "row" (inputs), "vocab", "expert" (inside each expert) or "replicated"."""
        cut = [axis for axis, dim in enumerate(self.dims) if not isinstance(dim, int)]
        if not cut:
            return "replicated"
        dim = self.dims[cut[0]]
        if isinstance(dim, tuple) and dim[0].padded:
            return "vocab"
        if self.kind == "expert":
            return "expert"
        return "row" if cut[0] == 1 and len(self.dims) == 2 else "column"


def query_heads(heads: int, dim: int) -> Cuts:
    """``heads`` x ``dim`` outputs of a query projection."""
    return (Cut("num_attention_heads", heads * dim, heads),)


def key_value_heads(heads: int, dim: int) -> Cuts:
    """``heads`` x ``dim`` outputs of a key or value projection; a head is copied where ranks outnumber heads."""
    return (Cut("num_key_value_heads", heads * dim, heads, copied=True),)


def channels(what: str, size: int, units: int | None = None, times: int = 1) -> Cuts:
    """``size`` elements made of ``units`` (each element its own unit where None), ``times`` side by side."""
    return (Cut(what, size, units or size),) * times


def linear(
    name: str,
    layer: int | None,
    out_dim: Dim,
    in_dim: Dim,
    kind: str,
    bias: bool = False,
    quantizable: bool = True,
) -> Iterator[Tensor]:
    """The weight (out, in) of a linear layer and, with ``bias``, its bias (out)."""
    yield Tensor(f"{name}.weight", layer, (out_dim, in_dim), kind, quantizable)
    if bias:
        yield Tensor(f"{name}.bias", layer, (out_dim,), kind)


def norm(name: str, layer: int | None, size: int, bias: bool = False) -> Iterator[Tensor]:
    """A norm's weight, and its bias where it is a LayerNorm. Every rank has all of it."""
    yield Tensor(f"{name}.weight", layer, (size,), "norm")
    if bias:
        yield Tensor(f"{name}.bias", layer, (size,), "norm")


def vocabulary(name: str, config: Config, width: int, kind: str, field: str = "vocab_size") -> Tensor:
    """An embedding or an lm_head, (vocabulary, width)."""
    size = config.count(field)
    return Tensor(f"{name}.weight", None, ((Cut(field, size, size, padded=True),), width), kind)


def is_tied(config: Config) -> bool:
    """Whether the lm_head is the embedding. A composite config has the field at its top or in its text part."""
    for fields in (config.fields, config.whole):
        if isinstance(fields.get("tie_word_embeddings"), bool):
            return config.record("tie_word_embeddings", fields["tie_word_embeddings"], "config")
    return bool(config.get("tie_word_embeddings"))


def flag(config: Config, name: str | bool) -> bool:
    """A switch of a family: a constant, or the config field that holds it."""
    return bool(config.get(name)) if isinstance(name, str) else name


def swish_mlp(prefix: str, layer: int, hidden: int, inner: int, bias: bool = False) -> Iterator[Tensor]:
    """The gated MLP: gate and up (inner, hidden), down (hidden, inner)."""
    cut = channels("intermediate_size", inner)
    yield from linear(f"{prefix}.gate_proj", layer, cut, hidden, "mlp", bias)
    yield from linear(f"{prefix}.up_proj", layer, cut, hidden, "mlp", bias)
    yield from linear(f"{prefix}.down_proj", layer, hidden, cut, "mlp", bias)


def plain_mlp(
    prefix: str,
    layer: int,
    hidden: int,
    inner: int,
    bias: bool = False,
    names: tuple[str, str] = ("up_proj", "down_proj"),
) -> Iterator[Tensor]:
    """The MLP without a gate: up (inner, hidden), down (hidden, inner)."""
    cut = channels("intermediate_size", inner)
    yield from linear(f"{prefix}.{names[0]}", layer, cut, hidden, "mlp", bias)
    yield from linear(f"{prefix}.{names[1]}", layer, hidden, cut, "mlp", bias)


def expert_weights(
    prefix: str, layer: int, experts: int, hidden: int, inner: int, gated: bool = True, bias: bool = False
) -> Iterator[Tensor]:
    """All routed experts of a layer. Every rank has a slice of each expert (no expert parallelism)."""
    cut = channels("moe_intermediate_size", inner)
    for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
        yield Tensor(f"{prefix}.{name}.weight", layer, (experts, cut, hidden), "expert", quantizable=True)
        if bias:
            yield Tensor(f"{prefix}.{name}_bias", layer, (experts, cut), "expert")
    yield Tensor(f"{prefix}.down_proj.weight", layer, (experts, hidden, cut), "expert", quantizable=True)
    if bias:
        yield Tensor(f"{prefix}.down_proj_bias", layer, (experts, hidden), "expert")
