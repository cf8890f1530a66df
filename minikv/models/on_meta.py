"""measure_config: the layers of a decoder on no list from its config alone, on torch's meta device.

The model is built without weights, and ``measure``'s two forwards run on shapes: seconds for the largest, and no
memory. Only classes of the installed transformers are built; a config's own code is never read.
"""

from typing import Any

import torch

from minikv.errors import ConfigError, first_line
from minikv.models.measured import layers_of
from minikv.plan.dtypes import find_kv_dtype
from minikv.plan.spec.cache_spec import model_dtype_of
from minikv.plan.spec.config import NEVER_DEFAULTED, TEXT_CONFIG_NAMES, Config
from minikv.plan.spec.measured import keep_measured

# The cache does not depend on them, and a meta model cannot be quantized.
_LEFT_OUT = ("auto_map", "quantization_config", "model_type")
_COUNTS = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "intermediate_size")
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def measure_config(config: Config) -> bool:
    """Measure the decoder that ``config`` describes and keep its layers; False for a type that transformers lacks.

    Raises ``ConfigError`` that names what is missing or cannot be explained.
    """
    from transformers import CONFIG_MAPPING

    inner, outer = (
        CONFIG_MAPPING[name] if name in CONFIG_MAPPING else None  # noqa: SIM401 - its get() finds nothing
        for name in (config.stated_type, config.whole.get("model_type"))
    )
    if inner is None and outer is None:
        return False
    _check_sizes(config, inner)
    fields = config.fields if outer is None else config.whole
    if outer is not None and fields == config.fields and "text_config" in (outer.sub_configs or {}):
        text = {name: value for name, value in fields.items() if name != "model_type"}
        fields = fields | {"text_config": text}  # an old, flat one
    model = _build(config, inner if outer is None else outer, fields)
    headless = model.get_output_embeddings() is None
    keep_measured(config, layers_of(model), None if headless else model.num_parameters())
    return True


def _check_sizes(config: Config, config_class: Any) -> None:
    """Raise unless the config itself says how many layers there are and how wide they are, and counts above 0."""
    names = getattr(config_class, "attribute_map", None) or {}
    for name in NEVER_DEFAULTED:
        own = names.get(name, name)
        stated = config.fields.get(own, config.fields.get(name))
        if stated is None:
            raise ConfigError("missing_field", field=own, name=config.name)
        config.count(own, stated)
    for name in _COUNTS:
        own = names.get(name, name)
        stated = config.fields.get(own, config.fields.get(name))
        if isinstance(stated, int):  # a layer may have its own: a list, or null for the class's way
            config.count(own, stated)


def _skip_experts(model: Any) -> None:
    """Give the experts' inputs back as their outputs: they cache nothing, and choose by values that are not there."""
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.forward = lambda hidden, *routing, **options: hidden


def _build(config: Config, config_class: Any, fields: dict[str, Any]) -> Any:
    """Return the decoder with its head, on the meta device, in the dtype of its config."""
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForMultimodalLM,
    )
    from transformers.utils import logging

    dtype = _DTYPES.get(find_kv_dtype(model_dtype_of(config, [])).name, torch.bfloat16)
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        kept = {name: value for name, value in fields.items() if name not in _LEFT_OUT}
        built = config_class.from_dict(kept)
        for each in (built, *(getattr(built, name, None) for name in TEXT_CONFIG_NAMES)):
            if each is not None:
                each.dtype = dtype
        # The decoder inside some composites has no head of its own; that caches nothing.
        autos = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoModel)
        for auto in autos:
            if type(built) in auto._model_mapping:
                with torch.device("meta"):
                    model = auto.from_config(built, dtype=dtype).eval()
                _skip_experts(model)
                return model
    except Exception as error:
        raise ConfigError("measured_failed", name=config.name, reason=first_line(error)) from error
    finally:
        logging.set_verbosity(before)
    raise ConfigError("measured_failed", name=config.name, reason=f"{config_class.__name__}: no decoder")
