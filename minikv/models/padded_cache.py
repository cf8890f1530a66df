"""PaddedCache: the cache of one forward of several sequences that decode, on copies of their K and V. Lesson 11a.

    sequence a      .  .  0  1  2  3        the histories end at the same place, as in a batch that was padded
    sequence b      0  1  2  3  4  5        on the left; ``mask`` tells the model's own attention what is padding

For a model with states that attends in a way of its own, with a bias for each distance for one. Such a model asks its
cache for the place of the query, one number for all sequences. So only distances may count, which a trial finds out
by moving every place. The copies are counted in no reserve.
"""

import torch
from torch import Tensor

from minikv.models.batch import Batch
from minikv.models.hf_cache import GatheredCache, store_kv

FAR = 2**21  # places before all histories in a trial, more than a sequence has
# Tokens of the copies of one layer, padding included; more are computed in another forward
MOST_COPIED = 2**15


class PaddedCache(GatheredCache):
    """The cache of a forward [B, 1] of all sequences of ``batch``; ``before`` is added to every place."""

    def __init__(self, batch: Batch, before: int = 0):
        super().__init__(batch, 0, 0, 1, tuple(int(lengths.max()) for lengths in batch.lengths))
        self._each = [lengths.tolist() for lengths in batch.lengths]
        self.before = before

    def mask(self) -> Tensor:
        """[B, before + the longest]: 1 for the tokens of each sequence, 0 for the padding before them."""
        lengths = self.batch.lengths[0]
        places = torch.arange(self.before + self.lengths[0], device=lengths.device)
        return (places >= len(places) - lengths[:, None]).long()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store K [B, kv_heads, 1, k_dim] and V; return [B, kv_heads, n, k_dim] of the longest history, and V."""
        cache, group = self.batch.cache, self.batch.cache.kv_cache_group_of(layer_idx)
        store_kv(cache.layer(layer_idx), key_states, value_states, self.batch.slots[group])
        most, first = self.lengths[group], self._first(layer_idx)
        k, v = (
            new.new_zeros(*new.shape[:2], most - first, new.shape[3]) for new in (key_states, value_states)
        )
        for row, length in enumerate(self._each[group]):
            begin = max(0, first + length - most)  # what is in the window of the longest is in its own
            table = self.batch.block_tables[group][row]
            held = cache.gather(layer_idx, table, length, begin, dtype=k.dtype)
            for padded, history in zip((k, v), held, strict=True):
                padded[row, :, most - first - (length - begin) :] = history.transpose(0, 1)
        return k, v

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The place of the queries: that of the longest sequence's."""
        return self.before + self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many keys ``update`` returns, and the place of the first."""
        count, first = super().get_mask_sizes(query_length, layer_idx)
        return count, self.before + first
