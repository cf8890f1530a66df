"""Bytes in, words out. Every other file keeps integers of bytes; only printed text has GiB.

MiB is 2**20 bytes and GiB is 2**30. MB (10**6) and GB (10**9) are other units, which vendors use for the
label on the box and minikv for bandwidth alone. Mixing the two is an error of 7.4 % at the GB.
"""

KIB, MIB, GIB = 2**10, 2**20, 2**30


def gib(num_bytes: float) -> float:
    """``num_bytes`` in GiB (2**30 bytes)."""
    return num_bytes / GIB


def format_bytes(num_bytes: int | float) -> str:
    """A short text in the largest binary unit that gives at least 1: ``"34.31 KiB"``, ``"4.19 GiB"``.

    Whole numbers of bytes below 1 KiB stay whole: ``"576 B"``.
    """
    sign = "-" if num_bytes < 0 else ""
    size = abs(num_bytes)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:,.2f} {name}"
    return f"{sign}{size:,.0f} B"


def exact_bytes(num_bytes: int) -> str:
    """The short text and the exact count side by side: ``"4.19 GiB (4,499,202,048 B)"``."""
    if abs(num_bytes) < KIB:
        return f"{num_bytes:,} B"
    return f"{format_bytes(num_bytes)} ({num_bytes:,} B)"


def parse_bytes(text: str) -> int:
    """``"80GiB"``, ``"141 GB"``, ``"512MiB"`` or a plain number of bytes, as an int of bytes.

    Raises ``ValueError`` where the text is none of these; the caller knows what the number was for.
    """
    words = text.strip().replace(",", "").replace("_", "")
    factors = {
        "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": 2**40,
        "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "B": 1, "": 1,
    }  # fmt: skip
    number = words.rstrip("KMGTIBkmgtib ")
    unit = words[len(number) :].strip().upper()
    value = float(number) * factors[unit] if unit in factors else float("nan")
    if not (0 <= value < 2**62):
        raise ValueError(text)
    return int(value)
