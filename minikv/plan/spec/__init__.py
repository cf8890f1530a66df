"""A model's config, and what each of its layers caches: ``CacheSpec``."""
