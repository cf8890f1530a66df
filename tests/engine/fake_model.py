"""A model without weights: what it stores for a token depends on everything that it reads back through the blocks.

So a wrong slot, a stale prefix, a lost copy or a block that somebody else has written changes the tokens that follow.
``generate`` computes the same with a plain list for each KV cache group: one request at a time, no blocks, no steps.
"""

import functools

from tests.blocks.storage import Storage

PRIME = 2**61 - 1
VOCABULARY = 50


class Broken(Exception):
    """What an injected failure raises."""


def mix(*parts) -> int:
    """The same in every process: hashes of ints and of tuples of ints are not seeded."""
    return (
        hash(tuple(int.from_bytes(part.encode(), "big") if isinstance(part, str) else part for part in parts))
        % PRIME
    )


def content(group, token, position, salt, read):
    """What is stored of a token; ``read``: the contents that its query sees before it, in all groups."""
    return mix(group, token, position, salt, read)


def sees(position, window):
    """The positions before ``position`` that its query reads."""
    return range(0 if window is None else max(0, position - window + 1), position)


def draw(stored, params, index):
    """The next token of sequence ``index``, from what is stored of its last one."""
    return mix(stored, 0 if params.seed is None else params.seed, index) % VOCABULARY


def weigh(pairs):
    return sum((position + 1) * value for position, value in pairs) % PRIME


def generate(prompt, params, salt, index, windows):
    """All tokens of one sequence, as nobody else were there."""
    return list(_generate(tuple(prompt), params, salt, index, tuple(windows)))


@functools.cache
def _generate(prompt, params, salt, index, windows):
    tokens, stored, output = list(prompt), [[] for _ in windows], []
    while True:
        for position in range(len(stored[0]), len(tokens)):
            read = sum(
                weigh((q, of_group[q]) for q in sees(position, window))
                for of_group, window in zip(stored, windows, strict=True)
            )
            for group, of_group in enumerate(stored):
                of_group.append(content(group, tokens[position], position, salt, read))
        output.append(draw(stored[0][-1], params, index))
        tokens.append(output[-1])
        if output[-1] in params.stop_token_ids or len(output) == params.max_tokens:
            return output


class FakeModel:
    """``forward`` runs a step on a simulated storage. ``fail_at``: "transfer", "copy", "store", "forward" or "sample"
    raises.

    It returns the new tokens, a list of a sequence with drafts: those that are right, and the new one.
    """

    def __init__(self, manager):
        self.windows = [group.window for group in manager.kv_cache_groups]
        self.size = manager.block_size
        self.storage = Storage(len(self.windows), self.size)

    def forward(self, step, request_of, fail_at=None):
        batch, storage = step.batch, self.storage
        self._transfer(step, fail_at == "transfer")
        if fail_at == "copy":
            storage.copy(step.copies[: len(step.copies) // 2])
            raise Broken("copy")
        storage.copy(step.copies)
        stored = {}
        for row, item in enumerate(step.items):
            if fail_at == "store" and row == len(step.items) // 2:
                raise Broken("store")  # half of the items have been written
            start, end = batch.query_starts[row], batch.query_starts[row + 1]
            assert batch.lengths[row] == item.end
            assert tuple(batch.token_ids[start:end]) == item.tokens
            salt = request_of(item.id.request).salt
            stored[item.id] = [self._compute(batch, row, place, salt) for place in range(start, end)]
        if fail_at == "forward":
            raise Broken("forward")
        tokens = []
        for item in step.items:
            for seq_id in item.samples:
                params = request_of(seq_id.request).params
                drawn = [
                    draw(each, params, seq_id.sample) for each in stored[item.id][-1 - item.unconfirmed :]
                ]
                right = 0
                while right < item.unconfirmed and item.guesses[right] == drawn[right]:
                    right += 1
                tokens.append(drawn[: right + 1] if item.unconfirmed else drawn[0])
        if fail_at == "sample":
            raise Broken("sample")
        return tokens

    def _transfer(self, step, fails):
        """Out, then in, from the last pair to the first: within one direction the order must not matter."""
        for way, name in ((self.storage.out, "swap_out"), (self.storage.back, "swap_in")):
            for group, pairs in enumerate(step.work.get(name, ())):
                if fails:
                    way(group, pairs[len(pairs) // 2 :])
                    raise Broken("transfer")
                way(group, pairs[::-1])
        if fails:
            raise Broken("transfer")

    def _compute(self, batch, row, place, salt):
        position, token = int(batch.positions[place]), int(batch.token_ids[place])
        read = 0
        for group, window in enumerate(self.windows):
            table, pairs = batch.block_tables[group][row], []
            for q in sees(position, window):
                block = int(table[q // self.size])
                assert block >= 0, "a block that the query needs was given back"
                pairs.append((q, self.storage.read(group, block, q % self.size)))
            assert all(value is not None for _, value in pairs), "read a slot that nobody has written"
            read += weigh(pairs)
        stored = [content(group, token, position, salt, read) for group in range(len(self.windows))]
        for group, value in enumerate(stored):
            self.storage.write(group, [int(batch.slot_mapping[group][place])], [value])
        return stored[0]
