"""The storage of K and V. Lessons 06, 08, 09, 12 and 13."""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.cache.allocation import AllocationReport
    from minikv.cache.allocator import allocate_kv_cache, warmup
    from minikv.cache.binding import bind
    from minikv.cache.codec import CODECS, Codec, find_codec
    from minikv.cache.disk import CorruptFileError, load_blocks, save_blocks
    from minikv.cache.linear import LinearKVCache, LinearUse, RowFullError
    from minikv.cache.linear_pages import LinearPages
    from minikv.cache.offload import HostPool, Transfer
    from minikv.cache.paged import PagedKVCache
    from minikv.cache.pages import LayerCache, Pages
    from minikv.cache.states import StatePages, StateShape, StateSlots

_HOME = {
    "AllocationReport": "allocation",
    "CODECS": "codec",
    "Codec": "codec",
    "CorruptFileError": "disk",
    "HostPool": "offload",
    "LayerCache": "pages",
    "LinearKVCache": "linear",
    "LinearPages": "linear_pages",
    "LinearUse": "linear",
    "PagedKVCache": "paged",
    "Pages": "pages",
    "RowFullError": "linear",
    "StatePages": "states",
    "StateShape": "states",
    "StateSlots": "states",
    "Transfer": "offload",
    "allocate_kv_cache": "allocator",
    "bind": "binding",
    "find_codec": "codec",
    "load_blocks": "disk",
    "save_blocks": "disk",
    "warmup": "allocator",
}

__all__ = [
    "CODECS",
    "AllocationReport",
    "Codec",
    "CorruptFileError",
    "HostPool",
    "LayerCache",
    "LinearKVCache",
    "LinearPages",
    "LinearUse",
    "PagedKVCache",
    "Pages",
    "RowFullError",
    "StatePages",
    "StateShape",
    "StateSlots",
    "Transfer",
    "allocate_kv_cache",
    "bind",
    "find_codec",
    "load_blocks",
    "save_blocks",
    "warmup",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
