"""The operations on a cache: tensors in, tensors out. Lesson 10.

``storage`` writes and moves tokens, ``paged_attention`` and ``latent_attention`` read them, and ``column_sums`` sums
the attention that each token gets. Each function checks its arguments and calls one of three implementations with the
same names: ``reference``, plain torch, which is the specification; ``cpu``, which is the same with attention in C where
there is a C compiler; and ``gpu``, the Triton kernels.
``dispatch`` chooses between them. ``traffic`` counts the bytes that each operation must move at least.
"""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.kernels.attention import Attention
    from minikv.kernels.column_sums import latent_column_sums, paged_column_sums
    from minikv.kernels.latent_attention import latent_decode, latent_prefill
    from minikv.kernels.online_softmax import OnlineSoftmax, merge_splits
    from minikv.kernels.paged_attention import paged_decode, paged_prefill
    from minikv.kernels.paged_kv import PagedKV
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

_HOME = {
    "Attention": "attention",
    "OnlineSoftmax": "online_softmax",
    "PagedKV": "paged_kv",
    "Traffic": "traffic",
    "copy_blocks": "storage",
    "decode_traffic": "traffic",
    "gather": "storage",
    "gather_traffic": "traffic",
    "latent_column_sums": "column_sums",
    "latent_decode": "latent_attention",
    "latent_decode_traffic": "traffic",
    "latent_prefill": "latent_attention",
    "latent_prefill_traffic": "traffic",
    "merge_splits": "online_softmax",
    "move_slots": "storage",
    "move_traffic": "traffic",
    "paged_column_sums": "column_sums",
    "paged_decode": "paged_attention",
    "paged_prefill": "paged_attention",
    "prefill_traffic": "traffic",
    "store_kv": "storage",
    "store_traffic": "traffic",
}

__all__ = [
    "Attention",
    "OnlineSoftmax",
    "PagedKV",
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

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
