"""LayerRules: the settings of one layer, and Record: its counts. Plain data. Lesson 14."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import Scope, When
from minikv.eviction.policies.policy import Needs, Policy


@dataclass(frozen=True)
class LayerRules:
    """The rules of eviction in the layer ``layer`` of ``num_layers``.

    ``scope``: see ``select``. ``when`` "prefill": only after forwards of more than one token. ``latent``: the layer
    caches MLA latents. ``rotary``: turns the keys with positions "reindexed", else None. ``turning``: turns the queries
    for a policy that needs an echo, else None.
    """

    policy: Policy
    budget: Budget
    scope: Scope
    when: When = "always"
    layer: int = 0
    num_layers: int = 1
    latent: bool = False
    rotary: Rotary | None = None
    turning: Rotary | None = None

    def __deepcopy__(self, memo: dict) -> "LayerRules":
        """Itself: a copied cache has the same rules, and copies no module of the model."""
        return self

    @property
    def in_order(self) -> bool:
        """Whether the resident tokens have to lie in the order of their positions, so that no slot is reused."""
        return Needs.ORDER in self.policy.needs or self.rotary is not None

    @property
    def keeps_state(self) -> bool:
        """Whether the layer keeps a state: only a policy that observes needs one."""
        return bool(self.policy.needs & (Needs.PROBS | Needs.ECHO))

    def needs(self, what: Needs) -> bool:
        """Whether the policy needs ``what``."""
        return what in self.policy.needs


@dataclass
class Record:
    """The counts of a layer since its text began, for ``eviction_report``. It outlives the cache and holds no K or V.

    ``forwards``; ``observed``: forwards that changed the state; ``evictions``; ``dropped``: tokens of a row and head;
    ``peak_resident``: the most tokens between two forwards. ``single``: evictions of a decode step; ``at_once``: the
    sum of their shares of tokens that had just left the recent window; ``not_numbers``: those with a NaN among the
    scores. ``first_gone``: whether a text's first token is no longer resident. The last three are tensors of no
    dimension, so that no step waits for them.
    """

    forwards: int = 0
    observed: int = 0
    evictions: int = 0
    dropped: int = 0
    peak_resident: int = 0
    single: int = 0
    at_once: Tensor | float = 0.0
    not_numbers: Tensor | int = 0
    first_gone: Tensor | bool = False

    def dropped_few(self, ages: Tensor, young: int, score: Tensor) -> None:
        """Count an eviction of a decode step. ``ages`` of the dropped tokens; below ``young`` they left the window."""
        self.at_once = self.at_once + (ages < young).float().mean()
        self.not_numbers = self.not_numbers + score.amax().isnan()  # the largest is NaN if any is
        self.single += 1

    def clear(self) -> None:
        """Set all counts to zero for a new text."""
        vars(self).update(vars(Record()))

    def values(self) -> dict[str, Any]:
        """Return the counts as plain numbers."""
        plain = {"not_numbers": int(self.not_numbers), "first_gone": bool(self.first_gone)}
        return {**vars(self), "at_once": float(self.at_once), **plain}
