"""The operations on a CPU with a C compiler: float32 tokens stored and attended to in C, all else in plain torch."""

from minikv.kernels.attention import latent_decode, latent_prefill
from minikv.kernels.attention_sums import latent_column_sums, paged_column_sums
from minikv.kernels.cpu.decode import paged_decode, paged_prefill
from minikv.kernels.cpu.store import store_kv
from minikv.kernels.slots import copy_blocks, gather, move_slots

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
