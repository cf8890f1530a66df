"""Arrival: a request on its way to a replica. Its tokens and their digests are made when they are needed."""

from array import array

from minikv.blocks import BlockManager
from minikv.blocks.prefix import child_digest, root_digest
from minikv.simulate.trace import Trace

_ROOT = root_digest("")


class Arrival:
    """Request ``index`` of ``trace``. Its digests are of blocks of ``block_size`` tokens."""

    __slots__ = ("_block_size", "_found", "_trace", "index", "output_tokens", "prompt_tokens", "time")

    def __init__(self, trace: Trace, index: int, block_size: int):
        request = trace.requests[index]
        self.index = index
        self.time = float(request.arrival)
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self._trace, self._block_size = trace, block_size
        self._found: tuple[array, list[tuple[bytes, bytes]]] | None = None

    @property
    def work(self) -> int:
        """Tokens that go through the model if none is cached. The last generated token does not."""
        return self.prompt_tokens + self.output_tokens - 1

    @property
    def output_token(self) -> int:
        return self._trace.output_token(self.index)

    def tokens(self) -> array:
        """The prompt, ``array("q")``."""
        return array("q", self._trace.prompt(self.index).tobytes())

    def cached_tokens(self, manager: BlockManager) -> int:
        """Tokens of the prompt that are cached, on the device or the host: what ``manager.match`` says."""
        if any(group.window is not None for group in manager.kv_cache_groups) or len(manager.pools) > 1:
            return manager.match(self.tokens()).num_tokens
        (pool,), host = manager.pools, manager.host_pools
        for place in range((self.prompt_tokens - 1) // self._block_size):
            digest, text = self._block(place)
            if pool.lookup_block(digest, text) is None and (
                not host or host[0].lookup_block(digest, text) is None
            ):
                return place * self._block_size
        return (self.prompt_tokens - 1) // self._block_size * self._block_size

    def forget(self) -> None:
        """Drop tokens and digests, once no router needs them."""
        self._found = None

    def _block(self, place: int) -> tuple[bytes, bytes]:
        """The digest and the tokens of full block ``place``; the blocks before it have been made already."""
        if self._found is None:
            self._found = self.tokens(), []
        tokens, blocks = self._found
        if place == len(blocks):
            size = self._block_size
            text = tokens[place * size : (place + 1) * size].tobytes()
            blocks.append((child_digest(blocks[-1][0] if place else _ROOT, text), text))
        return blocks[place]
