"""Exercise 13b.2: one step with drafts: compute, compare, truncate the cache by the refused drafts."""

from collections.abc import Callable, Sequence
from functools import partial

from minikv.course.exercise import Exercise, Misconception

VOCABULARY = 23


def next_token(tokens: Sequence[int]) -> int:
    """Return the next token of this exercise's model. It depends on every one of ``tokens``."""
    state = 7
    for token in tokens:
        state = (31 * state + token + 1) % 997
    return state % VOCABULARY


class Scroll:
    """One sequence's tokens in a cache of blocks, and its published prefixes, which other sequences can find."""

    def __init__(self, tokens: Sequence[int], block_size: int):
        self.block_size = block_size
        self.tokens = list(tokens)
        self.found: set[tuple[int, ...]] = set()
        self.forwards = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def forward(self, tokens: Sequence[int]) -> list[int]:
        """Compute ``tokens`` behind those in the cache and store them; return the model's next token after each."""
        self.forwards += 1
        said = []
        for token in tokens:
            self.tokens.append(token)
            said.append(next_token(self.tokens))
        return said

    def truncate(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens. Raises ``ValueError`` for 0, and for more than there are."""
        if not 1 <= num_tokens <= len(self.tokens):
            raise ValueError(f"{num_tokens} of {len(self.tokens)} tokens")
        del self.tokens[num_tokens:]

    def publish(self) -> None:
        """Make the full blocks findable for other sequences."""
        for end in range(self.block_size, len(self.tokens) + 1, self.block_size):
            self.found.add(tuple(self.tokens[:end]))


def decode_step(
    cache: Scroll, newest: int, drafts: list[int], forward: Callable[[list[int]], list[int]]
) -> list[int]:
    return _step(cache, newest, drafts, forward)


def _step(
    cache,
    newest,
    drafts,
    forward,
    *,
    accept=None,
    keep=0,
    truncate=True,
    publish_first=False,
    publish=True,
    tokens=None,
):
    """Run the step. Each keyword argument, changed, gives one wrong answer."""
    start = cache.num_tokens
    said = forward([newest, *drafts])
    accepted = (accept or _agreed)(drafts, said)
    if publish_first:
        cache.publish()
    if truncate:
        cache.truncate(max(1, start + 1 + accepted + keep))
    if publish and not publish_first:
        cache.publish()
    return tokens(drafts, said, accepted) if tokens else [*drafts[:accepted], said[accepted]]


def _agreed(drafts: list[int], said: list[int]) -> int:
    """Return how many leading drafts equal the model's tokens."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == said[accepted]:
        accepted += 1
    return accepted


def _unverified_first(drafts, said):
    """Takes the first draft unverified; compares each later one with the model's token after the one before."""
    return 1 + _agreed(drafts[1:], said[1:]) if drafts else 0


def _agreed_anywhere(drafts, said):
    return sum(draft == token for draft, token in zip(drafts, said, strict=False))


def _all(drafts, said):
    return len(drafts)


def step_one_by_one(cache, newest, drafts, forward):
    """Returns the right tokens, but runs a forward for each of them."""
    new = forward([newest])
    for draft in drafts:
        if draft != new[-1]:
            break
        new += forward([draft])
    cache.publish()
    return new


def step_takes_back_all(cache, newest, drafts, forward):
    """Truncates the accepted drafts as well when one is refused."""
    start = cache.num_tokens
    said = forward([newest, *drafts])
    accepted = _agreed(drafts, said)
    if accepted < len(drafts):
        cache.truncate(start + 1)
    cache.publish()
    return said[: accepted + 1]


def run_steps(fn: Callable, prompt: list[int], steps: list[list[bool]], block_size: int) -> list[dict]:
    """Return for each step its result, its number of forwards, the cache's tokens after it, and what can be found.

    A step is a list with an entry a draft: whether it equals the model's token behind the drafts before it.
    """
    scroll, newest, seen = Scroll(prompt[:-1], block_size), prompt[-1], []
    scroll.publish()
    for flags in steps:
        text = [*scroll.tokens, newest]
        drafts: list[int] = []
        for right in flags:
            said = next_token([*text, *drafts])
            drafts.append(said if right else (said + 1) % VOCABULARY)
        scroll.forwards = 0
        new = fn(scroll, newest, list(drafts), scroll.forward)
        state = {"new": new, "forwards": scroll.forwards, "cached": list(scroll.tokens)}
        seen.append({**state, "found": sorted(scroll.found)})
        if not isinstance(new, list | tuple) or not new or not all(isinstance(token, int) for token in new):
            break  # no newest token to continue from
        newest = new[-1]
    return seen


def draw_drafts(rng) -> list[dict]:
    """Draw steps with no drafts, all right, none right, right up to a place, and right again behind a wrong one."""
    cases = []
    for i in range(48):
        block_size = (2, 4, 3, 8)[i % 4]
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(3, 5 + i // 6))]
        steps = []
        for number in range(2 + i // 16):
            count = rng.randint(2, 3 + i // 12)
            kind = (i + number) % 5
            if kind == 0:
                steps.append([True] * count)
            elif kind == 1:
                steps.append([False] * count)
            elif kind == 2:
                steps.append([True] * (count - 1) + [False] * 2)
            elif kind == 3:
                steps.append([False, *[True] * (count - 1)])
            else:
                steps.append([])
        cases.append({"prompt": prompt, "steps": steps, "block_size": block_size})
    return cases


ROLLBACK = Exercise(
    id="13b.2",
    minutes=7,
    name="decode_step",
    signature=("prompt", "steps", "block_size"),
    cases=draw_drafts,
    reference=decode_step,
    drive=run_steps,
    misconceptions=(
        Misconception("first_unverified", partial(_step, accept=_unverified_first)),
        Misconception("all_accepted", partial(_step, accept=_all)),
        Misconception("agreed_anywhere", partial(_step, accept=_agreed_anywhere)),
        Misconception(
            "no_own_token", partial(_step, tokens=lambda drafts, said, accepted: drafts[:accepted])
        ),
        Misconception(
            "last_said", partial(_step, tokens=lambda drafts, said, accepted: said[:accepted] + said[-1:])
        ),
        Misconception("refused_kept", partial(_step, truncate=False)),
        Misconception("one_too_many", partial(_step, keep=-1)),
        Misconception("one_too_few", partial(_step, keep=1)),
        Misconception("all_taken_back", step_takes_back_all),
        Misconception("published_early", partial(_step, publish_first=True)),
        Misconception("unpublished", partial(_step, publish=False)),
        Misconception("one_by_one", step_one_by_one),
    ),
)
