"""How long the random tests run: some 15 seconds and 35,000 steps in CI, the same ones each time.

``MINIKV_LONG=1 pytest tests/blocks`` makes 50 times as many steps, new ones each time (about a quarter of an hour on
one core); MINIKV_LONG=8 makes 8 times as many.
"""

import os

from hypothesis import HealthCheck, settings

LONG = int(os.environ.get("MINIKV_LONG", "0"))
FACTOR = 50 if LONG == 1 else max(LONG, 1)


def profile(examples: int, steps: int = 50) -> settings:
    """``examples`` runs of ``steps`` steps: the same ones each time in CI, new ones in the long profile."""
    return settings(
        max_examples=examples * FACTOR,
        stateful_step_count=steps,
        derandomize=not LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
