"""The Triton kernels: the names and arguments of ``minikv.kernels.reference``, on a GPU or in Triton's interpreter."""

from minikv.kernels.gpu.operations import (
    copy_blocks,
    gather,
    latent_column_sums,
    latent_decode,
    latent_prefill,
    move_slots,
    paged_column_sums,
    paged_decode,
    paged_prefill,
    store_kv,
)

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
