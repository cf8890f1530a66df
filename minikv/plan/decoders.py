"""Which of transformers' causal decoders run, which are planned alone, and which are refused and why.

``data/decoders.json`` has what became of a small random model of each, held against its own ``generate()`` in the
release of transformers that it names; ``python -m tools.decoders`` measures it.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from minikv.i18n import text

OUTCOMES = ("runs", "measured", "planned", "refused", "not built")


@dataclass(frozen=True)
class DecoderOutcome:
    """One ``model_type`` of transformers.

    ``outcome``: "runs" (its cache is known), "measured" (it runs, its cache is found out when it is opened), "planned"
    (its cache is known, and the engine does not run it), "refused", or "not built": no small model of it could be made.
    ``reads``: "paged" in place, "gather" as copies, "" where it does not run. ``layers``: the kinds of its small
    model's layers. ``why``: the code of the refusal, with ``what`` it names.
    """

    model_type: str
    outcome: str
    reads: str = ""
    layers: str = ""
    why: str = ""
    what: str = ""

    def reason(self, lang: str = "en") -> str:
        """Return why it does not run, in words; "" if it does."""
        return text(f"plan.refused_{self.why}", lang, what=self.what) if self.why else ""


@lru_cache(maxsize=1)
def decoder_outcomes() -> tuple[DecoderOutcome, ...]:
    """Every decoder that was looked at, by outcome and name."""
    found = [DecoderOutcome(name, **fields) for name, fields in _table()["decoders"].items()]
    return tuple(sorted(found, key=lambda each: (OUTCOMES.index(each.outcome), each.model_type)))


def transformers_release() -> str:
    """The release of transformers that has these decoders."""
    return _table()["transformers"]


@lru_cache(maxsize=1)
def _table() -> dict:
    source = files("minikv.plan") / "data" / "decoders.json"
    return json.loads(source.read_text(encoding="utf-8"))
