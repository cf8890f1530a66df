"""Eviction under a model's own ``generate()``: transformers' cache with layers that evict."""
