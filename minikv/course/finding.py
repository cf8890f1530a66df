"""One line of ``minikv doctor``."""

from dataclasses import asdict, dataclass
from typing import Any

from minikv.i18n import text


@dataclass(frozen=True)
class Finding:
    """``state``: "ok", "note" (something will be slower or absent) or "missing" (something will fail).

    ``key`` names the sentence in ``messages/machine.toml``, ``values`` fill it in.
    """

    topic: str
    state: str
    key: str
    values: dict[str, Any]

    def text(self, lang: str) -> str:
        return text(f"machine.{self.key}", lang, **self.values)

    def line(self, lang: str) -> str:
        mark = {"ok": "ok  ", "note": "note", "missing": "MISS"}[self.state]
        return f"[{mark}] {self.text(lang)}"

    def as_dict(self, lang: str) -> dict[str, Any]:
        return asdict(self) | {"text": self.text(lang)}
