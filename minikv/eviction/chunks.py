"""A model's prompts in chunks while eviction is installed; what is saved meanwhile is the model's own. Lesson 14.

``generate`` reads the size of a chunk from the model's generation config, and ``save_pretrained`` writes that config
to a file. So the installed value lies in a config of another class, which does not write it.
"""

import copy
from typing import Any

from transformers import GenerationConfig

_OWN = "_minikv_own_chunk"  # on an installed config: the size that was there before


class ChunkedConfig(GenerationConfig):
    """A generation config with an installed ``prefill_chunk_size``."""

    def to_dict(self) -> dict[str, Any]:
        """Without what is ours to remember."""
        return {name: value for name, value in super().to_dict().items() if name != _OWN}

    def save_pretrained(self, *args: Any, **options: Any) -> None:
        """Write the config as it was before the install."""
        own = copy.deepcopy(self)
        take_back_chunk(own)
        own.save_pretrained(*args, **options)


def install_chunk(config: Any, size: int) -> None:
    """Let ``config``, a model's generation config, cut prompts into chunks of ``size`` tokens.

    One of a class of its own keeps that class, and would be saved with the size.
    """
    setattr(config, _OWN, config.prefill_chunk_size)
    if type(config) is GenerationConfig:
        config.__class__ = ChunkedConfig
    config.prefill_chunk_size = size


def take_back_chunk(config: Any) -> None:
    """Give ``config`` back as it was before ``install_chunk``; one that was never installed stays as it is."""
    if _OWN not in vars(config):
        return
    config.prefill_chunk_size = getattr(config, _OWN)
    delattr(config, _OWN)
    if type(config) is ChunkedConfig:
        config.__class__ = GenerationConfig
