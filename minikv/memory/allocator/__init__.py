"""A model of PyTorch's CUDA caching allocator, byte by byte, with its traces and snapshots."""
