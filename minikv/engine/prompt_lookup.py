"""Speculative decoding without a second model: the sequence's own tokens say what may come next. Lesson 13.

    tokens      the cat sat on the mat . the cat                  newest: "the cat", which stood at the beginning
    drafts                                       sat on the       what followed there
    drawn                                        sat on a ...     the model's own tokens, all from one forward
    kept                                         sat on a         two drafts were right, the third was not

A decode step reads all weights for a single token; with a few more tokens it reads them as often. So a step computes
the newest token and some drafts behind it, as if they were known. The logits behind each token say which one really
follows: a draft counts if it is the token that is drawn in its place. Draws belong to places, so the tokens are those
that come without drafts, greedy or not. The first draft that is not has the right token in its stead, and whatever
stands behind it is rolled back (``BlockManager.truncate``) before anything of it is published:

    >>> from minikv.blocks import BlockManager
    >>> manager, prompt = BlockManager(num_blocks=4, block_size=4), [1, 2, 3, 4, 5, 1]
    >>> _ = manager.allocate("a", prompt)
    >>> drafts = propose(prompt + [2], 3)                 # 2 was drawn, and after "1 2" came 3 4 5
    >>> _ = manager.append_tokens("a", [2, *drafts])      # one step computes the four of them
    >>> kept = count_right(drafts, [3, 4, 9, 7])          # what is drawn behind each
    >>> manager.truncate("a", len(prompt) + 1 + kept)     # 5 is taken back, and with it nothing that was right
    >>> drafts, kept, manager.num_tokens("a")
    ([3, 4, 5], 2, 9)

This is the n-gram method of Saxena, "Prompt Lookup Decoding" (2023, github.com/apoorvumang/prompt-lookup-decoding);
verifying several tokens in a forward is speculative decoding (Leviathan et al., arXiv:2211.17192).
"""

from collections.abc import Sequence as Seq

import numpy as np


def propose(tokens: Seq[int] | np.ndarray, most: int, *, longest: int = 3, shortest: int = 1) -> list[int]:
    """Up to ``most`` tokens that may follow ``tokens``; none where nothing is repeated.

    It looks for the last n tokens, n from ``longest`` down to ``shortest``, at an earlier place, takes the latest one,
    and returns what followed there. What followed may run into the end: then it goes on from its beginning, since
    text that repeats itself once will do so again.
    """
    ids = np.asarray(tokens, np.int64)
    if not ids.size:
        return []
    found, places = 0, np.flatnonzero(ids[:-1] == ids[-1])  # where the last token stood before
    while places.size:
        found, place = found + 1, int(places[-1])
        if found == longest:
            break
        places = places[places >= found]
        places = places[ids[places - found] == ids[-1 - found]]
    if found < shortest or not found:
        return []
    return np.resize(ids[place + 1 :][:most], most).tolist()


def count_right(drafts: Seq[int], drawn: Seq[int]) -> int:
    """How many of ``drafts``, from the first on, are the tokens ``drawn`` in their places."""
    pairs = zip(drafts, drawn, strict=False)
    return next((place for place, (draft, token) in enumerate(pairs) if draft != token), len(drafts))
