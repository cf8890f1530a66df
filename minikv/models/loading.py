"""load: a model and its tokenizer, ready to run. Lessons 00, 01 and 11.

    >>> model, tokenizer = load("tiny-gqa")
    >>> ids = tokenizer("ada paris the cat sleeps ben oslo ? ada", return_tensors="pt").input_ids
    >>> tokenizer.decode(model(ids).logits[0, -1].argmax())
    'paris'

Only safetensors are read, and no code that comes with a model is run.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from minikv.errors import ArgumentError, ConfigError, DoesNotFitError, MiniKVError
from minikv.extras import require_engine
from minikv.i18n import text
from minikv.keywords import own_keywords
from minikv.memory.stats import find_memory
from minikv.models.sharding import rank_device, ranks_wanted, read_shard, start_ranks, together
from minikv.models.sources import check_attention, check_folder, find_folder, reason_of
from minikv.models.weight_headers import check_stored, stored_weights, wrong_shapes
from minikv.plan.dtypes import AnyDtype, find_dtype
from minikv.shown import one_line

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "auto": None}
_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # as safetensors spells them
_BFLOAT16_FROM = (8, 0)  # compute capability
_DECODER_NAMES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, eq=False)
class Loaded:
    """The result of ``load``: also as ``model, tokenizer = load(...)``.

    ``model``: of transformers, in eval mode, no parameter requires a gradient. ``tokenizer``: None if the folder has
    none. ``name``: as it was asked for.
    """

    model: Any
    tokenizer: Any
    name: str
    _note: tuple[str, dict[str, str]] | None = None

    def note(self, lang: str = "en") -> str | None:
        """Return why ``dtype="auto"`` chose another dtype than the file's, or None."""
        return None if self._note is None else text(f"models.{self._note[0]}", lang, **self._note[1])

    def __repr__(self) -> str:
        parameters = f"{self.model.num_parameters():,} parameters"
        dtype = str(self.model.dtype).removeprefix("torch.")
        tokenizer = (
            "no tokenizer" if self.tokenizer is None else f"tokenizer of {len(self.tokenizer):,} tokens"
        )
        kind = type(self.model).__name__
        return one_line("Loaded", self.name, kind, parameters, f"{dtype} on {self.model.device}", tokenizer)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))


@own_keywords("load")
def load(
    name: str | os.PathLike,
    *,
    dtype: AnyDtype = "auto",
    device: str | torch.device = "auto",
    tp: int | Literal["auto"] = 1,
) -> Loaded:
    """The causal language model ``name``: "tiny-gqa", "tiny-mla", a folder, or a hub id. A ``Path`` is a folder.

    ``dtype``: "fp32", "bf16", "fp16" by any name (``minikv.plan.dtypes``), a torch.dtype, or "auto", which is the
    file's with two exceptions that ``Loaded.note`` tells: on a CPU float16 becomes float32 (a CPU computes float16
    slowly and less exactly), and on a GPU of compute capability below 8.0, which has no bfloat16, bfloat16 becomes
    float16. ``device``: "auto" is "cuda" where there is one, else "cpu". ``tp``: over how many processes the weights
    are sharded, each of which has to call; "auto" is all that torchrun has started, see ``minikv.models.sharding``.

    Raises before weights are read: ``ArgumentError`` (no such dtype or device, no causal language model),
    ``UnknownNameError`` (no such folder; the hub has no such model, wants you to log in, or does not answer),
    ``ConfigError`` (no config.json, pickled weights, an architecture or an attention that would need code from
    elsewhere, weights of other shapes than the config says, of integers, or by far too few). Then ``ConfigError`` for
    weights that are damaged or not all there, and ``DoesNotFitError`` where the device has no room for them.
    ``RankLostError`` where another rank has ended meanwhile.
    """
    require_engine()
    wanted = DTYPES[find_dtype(dtype)]
    tp = ranks_wanted(tp)
    where = _device(device) if tp == 1 else rank_device(device)
    folder = find_folder(name)
    fields = check_folder(folder)
    config = _read_config(folder)
    _check_decoder(config, fields)
    check_attention(folder, config)
    with _readable(folder):
        stored = stored_weights(folder)
    with _readable(folder, "models_config_refused"):
        check_stored(folder, config, fields, stored)
    chosen, note = (wanted, None) if wanted else _suit(_stated_dtype(config, folder), where)
    model = (
        _read_model(folder, fields, chosen, where)
        if tp == 1
        else _read_sharded(folder, fields, config, chosen, tp)
    )
    model = model.eval().requires_grad_(False)
    model.config.name_or_path = str(name)  # the name of a CacheSpec, instead of the files' path
    return Loaded(model, _read_tokenizer(folder), str(name), note)


def _device(device: str | torch.device) -> torch.device:
    if isinstance(device, str) and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return find_memory(device)


def _suit(stated: torch.dtype, device: torch.device) -> tuple[torch.dtype, tuple[str, dict[str, str]] | None]:
    """Return the dtype that the device computes well, and the sentence about it if it is another."""
    if device.type == "cpu" and stated == torch.float16:
        return torch.float32, ("float16_on_cpu", {})
    if device.type == "cuda" and stated == torch.bfloat16:
        capability = torch.cuda.get_device_capability(device)
        if capability < _BFLOAT16_FROM:
            gpu, has = torch.cuda.get_device_name(device), "{}.{}".format(*capability)
            return torch.float16, ("no_bfloat16", {"gpu": gpu, "capability": has})
    return stated, None


def _check_decoder(config: Any, fields: dict[str, Any]) -> None:
    """Raise unless the folder's weights are those of a decoder with its output layer."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING as DECODERS

    listed = fields.get("architectures")
    stated = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    ours = [name for name in stated if name.endswith(_DECODER_NAMES)]
    known = type(config) in DECODERS and not getattr(config, "is_encoder_decoder", False)
    if not known or (stated and not ours):
        raise ArgumentError("models_not_a_decoder", kind=(stated or [config.model_type])[0])


def _stated_dtype(config: Any, folder: Path) -> torch.dtype:
    """Return the config's dtype, or without one that of the first floating-point weight on disk."""
    from safetensors import safe_open

    with _readable(folder):
        stated = config.get_text_config(decoder=True).dtype or config.dtype
        if stated is not None:
            return stated
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as weights:
                for key in weights.keys():  # noqa: SIM118 - not a dict
                    found = weights.get_slice(key).get_dtype()
                    if found in _STORED:
                        return _STORED[found]
    return torch.float32


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    with _readable(folder, "models_config_refused"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _read_model(folder: Path, fields: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    with _readable(folder), _quiet():
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # else its error would name neither the weight nor the shapes
        )
    _check_complete(folder, fields, found)
    with _readable(folder):  # quantized weights may refuse to move
        return model.to(device)


def _read_sharded(folder: Path, fields: dict[str, Any], config: Any, dtype: torch.dtype, tp: int) -> Any:
    start_ranks(tp)
    with _readable(folder), together(tp), _quiet():  # tied weights are compared across the ranks
        model, found = read_shard(folder, config, dtype, tp)
    _check_complete(folder, fields, found)
    return model


def _check_complete(folder: Path, fields: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise for weights that transformers would fill with random numbers, and warn of weights that it would ignore."""
    if missing := sorted(found["missing_keys"]):
        raise ConfigError("models_weights_missing", path=str(folder), count=len(missing), first=missing[0])
    if mismatched := sorted(found["mismatched_keys"]):
        raise wrong_shapes(folder, fields, len(mismatched), *mismatched[0])
    if unused := sorted(found["unexpected_keys"]):
        values = {"path": str(folder), "count": len(unused), "first": unused[0]}
        warnings.warn(text("models.weights_unused", "en", **values), stacklevel=5)


def _read_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    with _readable(folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


@contextmanager
def _readable(folder: Path, code: str = "models_unreadable") -> Iterator[None]:
    """Turn a library's error about a damaged file into one that names the folder; likewise for a full GPU."""
    try:
        yield
    except MiniKVError:
        raise
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error):
            raise DoesNotFitError("models_no_memory", path=str(folder), reason=reason_of(error)) from error
        raise ConfigError(code, path=str(folder), reason=reason_of(error)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bar, which would appear in every notebook that loads a model.

    Its coloured tables of missing and surplus weights are silenced too: minikv raises errors or warns of these.
    """
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
