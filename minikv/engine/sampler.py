"""The sampler: from rows of logits to one token each, and to the log-probabilities that a request asks for.

A row is computed by itself: its token follows from its logits, its ``SamplingParams`` and one uniform number, never
from the batch around it. Two things see to that.

- The uniform numbers belong to a sequence (``Draws``). ``torch.multinomial`` takes them from one generator for
  all rows, so what a sequence draws would depend on the batch around it, and on how often it was preempted.
- Probabilities are whole numbers while they are summed. A float sum depends on the order of its terms, which on a GPU
  changes with the shape of the batch; there a running sum may even step over a token that a filter has excluded. The
  likeliest token weighs 2^(62 - bits of the vocabulary's size), the others in proportion, so that no sum passes 2^62.
  Of a vocabulary of 128,256 tokens it weighs 2^45, and what is less than 2^-45 times as likely weighs nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
import torch
from torch import Tensor

from minikv.engine.adjusted import Asked, adjusted, plain
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.staging import HostCopy
from minikv.errors import ArgumentError, check_count

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Logits that are worked on at a time. A float64 copy of them takes 32 MiB; on a CPU no batch took more than 192 MiB.
AT_ONCE = 2**22


@dataclass(frozen=True)
class TokenLogprobs:
    """The model's probability of a token: natural logarithms, before temperature and filters.

    ``rank`` is 1 if no token was likelier than this one, 2 if one was. ``top`` has the ``logprobs`` likeliest as
    (token id, logprob), the likeliest first, equal ones by id; tokens with logit -inf are never among them.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class SamplerOutput:
    """One token a row; ``logprobs`` is None if the row's params ask for none."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """Tokens that a device is drawing: ``token_ids`` int64 [rows] on it, for a step that uses them at once.

    ``read`` copies them to the host, with the log-probabilities that were asked for.
    """

    token_ids: Tensor
    params: Sequence[SamplingParams]
    most: int  # the largest number of likeliest tokens that a row asks for
    numbers: HostCopy

    def read(self) -> SamplerOutput:
        """Wait for the tokens, and for nothing that was queued behind them.

        Raises ``ArgumentError`` for a row with a largest logit that is no finite number: the row has a NaN or +inf, or
        only -inf. Its token id is some id of the vocabulary.
        """
        numbers, count = self.numbers.tolist(), len(self.params)
        for row, value in enumerate(numbers[count : 2 * count]):
            if not isfinite(value):
                raise ArgumentError("sampler_not_finite", row=row, rows=count, value=value)
        logprobs: list[TokenLogprobs | None] = [None] * count
        start, step = 2 * count, 2 + 2 * self.most
        for row, wanted in enumerate(self.params):
            if wanted.logprobs is not None:
                logprobs[row] = _read(numbers[start : start + step], wanted.logprobs)
                start += step
        return SamplerOutput([int(number) for number in numbers[:count]], logprobs)


class Draws:
    """The uniform numbers of one sequence: number i belongs to its i-th generated token.

    ``draws[i]`` is in [0, 1) with 53 random bits. It depends on ``seed``, ``sample`` (which of the request's ``n``
    sequences) and i alone: Philox is a counter under a key (Salmon et al., 2011), so any number can be computed without
    those before it. The raw bits are NumPy's, which keeps that stream the same from version to version.
    """

    _CHUNK = 64  # numbers made at a time

    def __init__(self, seed: int, sample: int):
        check_count("seed", seed, least=0)
        check_count("sample", sample, least=0)
        self._key = np.array([seed, sample], np.uint64)
        self._chunk = -1
        self._numbers: list[float] = []

    def __getitem__(self, i: int) -> float:
        check_count("draw", i, least=0)
        chunk, place = divmod(i, self._CHUNK)
        if chunk != self._chunk:
            counter = chunk * self._CHUNK // 4  # one count of Philox4x64 gives four numbers
            raw = np.random.Philox(key=self._key, counter=counter).random_raw(self._CHUNK)
            self._numbers = ((raw >> np.uint64(11)) * 2.0**-53).tolist()
            self._chunk = chunk
        return self._numbers[place]


def sample(logits: Tensor, params: Sequence[Asked], draws: Sequence[float]) -> SamplerOutput:
    """Return the next token of every row of ``logits``: ``draw`` and wait for it. Raises as both do."""
    return draw(logits, params, draws).read()


def draw(logits: Tensor, asked: Sequence[Asked], draws: Sequence[float]) -> SampledTokens:
    """Begin to draw the next token of every row of ``logits`` [rows, vocabulary], a float tensor on the CPU or a GPU.

    ``asked`` (params, ``WithHistory`` where they change logits) and ``draws`` (uniform numbers in [0, 1), unused for
    greedy rows) are lists or tuples with one entry a row. The host waits for nothing; results come in one copy.

    - temperature 0: the likeliest token, the lowest id among equals.
    - Else the filters apply in the order temperature, top_k, top_p, min_p, the lower id first among equals. The token
      is the first one, by id, at which the running sum of the kept weights passes draw times their whole sum.

    Raises ``ArgumentError`` for invalid arguments. Work that is queued later may overwrite ``logits``.
    """
    _check(logits, asked, draws)
    params = plain(asked)
    own = logits.detach()
    logits = adjusted(own, asked)
    best, token_ids = _largest(logits)
    for rows, width in _groups(params, logits.shape[1]):
        where = _put(rows, torch.int64, logits)
        token_ids[where] = _draw_rows(
            logits[where], best[where], [params[row] for row in rows], [draws[row] for row in rows], width
        )
    parts = [token_ids.double(), best.double()]
    reported = [row for row, wanted in enumerate(params) if wanted.logprobs is not None]
    most = min(max((params[row].logprobs or 0 for row in reported), default=0), own.shape[1])
    for rows in _at_once(reported, own.shape[1]):
        where = _put(rows, torch.int64, own)
        parts.append(_logprobs(own[where], token_ids[where], most).flatten())
    return SampledTokens(
        token_ids, params, most, HostCopy(torch.cat(parts))
    )  # float64 holds every id exactly


def _check(logits: Tensor, asked: Sequence[Asked], draws: Sequence[float]) -> None:
    for what, given in (("params", asked), ("draws", draws)):
        if not isinstance(given, list | tuple):
            raise ArgumentError("not_a_list", what=what, value=type(given).__name__)
    rows = len(asked)
    if not isinstance(logits, Tensor) or logits.dtype not in FLOATS:
        found = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise ArgumentError("sampler_logits", found=str(found).removeprefix("torch."))
    if logits.dim() != 2 or logits.shape[0] != rows or not logits.shape[1]:
        expected = f"[{rows}, vocabulary]"
        raise ArgumentError("cache_shape", what="logits", shape=list(logits.shape), expected=expected)
    if len(draws) != rows:
        raise ArgumentError("cache_shape", what="draws", shape=[len(draws)], expected=f"[{rows}]")
    for row, (wanted, draw) in enumerate(zip(plain(asked), draws, strict=True)):
        if not isinstance(wanted, SamplingParams):
            raise ArgumentError("request_params", value=type(wanted).__name__)
        if wanted.temperature and not (isinstance(draw, int | float) and 0 <= draw <= 1):
            raise ArgumentError("sampling_range", what=f"draws[{row}]", value=draw, low=0, high=1)


def _put(values: list, dtype: torch.dtype, beside: Tensor) -> Tensor:
    """Return a list as a tensor on the device of ``beside``, without waiting for it (see ``minikv.engine.staging``)."""
    host = torch.tensor(values, dtype=dtype, pin_memory=beside.is_cuda)
    return host.to(beside.device, non_blocking=True)


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value of each row and its id, the lowest among equals; NaN is larger than anything."""
    if logits.device.type != "cpu":
        best, token_ids = logits.max(dim=-1)
        return best, token_ids
    wide = logits if logits.element_size() > 2 else logits.float()  # NumPy has no bfloat16
    token_ids = torch.from_numpy(wide.numpy().argmax(axis=-1))  # takes a ninth of torch's time
    return logits.gather(1, token_ids[:, None])[:, 0], token_ids


def _groups(params: Sequence[SamplingParams], vocabulary: int) -> Iterator[tuple[list[int], int]]:
    """Yield lists of rows that draw and need the same work, with the number of likeliest tokens to rank.

    Ranking costs most. top_p alone sorts the vocabulary, top_k ranks k tokens, and other rows need no ranking.
    """
    groups: dict[str, list[int]] = {"all": [], "top_k": [], "top_p": []}
    for row, wanted in enumerate(params):
        if wanted.temperature:
            cut = 0 < wanted.top_k < vocabulary
            groups["top_k" if cut else "top_p" if wanted.top_p < 1 else "all"].append(row)
    widths = {"all": 0, "top_k": max((params[row].top_k for row in groups["top_k"]), default=0)}
    for name, members in groups.items():
        for rows in _at_once(members, vocabulary):
            yield rows, widths.get(name, vocabulary)


def _at_once(rows: list[int], vocabulary: int) -> Iterator[list[int]]:
    """Yield ``rows`` in parts of at most ``AT_ONCE`` logits, but at least one row."""
    size = max(1, AT_ONCE // vocabulary)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _draw_rows(
    logits: Tensor, best: Tensor, params: list[SamplingParams], draws: list[float], width: int
) -> Tensor:
    """Return a token for each row of ``logits`` [rows, vocabulary]; ``best`` [rows] are their largest values."""
    vocabulary = logits.shape[1]
    table = [
        (each.temperature, each.top_p, each.min_p, min(each.top_k or vocabulary, vocabulary), draw)
        for each, draw in zip(params, draws, strict=True)
    ]
    columns = _put(table, torch.float64, logits).T.unsqueeze(-1)
    temperature, top_p, min_p, top_k, draw = columns  # [rows, 1] each
    largest = best.double()[:, None]
    relative = _relative(logits, largest, temperature)
    keep = relative >= min_p
    if width:
        ranked = logits.topk(width).values if width < vocabulary else logits.sort(descending=True).values
        weights = _whole(_relative(ranked, largest, temperature), vocabulary)
        weights *= torch.arange(width, device=logits.device) < top_k
        keep &= _likeliest(logits, ranked, _nucleus(weights, top_p).minimum(top_k.long()))
    # Inverse transform sampling on whole numbers: the token is the first one with a running sum above draw * total.
    sums = (_whole(relative, vocabulary) * keep).cumsum(dim=-1)
    target = _share(draw, sums[:, -1:]).minimum(sums[:, -1:] - 1)
    # A row of NaN keeps nothing and gets id 0: the host reports it when it reads the largest values.
    return torch.searchsorted(sums, target, right=True)[:, 0]


def _relative(logits: Tensor, largest: Tensor, temperature: Tensor) -> Tensor:
    """Return each token's probability at that temperature divided by the likeliest's: float64, 0 to 1.

    The largest logit is subtracted first, so no temperature is too small and no logit too large for exp.
    """
    return (logits.double() - largest).div_(temperature).exp_()


def _whole(relative: Tensor, vocabulary: int) -> Tensor:
    """Return the weight of each token as a whole number, so that ``vocabulary`` of them sum to 2^62 at most."""
    return (relative * 2.0 ** (62 - vocabulary.bit_length())).long()


def _share(part: Tensor, sums: Tensor) -> Tensor:
    """Return ``part`` of ``sums``, rounded down."""
    return (part * sums).long()


def _nucleus(weights: Tensor, top_p: Tensor) -> Tensor:
    """[rows, 1]: how many of the ``weights`` [rows, width], likeliest first, sum to ``top_p`` of the whole or more."""
    sums = weights.cumsum(dim=-1)
    target = (top_p * sums[:, -1:]).ceil().long()
    return (sums < target).sum(dim=-1, keepdim=True) + 1


def _likeliest(logits: Tensor, ranked: Tensor, count: Tensor) -> Tensor:
    """[rows, vocabulary] bool: the ``count`` [rows, 1] largest logits, the lower ids of those that are equal.

    ``ranked`` has the largest values of each row in descending order. Only values are taken from it, so it does not
    matter in which order a sort leaves equal ones.
    """
    last = ranked.gather(1, count - 1)
    above, equal = logits > last, logits == last
    room = count - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= room))


def _logprobs(logits: Tensor, token_ids: Tensor, most: int) -> Tensor:
    """[rows, 2 + 2 x most] float64: logprob and rank of the token, then logprobs and ids of the likeliest."""
    own = token_ids[:, None]
    logprobs = logits.double().log_softmax(dim=-1)
    rank = (logits > logits.gather(1, own)).sum(dim=-1, keepdim=True) + 1
    parts = [logprobs.gather(1, own), rank.double()]
    if most:
        ranked = logits.topk(most).values
        keep = _likeliest(logits, ranked, torch.full_like(own, most))
        values, ids = logprobs.masked_fill_(~keep, -inf).topk(most)
        parts += [values, ids.double()]
    return torch.cat(parts, dim=-1)


def _read(numbers: list[float], asked: int | None) -> TokenLogprobs:
    """The ``asked`` likeliest out of a row of ``_logprobs``."""
    most = (len(numbers) - 2) // 2
    values, ids = numbers[2 : 2 + most], numbers[2 + most :]
    pairs = [(int(token), value) for token, value in zip(ids, values, strict=True) if value > -inf]
    pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprobs(numbers[0], int(numbers[1]), tuple(pairs[:asked]))
