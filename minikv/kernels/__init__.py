"""The operations on a cache: tensors in, tensors out. The room of lesson 10.

``storage`` writes and moves tokens, ``paged_attention`` and ``latent_attention`` read them, ``column_sums`` says how
much each was looked at. Each checks what it is given and hands it to one of two implementations of the same names:
``reference``, plain torch, the specification and what a CPU runs; and ``gpu``, the Triton kernels. ``dispatch``
chooses. ``traffic`` says what each must move at least.
"""

from minikv.kernels.attention import Attention
from minikv.kernels.column_sums import latent_column_sums, paged_column_sums
from minikv.kernels.latent_attention import latent_decode, latent_prefill
from minikv.kernels.online_softmax import OnlineSoftmax, merge_splits
from minikv.kernels.paged_attention import paged_decode, paged_prefill
from minikv.kernels.storage import copy_blocks, gather, move_slots, store_kv
from minikv.kernels.traffic import (
    Traffic,
    decode_traffic,
    gather_traffic,
    latent_decode_traffic,
    latent_prefill_traffic,
    move_traffic,
    prefill_traffic,
    store_traffic,
)

__all__ = [
    "Attention",
    "OnlineSoftmax",
    "Traffic",
    "copy_blocks",
    "decode_traffic",
    "gather",
    "gather_traffic",
    "latent_column_sums",
    "latent_decode",
    "latent_decode_traffic",
    "latent_prefill",
    "latent_prefill_traffic",
    "merge_splits",
    "move_slots",
    "move_traffic",
    "paged_column_sums",
    "paged_decode",
    "paged_prefill",
    "prefill_traffic",
    "store_kv",
    "store_traffic",
]
