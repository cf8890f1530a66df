"""LinearPages: a linear cache behind block tables, so that one scheduler and one adapter serve both caches. Lesson 06.

    row        0                         1                         2
    block      0                         1                         2
    slots      0 ... max_seq - 1         max_seq ... 2 max_seq - 1         row * max_seq + position

A row is one block of ``max_seq`` tokens, so a sequence's table is the number of its row. It lacks the advantages of
paging: a sequence of 10 tokens takes ``max_seq``, no prefix shorter than a row is shared, and a fork copies a row.
"""

from collections.abc import Iterable

from torch import Tensor

from minikv.cache.codec import find_codec
from minikv.cache.linear import LinearKVCache
from minikv.cache.linear_layout import layer_sources
from minikv.cache.pages import LayerCache, Pages
from minikv.errors import ArgumentError
from minikv.plan.pool import kv_cache_groups


class LinearPages(Pages):
    """``linear`` as blocks: each group has ``batch`` of them, of ``max_seq`` tokens. Nothing is copied.

    A layer's K [batch, kv_heads, max_seq, k_dim] is returned with heads and tokens exchanged, as a strided view.
    Layers with a window store every token. They are still groups of their own, because a group says what a query sees.
    ``codec`` and ``nbytes`` are those of ``linear``.

    The block manager knows which sequence owns a row and how many tokens it holds; ``linear.lengths`` do not change.
    A sequence that passes ``max_seq`` continues in a second row, like any other in a second block, unless the scheduler
    ends it before. Raises ``ArgumentError`` for anything but a ``LinearKVCache``.
    """

    def __init__(self, linear: LinearKVCache):
        if not isinstance(linear, LinearKVCache):
            raise ArgumentError("linear_pages", kind=type(linear).__name__)
        self.linear, self.spec, self.codec = linear, linear.spec, find_codec(linear.spec.kv_dtype)
        self.device, self.nbytes, self.block_size = linear.device, linear.nbytes, linear.max_seq
        self.kv_cache_groups = kv_cache_groups(linear.spec)
        self.num_blocks = (linear.batch,) * len(self.kv_cache_groups)
        place = {
            (group.layer.window, group.layer.token_bytes): index
            for index, group in enumerate(self.kv_cache_groups)
        }
        self._groups = {  # of each layer that has K and V, its own or another's
            number: place[self.spec.layers[source].window, self.spec.layers[source].token_bytes]
            for number, source in enumerate(layer_sources(self.spec))
            if source is not None
        }

    def layer(self, layer: int) -> LayerCache:
        """Return the views of one layer; a shared layer's are those of the layer that it reads."""
        k, v = self.linear.layer(layer)
        return LayerCache(k.transpose(1, 2), v.transpose(1, 2), None, None, self._groups[layer])

    def close(self) -> None:
        """Free the memory of the linear cache, as its own ``close`` does."""
        self.linear.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` has freed the memory."""
        return self.linear.closed

    def _tensors(self, group: int) -> Iterable[tuple[Tensor, int]]:
        self.check_kv_cache_group(group)
        own = [number for number, layer in enumerate(self.spec.layers) if layer.token_bytes]
        return [
            (part, 0) for number in own if self._groups[number] == group for part in self.linear.layer(number)
        ]
