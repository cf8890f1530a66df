"""The detokenizer: the text of one sequence, token by token.

A token is not a piece of text: it may be a part of a character, its leading space depends on the text before it, and
the text that it completes may be one at which the request stops. ``Detokenizer`` returns the certain text and keeps
the rest.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

BROKEN = "\ufffd"  # decoding returns this for bytes that are no character, or only the beginning of one


class Detokenizer:
    """The text of one sequence. A piece is returned when it is certain.

    A certain piece has whole characters, and no end that may be the beginning of a stop text.

    ``tokenizer``: one of transformers. ``prompt``: the ids before the sequence's own. All pieces together are the text
    of ``tokenizer.decode(prompt + tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)`` after the
    prompt's text, up to the first stop text: the one that is complete first and, among those that end at the same
    character, begins first. So the division of the text into tokens does not matter. A character that the prompt breaks
    off belongs to the sequence that completes it; bytes that never become a character are returned as U+FFFD.

    How: decode a window, the last 8 to 24 tokens, and take the text that is new. The window begins in the prompt, so
    the first token's leading space is right. Special and unknown ids are no text and do not enter it. A push costs one
    decode of at most 25 tokens, and one in 17 pushes a second one. At the window's end the following text is not
    certain:

    - With a byte-level vocabulary, the last character while its bytes are not complete.
    - With byte fallback, a run of byte tokens until another token ends it: decoders take the run as one, and a single
      wrong byte turns all of it into U+FFFD. It is decoded once, when it has ended.
    """

    _KEEP, _MOST = 8, 24  # tokens of the window after a cut, and at most before one

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str] = ()):
        self.stopped = False  # a stop text was found
        self._tokenizer = tokenizer
        self._stop = stop
        self._window = self._context(prompt)
        # The text at the beginning of the window, until a piece was returned.
        self._prompt = self._decode(self._window)
        self._length = len(self._prompt)  # of the window's text
        self._in_bytes = False  # byte tokens have come that are not decoded yet
        # A character that the prompt breaks off is one U+FFFD, in a run one for each byte.
        run = sum(1 for _ in takewhile(self._is_byte, reversed(self._window)))
        broken = min(self._length - len(self._prompt.rstrip(BROKEN)), max(run, 1))
        # Characters of the window's text that were returned, or are the prompt's.
        self._done = self._length - broken
        self._held = ""  # certain, but perhaps the beginning of a stop text
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text returned so far."""
        return "".join(self._pieces)

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """Return the text that the sequence's next token makes certain, often none; none after a stop text.

        ``may_stop`` False: no stop text ends the sequence here, and none begins.
        """
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
        return self._give(new, may_stop)

    def flush(self) -> str:
        """Return the text kept back at the end of the sequence, up to a stop text if it has one."""
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
        """Return the prompt's last tokens that are text, without dividing a run of byte tokens."""
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
        """Return whether the token stands for one byte in a vocabulary with byte fallback: "<0x0A>"."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return token is not None and len(token) == 6 and token.startswith("<0x") and token[-1] == ">"

    def _is_silent(self, token_id: int) -> bool:
        """Return whether the token is never text: special or unknown. (A lone space has no text only at the
        beginning.)
        """
        if self._decode([token_id]):
            return False
        unknown = self._tokenizer.convert_ids_to_tokens(token_id) is None
        return unknown or bool(self._decode([token_id], skip=False))

    def _advance(self, text: str, certain: int) -> str:
        """Return the new part of the first ``certain`` characters of the window's text."""
        if self._prompt and text.startswith(self._prompt, 0, certain):
            # A character broken off by the prompt stays broken
            self._done = max(self._done, len(self._prompt))
        new = text[self._done : certain]
        if new:
            self._done, self._prompt = certain, ""
        return new

    def _cut(self) -> None:
        """Drop the window's first tokens. The uncertain end consists of fewer tokens than are kept."""
        self._window = self._window[-self._KEEP :]
        uncertain, self._length = self._length - self._done, len(self._decode(self._window))
        self._done, self._prompt = self._length - uncertain, ""

    def _give(self, new: str, may_stop: bool = True) -> str:
        """Return the part of the held text and ``new`` that cannot belong to a stop text."""
        text, stops = self._held + new, self._stop if may_stop else ()
        ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            given, self._held = text[: min(ends)[1]], ""
        else:
            held = max((_begun(text, stop) for stop in stops), default=0)
            given, self._held = text[: len(text) - held], text[len(text) - held :]
        if given:
            self._pieces.append(given)
        return given


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of ``text`` are the beginning of ``stop``; ``text`` does not contain it."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
