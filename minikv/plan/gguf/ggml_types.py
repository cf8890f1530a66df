"""ggml's ways to store numbers: elements a block, and the bytes of a block, scales included.

The numbers and names are those of ``enum ggml_type`` in llama.cpp's ``ggml/include/ggml.h``, the bytes those of the
``block_*`` structs in ``ggml/src/ggml-common.h`` (q8_0: 32 elements of a byte and one float16 scale, 34 bytes).
``tests/plan/gguf`` compares them with ``GGML_QUANT_SIZES`` of the ``gguf`` package.
"""

from dataclasses import dataclass

from minikv.errors import ArgumentError


@dataclass(frozen=True)
class GGMLType:
    """A row of ``n`` elements takes ``n // block_elements * block_bytes`` bytes."""

    number: int
    name: str
    block_elements: int
    block_bytes: int

    def divides(self, elements: int) -> bool:
        """Whether a row of that many elements is made of whole blocks."""
        return elements % self.block_elements == 0

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of whole blocks."""
        return elements // self.block_elements * self.block_bytes


# Numbers that are missing were withdrawn: 4, 5, 31 to 33 and 36 to 38.
GGML_TYPES = {
    number: GGMLType(number, name, elements, num_bytes)
    for number, name, elements, num_bytes in (
        (0, "f32", 1, 4),
        (1, "f16", 1, 2),
        (2, "q4_0", 32, 18),
        (3, "q4_1", 32, 20),
        (6, "q5_0", 32, 22),
        (7, "q5_1", 32, 24),
        (8, "q8_0", 32, 34),
        (9, "q8_1", 32, 40),
        (10, "q2_K", 256, 84),
        (11, "q3_K", 256, 110),
        (12, "q4_K", 256, 144),
        (13, "q5_K", 256, 176),
        (14, "q6_K", 256, 210),
        (15, "q8_K", 256, 292),
        (16, "iq2_xxs", 256, 66),
        (17, "iq2_xs", 256, 74),
        (18, "iq3_xxs", 256, 98),
        (19, "iq1_s", 256, 50),
        (20, "iq4_nl", 32, 18),
        (21, "iq3_s", 256, 110),
        (22, "iq2_s", 256, 82),
        (23, "iq4_xs", 256, 136),
        (24, "i8", 1, 1),
        (25, "i16", 1, 2),
        (26, "i32", 1, 4),
        (27, "i64", 1, 8),
        (28, "f64", 1, 8),
        (29, "iq1_m", 256, 56),
        (30, "bf16", 1, 2),
        (34, "tq1_0", 256, 54),
        (35, "tq2_0", 256, 66),
        (39, "mxfp4", 32, 17),
        (40, "nvfp4", 64, 36),
        (41, "q1_0", 128, 18),
        (42, "q2_0", 64, 18),
    )
}

# What --cache-type-k and --cache-type-v take: kv_cache_types in llama.cpp's common/arg.cpp.
CACHE_TYPES = {
    kind.name: kind
    for kind in GGML_TYPES.values()
    if kind.name in "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1".split()
}

# minikv's own names, and those of config.json and torch.
_SPELLED = {
    "fp32": "f32",
    "float32": "f32",
    "fp16": "f16",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
}


def find_cache_type(name: str) -> GGMLType:
    """The type that llama.cpp's cache has under this name ("q8_0", "f16"), or under minikv's ("fp16").

    Raises ``ArgumentError`` with the names that exist.
    """
    spelled = str(name).lower().removeprefix("torch.")
    found = CACHE_TYPES.get(_SPELLED.get(spelled, spelled))
    if found is None:
        known = ", ".join(CACHE_TYPES)
        raise ArgumentError("unknown_choice", what="kv_dtype of a GGUF file", value=name, known=known)
    return found
