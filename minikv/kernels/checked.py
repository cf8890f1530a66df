"""The public functions under one name: what ``reference`` and ``gpu`` compute, with the arguments checked first.

``minikv.kernels`` has the same functions, loaded on first use. In checked mode
``dispatch.operations`` gives this module.
"""

from minikv.kernels.column_sums import latent_column_sums, paged_column_sums
from minikv.kernels.latent_attention import latent_decode, latent_prefill
from minikv.kernels.paged_attention import paged_decode, paged_prefill
from minikv.kernels.storage import copy_blocks, gather, move_slots, store_kv

__all__ = [
    "copy_blocks",
    "gather",
    "latent_column_sums",
    "latent_decode",
    "latent_prefill",
    "move_slots",
    "paged_column_sums",
    "paged_decode",
    "paged_prefill",
    "store_kv",
]
