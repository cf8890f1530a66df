"""LLM: many requests through one model and one KV cache. Lesson 11a.

    >>> from minikv import LLM, SamplingParams
    >>> prompts = ["ada paris the cat sleeps ben oslo ? ada", "ada paris the cat sleeps ben oslo ? ben"]
    >>> with LLM("tiny-gqa") as llm:
    ...     outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1))
    >>> [output.text for output in outputs]
    [' paris', ' oslo']

``generate`` answers a list of prompts, ``stream`` yields tokens as they are sampled. ``add_request`` adds requests at
any time; call ``step`` while ``has_work``.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from minikv.engine.ext.events import Emit
from minikv.engine.ext.eviction import EvictionConfig
from minikv.engine.ext.graphs import DecodeGraphs
from minikv.engine.ext.host import OffloadConfig
from minikv.engine.factory import (
    CacheName,
    Described,
    EngineConfig,
    build_engine,
    eos_ids,
    init_tensor_parallel,
    open_model,
    request_seed,
    starting,
)
from minikv.engine.outputs import RequestOutput, StepOutput, Token, check_failures
from minikv.engine.prompts import Prompt, Prompts, TokenizedRequest, read_all, read_chat, read_one
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.serve.fair_lock import FairLock
from minikv.engine.serve.llm_engine import LLMEngine
from minikv.engine.serve.progress import Progress
from minikv.engine.serve.request_state import OutputQueue
from minikv.engine.serve.view import EngineView, llm_line, shown_llm, view_of
from minikv.errors import ArgumentError, check_count
from minikv.keywords import no_attribute, own_keywords
from minikv.models.adapter import Reads
from minikv.models.protocols import CausalLM, Tokenizer
from minikv.plan.dtypes import AnyDtype, AnyKVDtype
from minikv.plan.preemption import TransferRates
from minikv.shown import Shown, html_of, text_of

if TYPE_CHECKING:
    import torch

    from minikv.engine.memory_report import MemoryReport
    from minikv.models import Loaded


class LLM:
    """A causal language model of transformers, unmodified, with a KV cache that all requests share.

    The model:

    - ``model``: a name for ``minikv.models.load`` ("tiny-gqa", a folder, a hub id), the result of ``load``, or a model
      in eval mode.
    - ``tokenizer``: turns ids into text; None is the one loaded with the model. Without a tokenizer prompts are ids.
    - ``dtype``, ``device``: for ``load``, so only where ``model`` is a name. Each "auto" or a torch object or its name.
    - ``tp``: processes that share the model, or "auto" for all that torchrun has started. Each makes the same LLM. On
      rank 0 it is used as usual. On the others this call computes rank 0's steps, and ends the process (``SystemExit``)
      when rank 0 closes. If a rank is lost, every request fails with ``RankLostError``, or this call if it is not done.

    - ``spec``: the layers as you describe them: a ``CacheSpec``, or what ``CacheSpec.from_layers`` takes. They are held
      against the model's own cache, and refused with the first figure that differs. Its dtype and positions count where
      ``kv_dtype`` and ``max_model_len`` are None. None: minikv knows the layers, or measures them.

    The size of the cache. On a GPU it is measured unless a size is given; on a CPU it has room for ``max_num_seqs``
    sequences of the longest length, in at most 4 GiB and half of the free memory:

    - ``kv_bytes``: the size in bytes, or
    - ``num_blocks``: the size in blocks (of a linear cache: in rows).
    - ``utilization``: the share of a GPU's memory, 0 to 1, that everything on it may take where the cache is measured.
    - ``block_size``: tokens a block; where a layer makes one entry of several, rounded up to whole entries.
    - ``cache``: "paged", or "linear": a row of ``max_model_len`` tokens for each sequence instead of blocks.
    - ``kv_dtype``: the dtype of a stored element; None is the model's own. "fp8_e4m3" and "fp8_e5m2" take one byte an
      element; "fp8_scaled" and "int8" take four bytes besides for each token and KV head, of K and of V.
    - ``reads``: "paged" reads the blocks in place, "gather" copies them; "auto" copies only if the model requires it. A
      GPU below compute capability 8.9 reads e4m3 only as copies.

    The size of a step:

    - ``max_num_seqs``: sequences of a step, at most.
    - ``max_batched_tokens``: tokens of a step, at most.
    - ``max_model_len``: tokens of a request, prompt and ``max_tokens`` together, at most. None is the model's
      positions; more than these is an error.
    - ``saved_states``: copies of recurrent layers' states at the ends of prefixes, at most, so that a cached prefix
      can be used; each takes as many bytes as the states of a sequence. None: half as many as ``max_num_seqs``. Without
      such layers there is nothing to save, and any number but 0 is refused.
    - ``prompt_lookup``: the most draft tokens of a decode, taken from the sequence's own repetitions; 0 drafts none.
      The answer is the same, in fewer steps where drafts are right.
    - ``enforce_eager``: run the model's own code in every step. Otherwise decode steps are captured and replayed, on a
      GPU as CUDA graphs (``minikv.engine.ext.graphs``), on a CPU as a list of calls, in float32 where there is a C
      compiler (``minikv.engine.ext.recorded``). The model's parameters must stay where they are; on a CPU
      other ones, and hooks, count from the next prompt on. ``memory_report`` gives the bytes, or the reason why nothing
      is captured.
    - ``eviction``: which tokens of a sequence stay in the layers without a window (``EvictionConfig``), so that a
      sequence may be longer than the cache; None keeps all. The answer depends neither on the other sequences nor on a
      preemption, up to rounding; only SnapKV uses other queries after a preemption. Decodes are not captured then.

    Host memory:

    - ``cpu_kv_bytes``: bytes for the blocks of preempted sequences, where a transfer costs less than a recompute, and
      for prefix blocks that the device evicts. None: none.
    - ``cpu_block_size``: tokens of a host block, the unit of the memory, a multiple of ``block_size``. None: one block.
    - ``swap_rates``: the speeds of transfers and prefills (``TransferRates``); None measures them.
    - ``prefix_dir``: a folder in which ``close`` saves the prefix blocks, for a later LLM of the same model to load.
      Every weight is read once to identify the model. The file contains readable prompts. Trust the folder like code:
      its checksums find accidents, not tampering.

    Sampling and reports:

    - ``seed``: for requests without a seed of their own. None: a new one each time.
    - ``emit``: called with every event, within steps; it may add and abort requests, and take a ``snapshot``.
    - ``clock``: called for the time in seconds.

    Several threads may use an LLM: they take turns, a step each, and each caller gets its own outputs.

    Raises ``ArgumentError`` or ``ConfigError`` for settings that cannot run, ``DoesNotFitError`` if the cache has no
    room; the model is unchanged then. Until ``close`` the model's attention is bound to the cache; after ``close``
    every call raises ``ArgumentError``. Use the LLM as a context manager, or let it keep the model.
    """

    @own_keywords("LLM")
    def __init__(
        self,
        model: "str | Path | Loaded | CausalLM",
        *,
        tokenizer: Tokenizer | None = None,
        dtype: AnyDtype = "auto",
        device: "str | torch.device" = "auto",
        kv_bytes: int | None = None,
        num_blocks: int | None = None,
        utilization: float = 0.9,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        saved_states: int | None = None,
        prompt_lookup: int = 0,
        cache: CacheName = "paged",
        kv_dtype: AnyKVDtype | None = None,
        enforce_eager: bool = False,
        reads: Reads = "auto",
        cpu_kv_bytes: int | None = None,
        cpu_block_size: int | None = None,
        swap_rates: TransferRates | None = None,
        prefix_dir: str | Path | None = None,
        seed: int | None = None,
        tp: int | Literal["auto"] = 1,
        spec: Described = None,
        eviction: EvictionConfig | None = None,
        emit: Emit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if seed is not None:
            check_count("seed", seed, least=0)
        config = EngineConfig(
            kv_bytes=kv_bytes,
            num_blocks=num_blocks,
            utilization=utilization,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_model_len=max_model_len,
            cache=cache,
            kv_dtype=kv_dtype,
            enforce_eager=enforce_eager,
            reads=reads,
            prompt_lookup=prompt_lookup,
            spec=spec,
            saved_states=saved_states,
        )
        host_config = OffloadConfig(
            cpu_kv_bytes, cpu_block_size, swap_rates, prefix_dir, block_size, cache, tp
        )
        self._group = init_tensor_parallel(tp)
        with starting(self._group):
            self.model, self.tokenizer = open_model(model, tokenizer, dtype=dtype, device=device, tp=tp)
            eos = eos_ids(self.model)
            parts = build_engine(
                self.model, config, host_config, self._group, clock=clock, emit=emit, eviction=eviction
            )
        self.cache, self.allocation = parts.cache, parts.allocation
        self.manager, self.scheduler = parts.manager, parts.scheduler
        self.adapter, self.runner, self.graphs = parts.adapter, parts.runner, parts.graphs
        self.offload, self.host, self.eviction = parts.offload, parts.host, parts.eviction
        self.states = parts.states
        self._faster = parts.faster
        self.vocabulary: int = self.model.get_input_embeddings().num_embeddings
        self._engine = LLMEngine(self.scheduler, self.runner, self.tokenizer, eos, overlaps=parts.overlaps)
        self._queue = OutputQueue()
        self._lock = FairLock()
        self._seed = secrets.randbits(32) if seed is None else seed
        self._added, self._closed = 0, False
        if self._group is not None and self._group.rank:
            self._group.serve(self)

    if not TYPE_CHECKING:  # otherwise a type checker would accept every name

        def __getattr__(self, name: str):
            raise no_attribute(self, name)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ArgumentError("llm_not_copied")

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def overlaps(self) -> bool:
        """Whether the next step is launched before this one's tokens are read. False times each step alone."""
        return self._engine.overlaps

    @overlaps.setter
    def overlaps(self, overlaps: bool) -> None:
        self._engine.overlaps = overlaps

    @property
    def totals(self) -> dict[str, int]:
        """``steps`` computed, tokens ``generated`` and requests ``finished`` so far."""
        engine = self._engine
        return {"steps": engine.steps, "generated": engine.generated, "finished": engine.finished}

    def shown(self, lang: str = "en") -> Shown:
        """Return the cache, the used part of it, the running and waiting sequences, and the limits of a step."""
        return shown_llm(self, lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        return llm_line(self)

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to compute, or to return."""
        return self.scheduler.has_work or bool(self._queue)

    @own_keywords("LLM.generate")
    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        salt: str | Seq[str] = "",
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt; the outputs are in their order.

        ``prompts`` is a text or a list of token ids, or a list of such. ``params`` and ``salt`` are one for all, or one
        each. ``progress`` None shows a bar on a terminal. If any prompt is refused (``ArgumentError``,
        ``RequestTooLargeError``), none is queued. A request that fails in a step ends with finish reason "error", the
        others go on, and ``GenerationFailedError`` holds the outputs of all. Ctrl+C fails the requests in the running
        step, those of other callers too, and aborts the rest of this call's.
        """
        queue = OutputQueue()
        try:
            requests = read_all(prompts, params, salt, self.tokenizer, self.vocabulary)
            names = self._add_all(requests, queue, pieces=False)
            done: dict[str | int, RequestOutput] = {}
            with Progress(len(names), progress) as bar:
                while len(done) < len(names):
                    out = self._wait(queue)
                    done |= {each.request: each for each in out.finished}
                    bar.update(len(done), len(out.tokens))
        finally:
            self._leave(queue)
        outputs = [done[name] for name in names]
        check_failures(outputs)
        return outputs

    @own_keywords("LLM.chat")
    def chat(
        self,
        messages: Seq[Any],
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        salt: str | Seq[str] = "",
        progress: bool | None = None,
        chat_template: str | None = None,
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or a list of them, as ``generate`` does; the tokenizer's chat template makes prompts.

        A conversation is a list of ``{"role": "user", "content": "..."}``. ``chat_template`` takes the place of the
        tokenizer's own; ``chat_template_kwargs`` are for it (``{"enable_thinking": False}``). Raises ``ArgumentError``
        for a tokenizer without a template, and with the template's own words where it refuses.
        """
        given = {
            "chat_template": chat_template,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        ids = read_chat(messages, self.tokenizer, given | (chat_template_kwargs or {}))
        return self.generate(ids, params, salt=salt, progress=progress)

    @own_keywords("LLM.stream")
    def stream(
        self,
        prompts: Prompts,
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        salt: str | Seq[str] = "",
    ) -> Iterator[Token]:
        """Yield each token as soon as it is sampled; ``token.request`` is the number of its prompt, from 0.

        Raises as ``generate`` does, at once; a failed request's last token has the finish reason "error". Closing the
        iterator, or dropping it, aborts the rest.
        """
        tokens = self._stream(read_all(prompts, params, salt, self.tokenizer, self.vocabulary))
        next(tokens)  # started here, so that it cleans up even if no token is ever asked for
        return tokens  # type: ignore[return-value]

    @own_keywords("LLM.add_request")
    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | int | None = None,
        salt: str = "",
        pieces: bool = True,
    ) -> str | int:
        """Queue a request and return its id (None: one is made). ``step`` returns its tokens and its output.

        ``pieces``: the tokens come with pieces of text. Requests share cached prefixes only under an equal ``salt``.
        Raises ``RequestTooLargeError``, ``ArgumentError``.
        """
        asked = read_one(prompt, params, salt, tokenizer=self.tokenizer, vocabulary=self.vocabulary)
        return self._add(asked, request_id, self._queue, pieces)

    def step(self) -> StepOutput:
        """Compute one step. Returns tokens and outputs of requests from ``add_request``; other callers get their own.

        A step that raises fails only its requests, with the error in their outputs. Errors of ``emit`` or ``clock``
        between two steps are raised here: nothing is lost, and the next ``step`` goes on.
        """
        with self._lock:
            self._check_open()
            self._engine.advance()
            return self._queue.drain()

    def abort(self, request_id: str | int) -> bool:
        """End a request; its output comes with the next ``step``. False if it has ended already."""
        with self._lock:
            self._check_open()
            return self._engine.abort(request_id)

    def snapshot(self) -> EngineView:
        """Return the running and waiting sequences, and their blocks. ``emit`` may call it."""
        with self._lock:
            self._check_open()
            return view_of(self.scheduler, **self.totals)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefix blocks, on the device and on the host: the next prompts are computed whole.

        Returns False, and forgets nothing, while a running or swapped request holds a block: finish or abort it first.
        A file in ``prefix_dir`` stays as it is; ``close`` replaces it if anything is cached by then.
        """
        with self._lock:
            self._check_open()
            return self.manager.reset_prefix_cache()

    def memory_report(self) -> "MemoryReport":
        """Return the device's bytes by use: weights, KV, tables, workspace, headroom."""
        from minikv.engine.memory_report import memory_report

        with self._lock:
            self._check_open()
            return memory_report(self)

    def close(self) -> None:
        """Abort the remaining requests and free the memory; the model gets its attention back from the last LLM.

        Raises ``ArenaInUseError`` while the cache is still referenced: drop the objects that the error names, and close
        again.
        """
        with self._lock:
            if not self._closed:
                self._engine.clear()
                self._closed = True
                try:
                    if self.host is not None:
                        self.host.save(self.manager)
                finally:  # also where Ctrl+C ends a long save
                    if self._group is not None:
                        self._group.stop()
                    self.adapter.unbind()
                    self._faster.close()
                    self._give_back()
            else:  # what the last call could not free
                self._give_back()

    def _give_back(self) -> None:
        """Free the memory, the cache's last because the others read it."""
        if isinstance(self.graphs, DecodeGraphs):
            self.graphs.close()
        if self.host is not None:
            self.host.close()
        if self.states is not None:
            self.states.close()
        self.cache.close()

    def _stream(self, requests: list[TokenizedRequest]) -> Iterator[Token | None]:
        """Yield None once all requests are queued, then the tokens."""
        queue = OutputQueue()
        try:
            names = self._add_all(requests, queue, pieces=True)
            number = {name: place for place, name in enumerate(names)}
            left = len(names)
            yield None
            while left:
                out = self._wait(queue)
                left -= len(out.finished)
                yield from (token._replace(request=number[token.request]) for token in out.tokens)
        finally:
            self._leave(queue)

    def _add_all(self, requests: list[TokenizedRequest], queue: OutputQueue, pieces: bool) -> list[str | int]:
        """Add all requests, or none if one of them is refused."""
        with self._lock:
            self._check_open()
            for number, asked in enumerate(requests, self._added):
                self.scheduler.check(self._engine.free_name(number), asked.ids, asked.params, asked.salt)
            return [self._add(asked, None, queue, pieces) for asked in requests]

    def _add(
        self, asked: TokenizedRequest, request_id: str | int | None, queue: OutputQueue, pieces: bool
    ) -> str | int:
        with self._lock:
            self._check_open()
            name = self._engine.free_name(self._added) if request_id is None else request_id
            seed = request_seed(self._seed, self._added) if asked.params.seed is None else asked.params.seed
            self._engine.add(name, asked, seed, queue, pieces)
            self._added += 1
            return name

    def _wait(self, queue: OutputQueue) -> StepOutput:
        """Compute a step, unless another thread's step has already put outputs into ``queue``."""
        with self._lock:
            self._check_open()
            if not queue:
                self._engine.advance()
            return queue.drain()

    def _leave(self, queue: OutputQueue) -> None:
        """Abort the requests of a caller that leaves."""
        with self._lock:
            self._engine.drop(queue)

    def _check_open(self) -> None:
        if self._closed:
            raise ArgumentError("llm_closed")
