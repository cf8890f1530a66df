"""LLM: many requests through one model and one KV cache. Lesson 11.

    >>> from minikv import LLM, SamplingParams
    >>> prompts = ["ada paris the cat sleeps ben oslo ? ada", "ada paris the cat sleeps ben oslo ? ben"]
    >>> with LLM("tiny-gqa") as llm:
    ...     outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1))
    >>> [output.text for output in outputs]
    [' paris', ' oslo']

``generate`` answers a list, ``stream`` yields tokens as they come. Or add requests at any time with ``add_request``,
and call ``step`` while ``has_work``.
"""

import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from pathlib import Path
from traceback import clear_frames
from typing import TYPE_CHECKING, Any

from minikv.cache.allocator import kv_dtype_of
from minikv.engine.building import (
    Wanted,
    build_cache,
    build_manager,
    eos_ids,
    longest_sequence,
    meet,
    request_seed,
)
from minikv.engine.core import Core
from minikv.engine.events import Emit
from minikv.engine.graphs import capture_decodes
from minikv.engine.host import Host, HostWanted
from minikv.engine.outputs import RequestOutput, StepOutput, Token, check_failures
from minikv.engine.progress import Progress
from minikv.engine.prompts import Asked, Prompt, Prompts, read_all, read_one
from minikv.engine.record import Inbox
from minikv.engine.runner import Runner
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.scheduler import Scheduler
from minikv.engine.turns import Turns
from minikv.engine.view import EngineView, view_of
from minikv.errors import ArgumentError, check_count
from minikv.models import Adapter, Loaded, bind_model, load
from minikv.models.sharding import ranks_of
from minikv.plan import CacheSpec
from minikv.plan.preemption import TransferRates

if TYPE_CHECKING:
    from minikv.engine.memory_report import MemoryReport


class LLM:
    """A causal language model of transformers, unmodified, with a KV cache that all requests share.

    ``model`` is a name for ``minikv.models.load`` ("tiny-gqa", a folder, a hub id), with ``dtype`` and ``device`` for
    it, or what it returns, or a model in eval mode. ``tokenizer`` makes text of ids; without one prompts are ids.

    Size: on a GPU ``allocate_kv_cache`` measures, up to ``utilization`` of it; ``kv_bytes`` or ``num_blocks`` (of
    ``block_size`` tokens each) give the size instead. On a CPU the default is room for ``max_num_seqs`` sequences of
    the longest length, at most 4 GiB and half of what is free. ``cache="linear"`` keeps a row of ``max_model_len``
    tokens for each sequence instead of blocks (``num_blocks`` are rows then). ``kv_dtype`` None is the model's own;
    "fp8_e4m3", "fp8_e5m2", "fp8_scaled" and "int8" store a byte an element, the last two a scale for each token and KV
    head besides. A GPU below compute capability 8.9 reads e4m3 only as copies (``reads="gather"``).

    On a GPU decode steps are captured as CUDA graphs (``minikv.engine.graphs``) and replayed, unless ``enforce_eager``;
    the model's parameters must stay where they are then. ``memory_report`` says what the graphs take, or why there are
    none.

    ``cpu_kv_bytes`` of host memory take the blocks of preempted sequences where a transfer costs less than computing
    them again, and prefix blocks that the device evicts. What costs less is measured, or given as ``swap_rates``. The
    memory is taken in whole CPU blocks of ``cpu_block_size`` tokens, a multiple of ``block_size`` (None: one). With
    ``prefix_dir`` too the prefix blocks are saved in that folder when the LLM closes, and a later one of the same model
    begins with them. To know that it is the same, every weight is read once. Prompts can be read from that file.

    A step computes at most ``max_batched_tokens`` tokens of at most ``max_num_seqs`` sequences. Prompt and
    ``max_tokens`` of a request are together at most ``max_model_len`` (None: the model's positions), and never more
    than the model has in a table. A request without a seed draws from the LLM's (None: a new one each time). Every
    event goes to ``emit``; ``clock`` gives seconds.

    ``prompt_lookup``: in a decode up to so many tokens behind the newest one are guessed from what the sequence has
    repeated before (0: none). The tokens are the same, in fewer steps where the guesses are right.

    ``tp`` "auto", or a number of processes: each of those that torchrun has started makes the same LLM, on its shard of
    the model. On rank 0 it is used as ever. On the others this call computes what rank 0 asks for, and ends the process
    (``SystemExit``) when rank 0 closes. A rank that is lost fails every request with ``RankLostError``.

    Several threads may use it: they take turns, a step each, and each caller gets its own outputs. ``emit`` is called
    inside steps; it may add and abort requests, and take a ``snapshot``.

    Raises ``ArgumentError``, ``ConfigError`` for what cannot be run, ``DoesNotFitError`` where the cache has no room;
    the model is unchanged then. Until ``close`` its attention is bound to the cache, and after it every call raises
    ``ArgumentError``: use the LLM as a context manager, or let it keep the model.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        dtype: Any = "auto",
        device: Any = "auto",
        kv_bytes: int | None = None,
        num_blocks: int | None = None,
        utilization: float = 0.9,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        prompt_lookup: int = 0,
        cache: str = "paged",
        kv_dtype: str | None = None,
        enforce_eager: bool = False,
        reads: str = "auto",
        cpu_kv_bytes: int | None = None,
        cpu_block_size: int | None = None,
        swap_rates: TransferRates | None = None,
        prefix_dir: str | Path | None = None,
        seed: int | None = None,
        tp: int | str = 1,
        emit: Emit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if seed is not None:
            check_count("seed", seed, least=0)
        check_count("prompt_lookup", prompt_lookup, least=0)  # before the cache is made
        wanted = Wanted(
            kv_bytes=kv_bytes,
            num_blocks=num_blocks,
            utilization=utilization,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_model_len=max_model_len,
            cache=cache,
            kv_dtype=kv_dtype,
            enforce_eager=enforce_eager
            or reads == "gather",  # room is held for graphs unless there will be none
        )
        offload = HostWanted(cpu_kv_bytes, cpu_block_size, swap_rates, prefix_dir, block_size, cache, tp)
        self._team = meet(tp)
        if isinstance(model, str | Path):
            model = load(model, dtype=dtype, device=device, tp=tp)
            if model.model.device.type != "cpu" and model.note() is not None:
                warnings.warn(
                    model.note(), stacklevel=2
                )  # a dtype of another range than the weights were made in
        elif (dtype, device) != ("auto", "auto"):
            raise ArgumentError("llm_is_loaded", dtype=dtype, device=device)
        if isinstance(model, Loaded):
            model, tokenizer = model.model, model.tokenizer if tokenizer is None else tokenizer
        if not callable(getattr(model, "can_generate", None)):
            raise ArgumentError("models_not_a_decoder", kind=type(model).__name__)
        ranks = ranks_of(model)
        if ranks != (1 if self._team is None else self._team.size):
            raise ArgumentError("parallel_model", tp=tp, ranks=ranks)
        spec = CacheSpec.from_config(model.config, tp=ranks, kv_dtype=kv_dtype or kv_dtype_of(model))
        self.model, self.tokenizer = model, tokenizer
        host_blocks = offload.num_blocks(spec)
        self.cache, self.allocation = build_cache(model, spec, wanted)
        self.manager, longest = build_manager(self.cache, host_blocks), longest_sequence(spec, wanted)
        self.scheduler = Scheduler(
            self.manager,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_model_len=longest,
            prompt_lookup=prompt_lookup,
            clock=clock,
            emit=emit,
            block_bytes=[kind.block_bytes(self.cache.block_size) for kind in self.cache.kinds],
        )
        self.host: Host | None = None
        try:
            self.host = offload.open(model, self.cache, self.scheduler)
            # Last, because it changes the model.
            self.adapter: Adapter = bind_model(model, self.cache, reads=reads)
        except BaseException:
            if self.host is not None:
                self.host.close()
            self.cache.close()  # a notebook keeps the traceback, and the traceback this object
            raise
        limits = [limit for limit in (longest, self.adapter.position_limit) if limit is not None]
        self.scheduler.max_model_len = min(limits, default=None)
        self.runner = Runner(self.adapter) if self._team is None else self._team.runner(self.adapter)
        try:
            self.runner.use(
                capture_decodes(
                    self.adapter,
                    max_num_seqs,
                    self.scheduler.max_model_len,
                    enforce_eager=enforce_eager,
                    ranks=ranks,
                )
            )
        except BaseException as error:
            clear_frames(error.__traceback__)  # which hold views of the cache
            self.adapter.unbind()
            if self.host is not None:
                self.host.close()
            self.cache.close()
            raise
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self._core = Core(self.scheduler, self.runner, tokenizer, eos_ids(model))
        if self.host is not None:
            self.runner.transfer, self._core.took = self.host.transfer, self.host.took
        self._inbox = Inbox()
        self._turns = Turns()
        self._seed = secrets.randbits(32) if seed is None else seed
        self._added, self._closed = 0, False
        if self._team is not None and self._team.rank:
            self._team.serve(self)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to compute, or to give back."""
        return self.scheduler.has_work or bool(self._inbox)

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        salt: str | Seq[str] = "",
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt; the outputs are in their order.

        ``prompts`` is a text or a list of token ids, or a list of such. ``params`` and ``salt`` are one for all, or
        one each. ``progress`` None shows a bar on a terminal. If anything is refused (``ArgumentError``,
        ``RequestTooLarge``) nothing is queued. Requests that fail while they run end with finish reason "error",
        the others go on, and then ``GenerationFailed`` holds the outputs of all. Ctrl+C fails the requests that are
        being computed, those of others too, and aborts what is left of this call's.
        """
        inbox = Inbox()
        try:
            requests = read_all(prompts, params, salt, self.tokenizer, self.vocabulary)
            names = self._add_all(requests, inbox, pieces=False)
            done: dict[str | int, RequestOutput] = {}
            with Progress(len(names), progress) as bar:
                while len(done) < len(names):
                    out = self._wait(inbox)
                    done |= {each.request: each for each in out.finished}
                    bar.update(len(done), len(out.tokens))
        finally:
            self._leave(inbox)
        outputs = [done[name] for name in names]
        check_failures(outputs)
        return outputs

    def stream(
        self,
        prompts: Prompts,
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        salt: str | Seq[str] = "",
    ) -> Iterator[Token]:
        """Yield each token when it is there; ``token.request`` is the number of its prompt, from 0.

        As ``generate``: what is refused is refused at once; a failed request's last token has the finish reason
        "error". Closing the iterator, or letting go of it, aborts what is left.
        """
        tokens = self._stream(read_all(prompts, params, salt, self.tokenizer, self.vocabulary))
        next(tokens)  # begun, so that it cleans up behind itself even where nobody ever asks for a token
        return tokens  # type: ignore[return-value]

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | int | None = None,
        salt: str = "",
        pieces: bool = True,
    ) -> str | int:
        """Queue a request and return its id (None: one is made). ``step`` gives its tokens and its output.

        ``pieces``: the tokens come with pieces of text. Requests share cached prefixes only under an equal ``salt``.
        Raises ``RequestTooLarge``, ``ArgumentError``.
        """
        asked = read_one(prompt, params, salt, tokenizer=self.tokenizer, vocabulary=self.vocabulary)
        return self._add(asked, request_id, self._inbox, pieces)

    def step(self) -> StepOutput:
        """Compute one step. Returns the tokens and outputs of what ``add_request`` queued; others get their own.

        A step that raises fails its requests, with the error in their outputs, and nothing else. What ``emit`` or
        ``clock`` raise between two steps is raised here: nothing is lost, and the next ``step`` goes on.
        """
        with self._turns:
            self._check_open()
            self._core.advance()
            return self._inbox.take()

    def abort(self, request_id: str | int) -> bool:
        """End a request; its output comes with the next ``step``. False if it has ended already."""
        with self._turns:
            self._check_open()
            return self._core.abort(request_id)

    def snapshot(self) -> EngineView:
        """Who runs, who waits, and which blocks they hold. From ``emit``, too."""
        with self._turns:
            self._check_open()
            return view_of(self.scheduler, self._core.steps, self._core.generated, self._core.finished)

    def memory_report(self) -> "MemoryReport":
        """Where the device's bytes are: weights, KV, tables, workspace, headroom."""
        from minikv.engine.memory_report import memory_report

        with self._turns:
            self._check_open()
            return memory_report(self)

    def close(self) -> None:
        """Abort what is left; give the memory back, and, if no other LLM is bound to it, the model its attention.

        Raises ``ArenaInUse`` where somebody still reads the cache: let go of what it names, and close again.
        """
        with self._turns:
            if not self._closed:
                self._core.clear()
                self._closed = True
                try:
                    if self.host is not None:
                        self.host.save()
                finally:  # also where Ctrl+C ends a long save
                    if self._team is not None:
                        self._team.stop()
                    self.adapter.unbind()
                    self._give_back()
            else:  # what the last call could not give back
                self._give_back()

    def _give_back(self) -> None:
        """The memory, the cache's last: what else there is reads it."""
        self.runner.close()
        if self.host is not None:
            self.host.close()
        self.cache.close()

    def _stream(self, requests: list[Asked]) -> Iterator[Token | None]:
        """None once all requests are queued, then the tokens."""
        inbox = Inbox()
        try:
            names = self._add_all(requests, inbox, pieces=True)
            number = {name: place for place, name in enumerate(names)}
            left = len(names)
            yield None
            while left:
                out = self._wait(inbox)
                left -= len(out.finished)
                yield from (token._replace(request=number[token.request]) for token in out.tokens)
        finally:
            self._leave(inbox)

    def _add_all(self, requests: list[Asked], inbox: Inbox, pieces: bool) -> list[str | int]:
        """All requests, or none if one of them is refused."""
        with self._turns:
            self._check_open()
            for number, asked in enumerate(requests, self._added):
                self.scheduler.check(self._core.free_name(number), asked.ids, asked.params, asked.salt)
            return [self._add(asked, None, inbox, pieces) for asked in requests]

    def _add(self, asked: Asked, request_id: str | int | None, inbox: Inbox, pieces: bool) -> str | int:
        with self._turns:
            self._check_open()
            name = self._core.free_name(self._added) if request_id is None else request_id
            seed = request_seed(self._seed, self._added) if asked.params.seed is None else asked.params.seed
            self._core.add(name, asked, seed, inbox, pieces)
            self._added += 1
            return name

    def _wait(self, inbox: Inbox) -> StepOutput:
        """A step, unless another thread's has brought something for ``inbox`` already."""
        with self._turns:
            self._check_open()
            if not inbox:
                self._core.advance()
            return inbox.take()

    def _leave(self, inbox: Inbox) -> None:
        """A caller goes: nobody waits for its requests any more."""
        with self._turns:
            self._core.drop(inbox)

    def _check_open(self) -> None:
        if self._closed:
            raise ArgumentError("llm_closed")
