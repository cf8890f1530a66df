"""From a model's name to a folder with its files: in the wheel, on this disk, or from the Hugging Face hub."""

import json
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from textwrap import shorten
from typing import Any

from minikv.errors import ArgumentError, ConfigError, UnknownNameError
from minikv.models.weight_headers import check_counts
from minikv.plan.spec.config import read_config

TINY = ("tiny-gqa", "tiny-mla")
"""The trained models that ship with minikv; see ``minikv.models.recall`` for their task."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
HUB_SECONDS = 10  # the hub's own client has no time limit for the first answer

# transformers' own implementations. Others are packages, or kernels that it would download from the hub and run.
IMPLEMENTATIONS = {
    "_attn_implementation": ("eager", "sdpa", "flex_attention"),
    "_experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}

_DATA = Path(__file__).parent / "data"
# No pickles, and no subfolders: those hold the same weights again for other programs.
_WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*"]


def find_folder(name: str | os.PathLike) -> Path:
    """Return the folder of that model: one of ``TINY``, an existing folder, or a hub id, downloaded if necessary.

    A ``Path`` is a folder and is never looked for on the hub.

    Raises ``ArgumentError`` for an invalid name, ``ConfigError`` for a file. Raises ``UnknownNameError`` for a folder
    that does not exist, and if the hub does not have the model, refuses it, or does not answer within HUB_SECONDS and
    the hub's cache does not have it.
    """
    if not isinstance(name, str | os.PathLike) or not isinstance(os.fspath(name), str):
        raise ArgumentError("models_name", kind=type(name).__name__)
    if name in TINY:
        return _DATA / str(name)
    path = Path(name)
    try:
        path = path.expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError):  # no file can have the name, or no user has the home
        is_folder = is_file = False
    if is_folder:
        return path
    if is_file:
        raise ConfigError("models_file", path=str(path), folder=str(path.parent))
    if isinstance(name, str) and _is_hub_id(name):
        return _from_hub(name)
    raise UnknownNameError("models_no_folder", path=repr(os.fspath(name)), tiny=", ".join(TINY))


def check_folder(folder: Path) -> dict[str, Any]:
    """Return the fields of the folder's config.json, after making sure that reading its model runs no code of its own.

    Raises ``ConfigError``: no config.json, or one that is no JSON object, without ``model_type`` or with a number that
    no model has; weights that are pickles, outside of the folder, or missing; an architecture that only code in the
    folder knows (``auto_map``), or that transformers does not know.
    """
    fields = read_config(folder).whole
    check_counts(folder, fields)
    if any(folder.glob("*.safetensors")):
        pickles = _pickles_in_index(folder)
    else:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if not pickles:
            raise ConfigError("models_no_weights", path=str(folder))
    if pickles:
        raise ConfigError("models_pickle", path=str(folder), found=", ".join(pickles[:3]))
    from transformers import CONFIG_MAPPING, __version__

    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        code = "models_remote_code" if "auto_map" in fields else "models_unknown_type"
        raise ConfigError(code, path=str(folder), model_type=model_type, version=__version__)
    return fields


def check_attention(folder: Path, config: Any) -> None:
    """Raise ``ConfigError`` if a config or a part of it asks for another implementation than transformers' own.

    The name of a repository, or of a package that is absent, would make transformers download kernels and run them.
    """
    for field, known in IMPLEMENTATIONS.items():
        asked = getattr(config, field, None)
        if asked is not None and asked not in known:
            values = {"field": field, "value": asked, "known": ", ".join(known)}
            raise ConfigError("models_implementation", path=str(folder), **values)
    for name in getattr(config, "sub_configs", ()):
        check_attention(folder, getattr(config, name, None))


def _pickles_in_index(folder: Path) -> list[str]:
    """Return the files of other formats in a safetensors index: transformers reads those as pickles.

    Raises ``ConfigError`` for files outside of the folder. A link in it may point anywhere, as in the hub's cache.
    """
    found: set[str] = set()
    for index in folder.glob("*.safetensors.index.json"):
        try:
            named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # damaged: transformers will raise an error about it
        names = {str(name) for name in named}
        for name in sorted(names):
            if (
                PurePosixPath(name).is_absolute()
                or PureWindowsPath(name).drive
                or ".." in re.split(r"[/\\]", name)
            ):
                raise ConfigError("models_outside", path=str(folder), index=index.name, name=name)
        found |= {name for name in names if not name.endswith(".safetensors")}
    return sorted(found)


def _is_hub_id(name: str) -> bool:
    """Return whether the hub could have a model of that name, "model" or "org/model", without a request."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _from_hub(name: str) -> Path:
    """Return the model's folder in the hub's cache, brought up to date if the hub answers."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        files = HfApi().model_info(name, timeout=HUB_SECONDS).siblings or []
        _check_listing(name, [Path(file.rfilename) for file in files])
        folder = snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
    except ConfigError:
        raise
    except GatedRepoError as error:
        raise UnknownNameError("models_hub_gated", name=name) from error
    except RepositoryNotFoundError as error:
        raise UnknownNameError("models_hub_unknown", name=name, tiny=", ".join(TINY)) from error
    except Exception as error:  # of any HTTP library that this version of the hub's client uses
        return _from_cache(name, error)
    return Path(folder)


def _check_listing(name: str, files: list[Path]) -> None:
    """Raise for pickles before anything is downloaded."""
    found = [str(file) for file in files if file.suffix in PICKLES]
    if found and not any(file.suffix == ".safetensors" and len(file.parts) == 1 for file in files):
        raise ConfigError("models_pickle", path=name, found=", ".join(found[:3]))


def _from_cache(name: str, reason: Exception) -> Path:
    """Return the folder of an earlier download, since the hub gave ``reason`` instead of an answer."""
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(
            snapshot_download(name, local_files_only=True, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
        )
    except Exception:
        raise UnknownNameError(
            "models_hub_unreachable",
            name=name,
            home=str(constants.HF_HOME),
            reason=reason_of(reason),
            tiny=", ".join(TINY),
        ) from reason


def reason_of(error: Exception) -> str:
    """Return a library's message on one line, short enough for a sentence of ours."""
    return shorten(f"{type(error).__name__}: {error}", 300, placeholder=" …").rstrip(".:")
