"""Assumptions: figures that the simulated clock needs and that no config and no data sheet gives."""

import math
from dataclasses import dataclass, fields

from minikv.errors import ArgumentError
from minikv.i18n import text


@dataclass(frozen=True)
class Assumptions:
    """Our guesses, to be replaced by measured values; ``calibrate`` fits the first three to measured steps.

    - ``compute_efficiency``: the share of the data sheet's FLOP rate that a step reaches. 0.6: the best
      published prefill that we know reaches 0.76 (PaLM 540B, large batches, TPU v4: Pope et al. 2022, abstract).
    - ``bandwidth_efficiency``: the share of the data sheet's bandwidth. 0.8: no source; a copy alone reaches about
      0.9, and kernels leave gaps.
    - ``overhead_seconds``: launches, sampling and scheduling, the same for every step. 2 ms: no source; an engine that
      schedules before each launch spent more than half of its time on such work (Llama-3-8B on one H100: 33 % in the
      HTTP server and 29 % in scheduling, vLLM blog of 2024-09-05).
    - ``link_gb_s``: 10**9 bytes a second that an all-reduce moves out of each rank. 360: four fifths of NVLink 4's
      450 a direction (H100, H200); a PCIe 5 card has 63 on paper and 50 at four fifths.
    - ``host_gb_s``: 10**9 bytes a second between a GPU and host memory, each way. 50: four fifths of the 63 of
      PCIe 5 x16 (32 GT/s, 16 lanes, 128 of 130 bits).

    Raises ``ArgumentError`` unless efficiencies are above 0 and at most 1, rates positive, the overhead not negative.
    """

    compute_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    overhead_seconds: float = 0.002
    link_gb_s: float = 360.0
    host_gb_s: float = 50.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, most = getattr(self, field.name), 1 if field.name.endswith("efficiency") else math.inf
            number = isinstance(value, int | float) and not isinstance(value, bool)
            least_ok = number and (value >= 0 if field.name == "overhead_seconds" else value > 0)
            if not least_ok or not value <= most or value == math.inf:
                raise ArgumentError("out_of_range", what=field.name, value=value, low=0, high=most)

    def explain(self, lang: str = "en") -> list[str]:
        """One sentence an assumption, with number and unit, in the order above."""
        return [text(f"fleet.{field.name}", lang, value=getattr(self, field.name)) for field in fields(self)]


IDEAL = Assumptions(1.0, 1.0, 0.0)
"""The roofline itself: nothing is lost, and nothing is added. No GPU reaches it."""
