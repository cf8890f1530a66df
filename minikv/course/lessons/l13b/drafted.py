"""What became of each step's drafts in a run of ``LLM(prompt_lookup=...)``, from its events and its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from minikv.engine import EventLog
from minikv.engine.ext.drafts import propose


@dataclass(frozen=True)
class DraftStep:
    """A decode step: the tokens proposed, how many of them were accepted, and the model's own token behind those."""

    drafts: tuple[int, ...]
    accepted: int
    own: int


def draft_steps(log: EventLog, prompt: Sequence[int], output: Sequence[int]) -> list[DraftStep]:
    """Return the decode steps of the one request that ``log`` has recorded: ``prompt``, answered by ``output``."""
    tokens, found = [*prompt, *output], []
    have = len(prompt) + 1  # the prompt's own step gives the first token of the output
    for step in log.of("step"):
        if step.decode_tokens:
            drafts = propose(tokens[:have], step.drafted) if step.drafted else []
            have += step.accepted + 1
            found.append(DraftStep(tuple(drafts), step.accepted, tokens[have - 1]))
    return found
