"""GGUF, llama.cpp's file format: a header read, its layers, and the memory that llama.cpp takes for them."""
