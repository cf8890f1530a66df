"""Sequences, blocks, a scheduler, a forward: the engine without any feature. See ``extension.py``."""
