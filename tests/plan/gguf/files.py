"""Headers that the ``gguf`` package writes, for files without their tensors."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.plan.gguf.by_hand import SMALL

# Q6_K and Q4_K: rows are whole blocks.
TENSORS = {
    "token_embd.weight": ((512, 256), "Q6_K"),
    "blk.0.attn_q.weight": ((256, 256), "Q4_K"),
    "blk.0.attn_k.weight": ((128, 256), "Q4_K"),
    "blk.1.attn_q.weight": ((256, 256), "Q4_K"),
    "blk.1.attn_norm.weight": ((256,), "F32"),
    "output_norm.weight": ((256,), "F32"),
    "output.weight": ((512, 256), "Q8_0"),
}
SIZES = gguf.GGML_QUANT_SIZES


def tensor_bytes(name: str) -> int:
    """Bytes of one of ``TENSORS``, from the package's own table."""
    shape, kind = TENSORS[name]
    block, size = SIZES[gguf.GGMLQuantizationType[kind]]
    return int(np.prod(shape)) // block * size


def write(
    path: Path,
    architecture: str = "llama",
    keys: dict[str, Any] | None = None,
    tensors: dict[str, tuple[tuple[int, ...], str]] | None = None,
    general: dict[str, Any] | None = None,
) -> Path:
    """A header as the package writes it, for a file without its tensors. ``keys`` lack the architecture's prefix."""
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in (SMALL if keys is None else keys).items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in (general or {}).items():
        _add(writer, key, value)
    writer.add_token_list(["a", "b", "<unk>"])
    writer.add_token_scores([0.0, 0.5, 1.0])
    for name, (shape, kind) in (tensors or {}).items():
        number = gguf.GGMLQuantizationType[kind]
        size = int(np.prod(shape)) // SIZES[number][0] * SIZES[number][1]
        writer.add_tensor_info(name, _stored(shape, number), np.dtype(np.uint8), size, raw_dtype=number)
    writer.open_output_file()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def _stored(shape: tuple[int, ...], number: gguf.GGMLQuantizationType) -> tuple[int, ...]:
    """The shape in bytes, which the package wants of a quantized tensor."""
    block, size = SIZES[number]
    return (*shape[:-1], shape[-1] // block * size)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
