"""Perplexity of a text by position: read in small chunks, and evicted after each. Lesson 14.

A policy's budget is its share of the whole text, so up to there it equals the full cache, and the curve shows what is
lost from then on. Perplexity can fall while recall is halved (lesson 14), so read it beside recall.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import exp
from typing import Any, Literal

import numpy as np
import torch

from minikv.errors import ArgumentError
from minikv.eviction.evaluate.readers import check_positions
from minikv.eviction.evaluate.rows import room_for
from minikv.eviction.evaluate.settings import Settings
from minikv.eviction.evaluate.summary import said_way
from minikv.eviction.evaluate.ways import Way
from minikv.eviction.study.suite import Evicting
from minikv.i18n import pick_language, text
from minikv.models.cache_argument import cache_argument, cache_in
from minikv.shown import Shown

CHUNK = 16  # tokens of a forward
PARTS = 8  # of a text, at most: the positions over which perplexity is joined
NEAR = 0.02  # of the full cache's perplexity
FEWEST = 20  # chunks from which an interval can be drawn
_DRAWS = 1_000
_LETTERS = 16  # characters read for each token that is needed: enough for any prose


@dataclass(frozen=True)
class Excerpt:
    """A piece of the text that is read: token ids, and the digest of the pieces that were cut with it."""

    tokens: tuple[int, ...]
    digest: str


def excerpts(tokenizer: Any, words: str, length: int, most: int) -> list[Excerpt]:
    """Cut ``words`` into pieces of ``length`` tokens, at most ``most``, each behind the tokenizer's first token.

    Raises ``ArgumentError`` for a text of fewer tokens, and for one of words that the tokenizer mostly does not know.
    """
    ids = list(
        tokenizer(words[: _LETTERS * length * most], add_special_tokens=False, verbose=False).input_ids
    )
    first = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    step = length - len(first)
    if len(ids) < step or length < 2 * CHUNK:
        raise ArgumentError("evaluate_short_text", tokens=len(ids), length=length, least=2 * CHUNK)
    unknown = ids.count(tokenizer.unk_token_id)
    if 2 * unknown > len(ids):
        raise ArgumentError("evaluate_unknown_words", unknown=unknown, tokens=len(ids))
    pieces = [tuple(first + ids[at : at + step]) for at in range(0, len(ids) - step + 1, step)][:most]
    digest = sha256(str(pieces).encode()).hexdigest()[:16]
    return [Excerpt(piece, digest) for piece in pieces]


@dataclass(frozen=True)
class Reading:
    """All pieces of a text read in ``way``. ``nats``: of each piece, for each chunk minus its log-probability."""

    digest: str
    length: int
    way: Way
    nats: tuple[tuple[float, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, which ``from_dict`` takes."""
        nats = [list(piece) for piece in self.nats]
        return {"digest": self.digest, "length": self.length} | asdict(self.way) | {"nats": nats}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> "Reading":
        """Raises ``LookupError``, ``TypeError`` or ``ValueError`` for what ``as_dict`` has not made."""
        way = Way(told["policy"], float(told["kept"]), told["kv_dtype"])
        nats = tuple(tuple(float(chunk) for chunk in piece) for piece in told["nats"])
        length = int(told["length"])
        if not nats or {len(piece) for piece in nats} != {len(counts(length))}:
            raise ValueError(length)
        return cls(str(told["digest"]), length, way, nats)


def counts(length: int) -> list[int]:
    """The predicted tokens of each chunk of a piece of ``length`` tokens; the first token of all is not predicted."""
    return [min(at + CHUNK, length - 1) - at for at in range(0, length - 1, CHUNK)]


def read_text(
    model: Any, tokenizer: Any, words: str, settings: Settings, known: Collection[Reading] = ()
) -> Iterator[Reading]:
    """Yield the reading of ``words`` at every length in every way, the full cache's first; known ones as they are.

    ``settings.texts`` pieces are read at most. Before the first one all lengths are tried. Raises ``ArgumentError`` for
    a model without a tokenizer, a text that is too short or unknown to it, and a length beyond the model's positions.
    """
    if tokenizer is None:
        raise ArgumentError("evaluate_no_tokenizer")
    pieces = {}
    for length in dict.fromkeys(settings.lengths):
        check_positions(model, length)
        pieces[length] = excerpts(tokenizer, words, length, settings.texts)
    found = {(reading.digest, reading.length, reading.way): reading for reading in known}
    for length, some in pieces.items():
        for way in settings.ways:
            reading = found.get((some[0].digest, length, way))
            if reading is None:
                with room_for(length):
                    nats = tuple(_read(model, piece, way.evicting(model, length)) for piece in some)
                reading = Reading(some[0].digest, length, way, nats)
            yield reading


@torch.no_grad()
def _read(model: Any, piece: Excerpt, evicting: Evicting) -> tuple[float, ...]:
    """The nats of each chunk."""
    ids = torch.tensor([piece.tokens], device=model.device)
    last = ids.shape[1] - 1
    nats, cache = [], None
    with evicting(model):
        for start in range(0, last, CHUNK):
            end = min(start + CHUNK, last)
            out = model(input_ids=ids[:, start:end], use_cache=True, **cache_argument(model, cache))
            cache = cache_in(out)
            logs = out.logits[0].float().log_softmax(-1)
            found = logs.gather(-1, ids[0, start + 1 : end + 1, None])
            nats.append(-float(found.double().sum()))
    return tuple(nats)


Verdict = Literal["reference", "lower", "higher", "near", "few"]
"""Beside the full cache's perplexity: the same within ``NEAR``, lower or higher beyond chance, too few to say."""


@dataclass(frozen=True)
class Curve:
    """``way``'s perplexity, of the whole and by position: from token i of the key on, to the next key.

    ``ratio``: the 95 % interval of its perplexity divided by the full cache's, by bootstrap over the chunks.
    """

    way: Way
    perplexity: float
    by_position: dict[int, float]
    ratio: tuple[float, float]
    verdict: Verdict


@dataclass(frozen=True)
class Curves:
    """The curves of one length, the full cache's first, of ``pieces`` pieces of a text."""

    length: int
    pieces: int
    curves: tuple[Curve, ...]

    def shown(self, lang: str = "en") -> Shown:
        """A row a way: perplexity, its ratio to the full cache's, what that says, and perplexity by position."""
        lang = pick_language(lang)
        places = list(self.curves[0].by_position)
        head = [_say(name, lang) for name in ("way", "perplexity", "ratio", "verdict")]
        head += [_say("from_token", lang, token=place) for place in places]
        rows = [
            [
                said_way(curve.way, lang),
                f"{curve.perplexity:.4g}",
                f"{curve.ratio[0]:.3f}-{curve.ratio[1]:.3f}",
                _say(f"verdict_{curve.verdict}", lang),
                *(f"{value:.4g}" for value in curve.by_position.values()),
            ]
            for curve in self.curves
        ]
        title = _say("perplexity_title", lang, length=self.length, pieces=self.pieces)
        return Shown(title, head, rows, right=(1, 2, *range(4, len(head))))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        ways = [
            {
                "way": str(curve.way),
                "perplexity": curve.perplexity,
                "ratio": list(curve.ratio),
                "verdict": curve.verdict,
                "by_position": {str(place): value for place, value in curve.by_position.items()},
            }
            for curve in self.curves
        ]
        return {"length": self.length, "pieces": self.pieces, "ways": ways}


def curves(readings: Iterable[Reading]) -> list[Curves]:
    """One for each length, in the order of ``readings``; readings without a full cache beside them are left out."""
    groups: dict[tuple[str, int], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.digest, reading.length), []).append(reading)
    found = []
    for (_, length), some in groups.items():
        full = next((reading for reading in some if reading.way == Way()), None)
        if full is not None:
            found.append(Curves(length, len(full.nats), tuple(_curve(each, full) for each in some)))
    return found


def _curve(reading: Reading, full: Reading) -> Curve:
    tokens, nats, due = np.array(counts(reading.length)), np.array(reading.nats), np.array(full.nats)
    parts = np.array_split(np.arange(len(tokens)), min(PARTS, len(tokens)))
    by_position = {
        int(part[0]) * CHUNK: _perplexity(nats[:, part].sum(), len(nats) * tokens[part].sum())
        for part in parts
    }
    each = np.broadcast_to(tokens, nats.shape).ravel()
    ratio = bootstrap((nats - due).ravel(), each)
    verdict: Verdict = "reference" if reading.way == Way() else judged(ratio, nats.size)
    return Curve(reading.way, _perplexity(nats.sum(), each.sum()), by_position, ratio, verdict)


def bootstrap(more: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of exp(sum(more) / sum(tokens)), both [chunks], over draws of as many chunks; seeded.

    It takes chunks as independent. Those of one piece share a kept set, so with few pieces the true interval is wider.
    """
    drawn = np.random.default_rng(0).integers(len(more), size=(_DRAWS, len(more)))
    low, high = np.quantile(more[drawn].sum(1) / tokens[drawn].sum(1), (0.025, 0.975))
    return _bounded_exp(low), _bounded_exp(high)


def judged(ratio: tuple[float, float], chunks: int) -> Verdict:
    """What the interval of a ratio says."""
    low, high = ratio
    if chunks < FEWEST:
        return "few"
    if max(1 - low, high - 1) <= NEAR:
        return "near"
    return "higher" if low > 1 else "lower" if high < 1 else "few"


def _perplexity(nats: float, tokens: int) -> float:
    return _bounded_exp(nats / tokens)


def _bounded_exp(nats: float) -> float:
    """e to the power of ``nats``, and the largest float where a broken model gives more."""
    return exp(min(float(nats), 709.0))


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"evaluate.{key}", lang, **values)
