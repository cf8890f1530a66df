"""The plain-torch implementation of every operation: the specification, which also runs on a CPU.

``slots`` moves tokens, ``attention`` reads them, ``attention_sums`` sums the attention that each gets. The Triton
kernels of ``minikv.kernels.gpu`` have the same names and arguments, and are tested against these.
"""

from minikv.kernels.attention import latent_decode, latent_prefill, paged_decode, paged_prefill
from minikv.kernels.attention_sums import latent_column_sums, paged_column_sums
from minikv.kernels.slots import copy_blocks, gather, move_slots, store_kv

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
