"""The detokenizer: the text of one sequence, token by token.

A token is no piece of text: it may be a part of a character, its leading space depends on what stands before it, and
the text that it completes may be one that the request stops at. ``Detokenizer`` gives out what is certain and keeps
the rest.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

BROKEN = "\ufffd"  # what decoding gives for bytes that are no character, or only the beginning of one


class Detokenizer:
    """The text of one sequence. A piece comes out when it is certain: whole characters, and nothing that may turn out
    to be the beginning of a stop text.

    ``tokenizer``: one of transformers. ``prompt``: the ids before the sequence's own. All pieces together are what
    ``tokenizer.decode(prompt + tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)`` has after the
    prompt's text, up to the first stop text: the one that is complete first and, among those that end at the same
    character, begins first. So it does not matter how the text is cut into tokens. A character that the prompt
    breaks off belongs to the sequence that completes it; bytes that never become a character come out as U+FFFD.

    How: decode a window, the last 8 to 24 tokens, and take what is longer than before. The window begins in the
    prompt, so the first token's leading space is right; special tokens and ids that the tokenizer does not know are no
    text and do not enter it. A push costs one decode of at most 25 tokens, and one in 17 pushes a second one. What is
    not certain at the window's end:

    - Of a byte-level vocabulary, the last character while its bytes are not complete.
    - Of a vocabulary with byte fallback, a run of byte tokens until another token ends it: decoders take the run as
      one, and a single wrong byte makes U+FFFD of all of it. It is decoded once, when it has ended.
    """

    _KEEP, _MOST = 8, 24  # tokens of the window after a cut, and at most before one

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str] = ()):
        self.stopped = False  # a stop text was found
        self._tokenizer = tokenizer
        self._stop = stop
        self._window = self._context(prompt)
        # What the window's text begins with, until something came out.
        self._prompt = self._decode(self._window)
        self._length = len(self._prompt)  # of the window's text
        self._in_bytes = False  # byte tokens have come that are not decoded yet
        # A character that the prompt breaks off is one U+FFFD, in a run one for each byte.
        run = sum(1 for _ in takewhile(self._is_byte, reversed(self._window)))
        broken = min(self._length - len(self._prompt.rstrip(BROKEN)), max(run, 1))
        # Characters of the window's text that came out, or are the prompt's.
        self._done = self._length - broken
        self._held = ""  # certain, but perhaps the beginning of a stop text
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All that has come out."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """The text that the sequence's next token makes certain, often none; none once a stop text was found."""
        if self.stopped:
            return ""
        self._window.append(token_id)
        if self._is_byte(token_id):
            self._in_bytes = True
            return ""
        text = self._decode(self._window)
        if (self._in_bytes or len(text) == self._length) and self._is_silent(token_id):
            self._window.pop()
            return ""
        self._in_bytes, self._length = False, len(text)
        new = self._advance(text, len(text) - text.endswith(BROKEN))
        if len(self._window) > self._MOST:
            self._cut()
        return self._give(new)

    def flush(self) -> str:
        """At the end of the sequence: what was kept back, up to a stop text if it holds one."""
        if self.stopped:
            return ""
        text = self._decode(self._window)
        last = self._give(self._advance(text, len(text)))
        if self._held:
            last += self._held
            self._pieces.append(self._held)
            self._held = ""
        return last

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """The prompt's last tokens that are text; a run of byte tokens is not torn."""
        found: list[int] = []
        for token_id in reversed(prompt):
            if len(found) >= self._KEEP and not self._is_byte(found[-1]):
                break
            if not self._is_silent(token_id):
                found.append(token_id)
        return found[::-1]

    def _decode(self, ids: list[int], skip: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)

    def _is_byte(self, token_id: int) -> bool:
        """Whether it stands for one byte in a vocabulary with byte fallback: "<0x0A>"."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return token is not None and len(token) == 6 and token.startswith("<0x") and token[-1] == ">"

    def _is_silent(self, token_id: int) -> bool:
        """Whether it is no text anywhere: special, or unknown. (A lone space is none only where nothing precedes.)"""
        if self._decode([token_id]):
            return False
        unknown = self._tokenizer.convert_ids_to_tokens(token_id) is None
        return unknown or bool(self._decode([token_id], skip=False))

    def _advance(self, text: str, certain: int) -> str:
        """What is new in the first ``certain`` characters of the window's text."""
        if self._prompt and text.startswith(self._prompt, 0, certain):
            self._done = max(self._done, len(self._prompt))  # what the prompt broke off stays broken
        new = text[self._done : certain]
        if new:
            self._done, self._prompt = certain, ""
        return new

    def _cut(self) -> None:
        """Forget the window's first tokens. What is not certain at its end is made of fewer than those that stay."""
        self._window = self._window[-self._KEEP :]
        uncertain, self._length = self._length - self._done, len(self._decode(self._window))
        self._done, self._prompt = self._length - uncertain, ""

    def _give(self, new: str) -> str:
        """The part of what was held and of ``new`` that cannot belong to a stop text."""
        text = self._held + new
        ends = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            given, self._held = text[: min(ends)[1]], ""
        else:
            held = max((_begun(text, stop) for stop in self._stop), default=0)
            given, self._held = text[: len(text) - held], text[len(text) - held :]
        if given:
            self._pieces.append(given)
        return given


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` are the beginning of ``stop``, which it does not hold."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
