"""Keywords of vLLM and transformers: a call with one of them raises an error that names minikv's own keyword.

If minikv has none, the error says what works instead. The same holds for attributes of their objects.
"""

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

from minikv.errors import Hint, KeywordError, NoAttributeError

P = ParamSpec("P")
T = TypeVar("T")

RENAMED = {
    "bad_words_ids": "bad_words",
    "conversation": "messages",
    "cpu_kv_cache_bytes": "cpu_kv_bytes",
    "device_map": "device",
    "eos_token_id": "stop_token_ids",
    "gpu_memory_utilization": "utilization",
    "inputs": "prompts",
    "input_ids": "prompts",
    "kv_cache_dtype": "kv_dtype",
    "kv_cache_memory_bytes": "kv_bytes",
    "kvcache_block_size": "block_size",
    "logits_processor": "logits_processors",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_num_batched_tokens": "max_batched_tokens",
    "min_new_tokens": "min_tokens",
    "num_gpu_blocks_override": "num_blocks",
    "num_kvcache_blocks": "num_blocks",
    "num_return_sequences": "n",
    "prompt_token_ids": "prompts",
    "sampling_params": "params",
    "stop_strings": "stop",
    "tensor_parallel_size": "tp",
    "top_logprobs": "logprobs",
    "torch_dtype": "dtype",
    "use_tqdm": "progress",
}
"""{their keyword: the keyword here that means the same}."""

EXPLAINED = {
    "beam_search": "best_of early_stopping length_penalty num_beams use_beam_search",
    "allowed_tokens": "allowed_token_ids prefix_allowed_tokens_fn",
    "chunked_prefill": "enable_chunked_prefill long_prefill_token_threshold",
    "cpu_blocks": "num_cpu_blocks cpu_kv_cache swap_space",
    "cpu_offload": "cpu_offload_gb offload_folder",
    "do_sample": "do_sample",
    "lora": "enable_lora lora_request max_loras",
    "max_length": "max_length max_seq_len max_seq_len_to_capture",
    "min_length": "min_length",
    "no_repeat_ngrams": "no_repeat_ngram_size",
    "pipeline": "pipeline_parallel_size data_parallel_size",
    "prefix_caching": "enable_prefix_caching",
    "prompt_logprobs": "prompt_logprobs",
    "quantization": "quantization load_in_8bit load_in_4bit quantization_config",
    "special_tokens": "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output",
    "speculation": "speculative_config speculative_model num_speculative_tokens assistant_model "
    "prompt_lookup_num_tokens",
    "stopping_criteria": "stopping_criteria",
    "structured": "structured_outputs guided_decoding guided_json guided_regex guided_choice guided_grammar "
    "response_format",
    "trust_remote_code": "trust_remote_code",
}
"""{a sentence of ``messages/keywords.toml``: the keywords that it answers}."""

ATTRIBUTES = {
    "LLM": {
        "beam_search": "beam_search",
        "embed": "pooling",
        "encode": "pooling",
        "score": "pooling",
        "get_tokenizer": "get_tokenizer",
        "llm_engine": "llm_engine",
        "sleep": "sleep",
        "wake_up": "sleep",
    },
    "RequestOutput": {
        "outputs": "outputs",
        "request_id": "request_id",
        "num_cached_tokens": "num_cached_tokens",
        "metrics": "metrics",
    },
    "Completion": {"index": "index", "stop_reason": "stop_reason"},
}
"""{a class here: {an attribute that its like has elsewhere: a sentence of ``messages/keywords.toml``}}."""

_SENTENCE = {word: sentence for sentence, words in EXPLAINED.items() for word in words.split()}
_CALLS: dict[str, tuple[str, ...]] = {}  # {a call: its keywords}, once its module is imported


def own_keywords(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function, method or dataclass ``name``: an unknown keyword raises an error with a sentence about it.

    The signature stays the same for ``inspect`` and for type checkers; a warning has one more frame above it.
    Raises ``KeywordError``.
    """

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        if isinstance(call, type):
            call.__init__ = decorate(call.__init__)  # type: ignore[misc]
            return call
        own = tuple(word for word in inspect.signature(call).parameters if word != "self")
        _CALLS[name] = own

        @functools.wraps(call)
        def checked(*args: P.args, **given: P.kwargs) -> T:
            for word in given:
                if word not in own:
                    raise _refusal(name, own, word)
            return call(*args, **given)

        return checked

    return decorate


def no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error that ``owner.__getattr__`` raises for ``name``."""
    kind = type(owner).__name__
    sentence = ATTRIBUTES.get(kind, {}).get(name)
    if sentence is None:
        return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    return NoAttributeError("no_attribute", kind=kind, name=name, hint=Hint(f"keywords.{sentence}"))


def _refusal(call: str, own: tuple[str, ...], word: str) -> KeywordError:
    if word in _SENTENCE:
        return KeywordError(
            "keyword_explained", call=call, name=word, hint=Hint(f"keywords.{_SENTENCE[word]}")
        )
    here = RENAMED.get(word, word)
    home = call if here in own else next((other for other, words in _CALLS.items() if here in words), None)
    if home is not None:
        return KeywordError("keyword_here", call=call, name=word, home=home, here=here)
    close = get_close_matches(word, own, n=1)
    if close:
        return KeywordError("keyword_close", call=call, name=word, close=close[0])
    return KeywordError("keyword_unknown", call=call, name=word, known=", ".join(own))
