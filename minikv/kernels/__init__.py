"""The operations on a cache: tensors in, tensors out.

``reference`` has them in plain torch: the specification, and what a CPU runs.
"""

from minikv.kernels.reference import copy_blocks, gather, move_slots, store_kv

__all__ = ["copy_blocks", "gather", "move_slots", "store_kv"]
