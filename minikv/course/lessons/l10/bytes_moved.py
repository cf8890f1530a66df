"""The bytes that each step of lesson 10 moves for one layer of one decode step, and the least possible number."""

from dataclasses import dataclass

from minikv.kernels.traffic import Traffic, decode_traffic

STEPS = ("gathered", "per_head", "packed", "split")


@dataclass(frozen=True)
class Shape:
    """One layer's decode: ``lengths`` and ``block_size`` in tokens, heads, ``dim`` elements of ``itemsize`` bytes."""

    lengths: tuple[int, ...]
    query_heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    block_size: int = 16
    itemsize: int = 2

    @property
    def group(self) -> int:
        return self.query_heads // self.kv_heads

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of K and V of all tokens, counted once."""
        return 2 * sum(self.lengths) * self.kv_heads * self.dim * self.itemsize

    @property
    def table_bytes(self) -> int:
        """Return the bytes of the block table entries for those tokens, 4 each, counted once."""
        return 4 * sum(-(-length // self.block_size) for length in self.lengths)

    @property
    def edge_bytes(self) -> int:
        """Return the bytes of the query and the result."""
        return 2 * len(self.lengths) * self.query_heads * self.dim * self.itemsize


@dataclass(frozen=True)
class Moved:
    """Bytes read and written: K and V, block tables, query and result, and intermediate results."""

    kv: int
    table: int
    edge: int
    aside: int = 0

    @property
    def total(self) -> int:
        return self.kv + self.table + self.edge + self.aside


def floor(shape: Shape) -> Traffic:
    """Return the bytes that any decode must move, each once, as ``minikv.kernels.traffic`` counts them."""
    return decode_traffic(
        shape.lengths,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        dim=shape.dim,
        itemsize=shape.itemsize,
        block_size=shape.block_size,
    )


def moved(step: str, shape: Shape, splits: int = 1) -> Moved:
    """Return the bytes that ``step`` (of ``STEPS``) requests. Reads that a cache may answer are counted too.

    "gathered" copies K and V out of the blocks and attends to the copy. "per_head" is a program a query head, "packed"
    a program a KV head. "split" cuts each sequence in ``splits`` and stores a float32 result and its lse for every
    query head and split.
    """
    heads, group = shape.kv_heads, shape.group
    if step == "gathered":
        return Moved(shape.kv_bytes, shape.table_bytes, shape.edge_bytes, 2 * shape.kv_bytes)
    if step == "per_head":
        return Moved(group * shape.kv_bytes, group * heads * shape.table_bytes, shape.edge_bytes)
    aside = 0
    if step == "split" and splits > 1:
        aside = 2 * 4 * splits * len(shape.lengths) * shape.query_heads * (shape.dim + 1)
    edge = shape.edge_bytes
    if step == "split" and splits > 1:
        edge += (splits - 1) * edge // 2  # every split reads the query again
    return Moved(shape.kv_bytes, heads * shape.table_bytes, edge, aside)
