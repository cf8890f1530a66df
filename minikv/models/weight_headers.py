"""The contents of a model's weight files, by their headers, and the limits of the counts in its config.json.

A config.json may come from anywhere. Its counts are bounded before a model is built, and the model's parameters are
compared with the weights before they get memory: transformers would fill missing ones with random numbers.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch

from minikv.errors import ConfigError
from minikv.plan.spec.config import MOST, MOST_LAYERS

# Larger than any dimension of a weight; the product of two is still a valid number of bytes
MOST_WIDTH = 2**24
FEW_MODULES = 1_000  # as many are built within seconds for any files
# Config fields with these endings give a number of modules.
_MODULES = ("layer", "layers", "depth", "experts", "blocks")
# Config fields with these endings give a width.
_WIDTHS = ("size", "dim", "rank", "heads", "head", "embd", "inner", "d_model", "d_ff")


@dataclass(frozen=True)
class Stored:
    """A weight in a file: its dtype as safetensors spells it, such as "BF16", and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether its elements are integers or booleans."""
        return self.dtype.startswith(("I", "U", "BOOL"))


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers reads: model.safetensors, else those of its index, else all of them."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({folder / name for name in named})
    return sorted(folder.glob("*.safetensors"))


def stored_weights(folder: Path) -> dict[str, Stored]:
    """Return every weight of the folder's files by name. Raises as safetensors does for a damaged file."""
    from safetensors import safe_open

    found = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                part = file.get_slice(name)
                found[name] = Stored(part.get_dtype(), tuple(part.get_shape()))
    return found


def check_counts(folder: Path, fields: Mapping[str, Any], most_modules: int = MOST_LAYERS) -> None:
    """Raise ``ConfigError``, which names the field, for a number in a config.json that no model has."""
    for name, value in _numbers("", fields):
        most = most_modules if name.endswith(_MODULES) else MOST_WIDTH if name.endswith(_WIDTHS) else MOST
        if value > most:
            raise ConfigError("field_too_large", field=name, name=str(folder), most=most)


def check_stored(folder: Path, config: Any, fields: Mapping[str, Any], stored: Mapping[str, Stored]) -> None:
    """Raise ``ConfigError`` unless ``stored`` can be the weights of the model that ``config`` describes.

    The model is built on torch's meta device, without memory. The error names a weight of another shape or of integers,
    or the number of parameters that the files cannot hold. Quantized weights have shapes and dtypes of their own, so
    only their number is checked.
    """
    from transformers import AutoModelForCausalLM

    check_counts(folder, fields, max(FEW_MODULES, len(stored)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    parameters = dict(model.named_parameters())
    quantized = "quantization_config" in fields or hasattr(config, "quantization_config")
    if quantized:
        # No format has less than one bit a weight.
        held = 8 * sum(path.stat().st_size for path in weight_files(folder))
    else:
        pairs = {name: (stored[name], tuple(parameters[name].shape)) for name in parameters if name in stored}
        other = {name: pair for name, pair in pairs.items() if pair[0].shape != pair[1]}
        if other:
            first, (found, wanted) = next(iter(other.items()))
            raise wrong_shapes(folder, fields, len(other), first, found.shape, wanted)
        whole = [
            name
            for name, each in stored.items()
            if each.is_whole
            and (parameters[name].is_floating_point() if name in parameters else name.endswith(".weight"))
        ]
        if whole:
            first = whole[0]
            values = {"count": len(whole), "first": first, "dtype": stored[first].dtype}
            raise ConfigError("models_weights_whole", path=str(folder), **values)
        held = sum(prod(each.shape) for each in stored.values())
    wanted = sum(each.numel() for each in parameters.values())
    if wanted > 2 * held:  # twice, because weights tied in the files may not be tied in the model
        raise ConfigError("models_weights_few", path=str(folder), wanted=wanted, held=held)


def wrong_shapes(
    folder: Path, fields: Mapping[str, Any], count: int, first: str, stored: Any, wanted: Any
) -> ConfigError:
    """Return the error for weights of other shapes than the config's; it names the fields with the expected sizes."""
    sizes, numbers = set(wanted) - set(stored), list(_numbers("", fields))
    named = [each for each in numbers if each[1] in sizes]
    if not named:  # a projection has a row for each element of each head
        heads = [each for each in numbers if each[0].endswith("heads")]
        dims = [each for each in numbers if each[0].endswith("head_dim")]
        named = [each for pair in product(heads, dims) if pair[0][1] * pair[1][1] in sizes for each in pair]
    said = ", ".join(f"{name} = {value}" for name, value in dict.fromkeys(named))
    return ConfigError(
        "models_weights_shape",
        path=str(folder),
        count=count,
        first=first,
        stored=list(stored),
        wanted=list(wanted),
        fields=said or f"model_type = {fields.get('model_type')}",
    )


def _numbers(name: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yield every whole number of a config with the name of its field."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(str(key), each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(name, each)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value
