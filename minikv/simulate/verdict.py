"""What the replicas of a simulation wait for: where more, or faster, would help."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minikv.simulate.outcome import Answers


def bottleneck(answers: "Answers") -> str:
    """Whatever has the largest share of the busy seconds.

    - ``blocks``: somebody waited for nothing but KV memory. That goes on while something is computed, so that it can
      be the largest share beside another one.
    - ``compute``: FLOPs, mostly of prefills; ``bandwidth``: weights and K and V that are read, mostly for decodes.
    - ``link``: all-reduces; ``overhead``: of steps, whatever is in them; ``host``: transfers to and from host memory.
    """
    shares = {"blocks": answers.blocked} | dict(answers.limits)
    return max(shares, key=lambda name: shares[name])
