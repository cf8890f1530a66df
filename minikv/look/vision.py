"""What a colour is to an eye: its contrast with another, and how far apart two are where a kind of cone is missing."""

from collections.abc import Sequence

Rgb = tuple[float, float, float]  # linear light, 0 to 1

# Machado, Oliveira and Fernandes 2009, severity 1.0, for linear light.
KINDS_OF_SIGHT: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# Ottosson 2020: linear light to the cones' answer, and its cube root to lightness, green-red, blue-yellow.
_TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2.2 defines it, from 1 to 21. Colours are "#rrggbb".

    >>> round(contrast("#ffffff", "#000000"), 1)
    21.0
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def distance(one: str, other: str, sight: str = "normal") -> float:
    """Return how far apart two colours are in Oklab to this kind of sight; black and white are 1 apart."""
    pair = zip(_oklab(seen(one, sight)), _oklab(seen(other, sight)), strict=True)
    return sum((a - b) ** 2 for a, b in pair) ** 0.5


def seen(colour: str, sight: str) -> str:
    """Return the colour that ``colour`` is to this kind of sight, one of ``KINDS_OF_SIGHT``."""
    light = _times(KINDS_OF_SIGHT[sight], _linear(colour))
    return "#" + "".join(f"{round(255 * _encoded(min(1.0, max(0.0, part)))):02x}" for part in light)


def _luminance(colour: str) -> float:
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _oklab(colour: str) -> Rgb:
    red, green, blue = _times(_TO_CONES, _linear(colour))
    return _times(_TO_OKLAB, (red ** (1 / 3), green ** (1 / 3), blue ** (1 / 3)))


def _times(matrix: Sequence[Rgb], vector: Rgb) -> Rgb:
    one, two, three = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return one, two, three


def _linear(colour: str) -> Rgb:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return _decoded(red), _decoded(green), _decoded(blue)


def _decoded(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _encoded(part: float) -> float:
    return 12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055
