"""The resource that limits the replicas of a simulation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minikv.simulate.outcome import Answers


def bottleneck(answers: "Answers") -> str:
    """The name with the largest share of the busy seconds.

    - ``blocks``: a request waited for nothing but KV memory. Other requests are computed meanwhile, so this share
      overlaps with the others.
    - ``compute``: FLOPs, mostly of prefills; ``bandwidth``: weights, K and V that are read, mostly for decodes.
    - ``link``: all-reduces; ``overhead``: the fixed part of each step; ``host``: transfers to and from host memory.
    """
    shares = {"blocks": answers.blocked} | dict(answers.limits)
    return max(shares, key=lambda name: shares[name])
