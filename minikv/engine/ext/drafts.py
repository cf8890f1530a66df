"""Speculative decoding without a second model: the sequence's own tokens propose the next ones. Lesson 13b.

    tokens      the cat sat on the mat . the cat                  newest: "the cat", which stood at the beginning
    drafts                                       sat on the       the text that followed there
    drawn                                        sat on a ...     the model's own tokens, all from one forward
    kept                                         sat on a         two drafts were right, the third was not

A decode step reads all weights for a single token; for a few more tokens it reads them only once too. So a step
computes the newest token and some drafts behind it, as if they were known. The logits behind each token say which
token really follows: a draft is right if it is the token drawn in its place. Draws belong to positions, so the tokens
are the same as without drafts, greedy or not. The first wrong draft is replaced by the right token, and the drafts
behind it are rolled back (``BlockManager.truncate``) before any of it is published:

    >>> from minikv.blocks import BlockManager
    >>> manager, prompt = BlockManager(num_blocks=4, block_size=4), [1, 2, 3, 4, 5, 1]
    >>> _ = manager.allocate("a", prompt)
    >>> drafts = propose(prompt + [2], 3)                 # 2 was drawn, and after "1 2" came 3 4 5
    >>> _ = manager.append_tokens("a", [2, *drafts])      # one step computes the four of them
    >>> kept = 2                                          # 3, 4, 9 and 7 are drawn behind them
    >>> manager.truncate("a", len(prompt) + 1 + kept)     # 5 is taken back, and with it nothing that was right
    >>> drafts, kept, manager.num_tokens("a")
    ([3, 4, 5], 2, 9)

This is the n-gram method of Saxena, "Prompt Lookup Decoding" (2023, github.com/apoorvumang/prompt-lookup-decoding);
verifying several tokens in a forward is speculative decoding (Leviathan et al., arXiv:2211.17192).
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np

from minikv.engine.core.extension import Extension
from minikv.engine.core.sequence import Sequence, SequenceId
from minikv.engine.core.step import Step, StepPlan
from minikv.errors import check_count


def propose(tokens: Seq[int] | np.ndarray, most: int, *, longest: int = 3, shortest: int = 1) -> list[int]:
    """Return up to ``most`` tokens that may follow ``tokens``; none if no token is repeated.

    It looks for the latest earlier place of the last n tokens, with the largest n from ``shortest`` to ``longest``, and
    returns what followed there. Where that reaches the end of ``tokens`` it starts again from its beginning, since a
    text that repeats itself once will do so again.
    """
    ids = np.asarray(tokens, np.int64)
    if not ids.size:
        return []
    found, places = 0, np.flatnonzero(ids[:-1] == ids[-1])  # earlier places of the last token
    while places.size:
        # Each round keeps the places where one more token before them matches too.
        found, place = found + 1, int(places[-1])
        if found == longest:
            break
        places = places[places >= found]
        places = places[ids[places - found] == ids[-1 - found]]
    if found < shortest or not found:
        return []
    return np.resize(ids[place + 1 :][:most], most).tolist()


class Drafts(Extension):
    """Puts up to ``most`` drafts behind the token of each decode.

    Drafts take only budget and blocks that no sequence needs in this step or the next.
    """

    def __init__(self, most: int):
        check_count("prompt_lookup", most, least=0)
        self.most = most

    def draft_tokens(self, seq: Sequence, most: int) -> list[int]:
        """Return at most ``most`` tokens that may follow those of ``seq``. A wrong one costs its computation only."""
        return propose(self.scheduler.manager.tokens(seq.id), most)

    def before_step(self, plan: StepPlan) -> None:
        # Blocks taken from a preempted sequence are not used for another one's drafts.
        if plan.preempted or not self.most:
            return
        scheduler, manager = self.scheduler, self.scheduler.manager
        size, pools = manager.block_size, manager.pools
        spare = [
            pool.num_free - scheduler.rules.owed_blocks(scheduler, group) for group, pool in enumerate(pools)
        ]
        for place, (item, seq) in enumerate(zip(plan.items, plan.seqs, strict=True)):
            if not item.decode:
                continue
            room = -seq.num_placed % size + size * max(0, min(spare))
            left = seq.params.max_tokens - seq.num_output - 1  # the step brings one token that is no draft
            most = min(self.most, plan.budget, left, room)
            if most < 1:
                continue
            drafts = self.draft_tokens(seq, most)
            stops = seq.params.stop_token_ids
            drafts = drafts[: next((at for at, token in enumerate(drafts) if token in stops), most)]
            if not drafts:
                continue
            free = [pool.num_free for pool in pools]
            plan.copies += manager.append_tokens(seq.id, drafts)
            spare = [many - had + pool.num_free for many, had, pool in zip(spare, free, pools, strict=True)]
            plan.items[place] = item._replace(tokens=(*item.tokens, *drafts), unconfirmed=len(drafts))
            plan.budget -= len(drafts)
            seq.num_placed += len(drafts)
            scheduler.changed("allocate", seq, len(drafts))

    def after_step(self, step: Step | None, tokens: Mapping[SequenceId, Seq[int]] | None) -> None:
        if step is None or tokens is None:
            return
        for item in step.items:
            if item.unconfirmed:
                figures = self.scheduler.open_steps[0].seqs[item.id].figures
                figures["num_drafted"] = figures.get("num_drafted", 0) + item.unconfirmed
                figures["num_accepted"] = figures.get("num_accepted", 0) + len(tokens[item.id]) - 1

    def may_reserve(self, seq: Sequence) -> bool:
        return not self.most  # drafts depend on the newest token
