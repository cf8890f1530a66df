"""Reads prompts, parameters and salts of a caller: one for all or one each, as text or as ids."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from minikv.blocks.prefix import token_array
from minikv.engine.sampling_params import SamplingParams
from minikv.errors import ArgumentError

Prompt = str | Seq[int]
Prompts = Prompt | Seq[Prompt]


@dataclass(frozen=True)
class TokenizedRequest:
    """A request with ids that the model can embed. ``text`` is the prompt's, None if it was given as ids."""

    text: str | None
    ids: list[int]
    params: SamplingParams
    salt: str


def read_all(prompts: Any, params: Any, salt: Any, tokenizer: Any, vocabulary: int) -> list[TokenizedRequest]:
    """Return a request for each of ``prompts``. Raises ``ArgumentError``, as ``read_one`` does, for any of them."""
    texts = _as_prompts(prompts)
    wishes, salts = _one_each("params", params, len(texts)), _one_each("salt", salt, len(texts))
    return [
        read_one(*each, tokenizer=tokenizer, vocabulary=vocabulary)
        for each in zip(texts, wishes, salts, strict=True)
    ]


def read_one(prompt: Any, params: Any, salt: Any, *, tokenizer: Any, vocabulary: int) -> TokenizedRequest:
    """Return the request of a text, or of ids in a list, an array or a tensor. ``params`` None are the defaults.

    Raises ``ArgumentError`` for a prompt that the tokenizer cannot read or the model cannot embed.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise ArgumentError("request_params", value=type(params).__name__)
    if params.logprobs is not None and params.logprobs > vocabulary:
        raise ArgumentError("out_of_range", what="logprobs", value=params.logprobs, low=-1, high=vocabulary)
    text = prompt if isinstance(prompt, str) else None
    if tokenizer is None and (text is not None or params.stop):
        raise ArgumentError("llm_no_tokenizer", what="prompt" if text is not None else "stop")
    ids = token_array(_listed(prompt) if text is None else tokenizer(text)["input_ids"]).tolist()
    for token in ids:
        if not 0 <= token < vocabulary:
            raise ArgumentError("llm_token", token=token, last=vocabulary - 1)
    return TokenizedRequest(text, ids, _read_changes(params, tokenizer, vocabulary), salt)


def read_chat(messages: Any, tokenizer: Any, template: dict[str, Any]) -> list[list[int]]:
    """Return the ids of a conversation, or of a list of them, by the tokenizer's chat template.

    A conversation is a list of {"role": ..., "content": ...}. Raises ``ArgumentError`` for another thing, and without a
    template.
    """
    if tokenizer is None:
        raise ArgumentError("llm_no_tokenizer", what="messages")
    if not (getattr(tokenizer, "chat_template", None) or template["chat_template"]):
        raise ArgumentError("llm_no_chat_template", name=getattr(tokenizer, "name_or_path", ""))
    one = isinstance(messages, list | tuple) and messages and isinstance(messages[0], dict)
    conversations = [messages] if one else messages
    if not isinstance(conversations, list | tuple) or not all(map(_is_conversation, conversations)):
        raise ArgumentError("llm_messages", value=type(messages).__name__)
    options = {**template, "tokenize": True, "return_dict": False}
    try:
        return [list(tokenizer.apply_chat_template(list(each), **options)) for each in conversations]
    except Exception as error:  # the template's own: it raises jinja's errors, and says its reasons in them
        raise ArgumentError("llm_chat_template", reason=str(error)) from error


def _is_conversation(messages: Any) -> bool:
    return (
        isinstance(messages, list | tuple)
        and bool(messages)
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages)
    )


def _read_changes(params: SamplingParams, tokenizer: Any, vocabulary: int) -> SamplingParams:
    """Return ``params`` with the texts of ``bad_words`` as ids, each as it stands and behind a space."""
    if not params.adjusts:
        return params
    words: dict[tuple[int, ...], None] = {}
    for word in params.bad_words or ():
        if not isinstance(word, str):
            words[tuple(word)] = None
        elif tokenizer is None:
            raise ArgumentError("llm_no_tokenizer", what="bad_words")
        else:
            spelled = (
                tokenizer(f"{before}{word.lstrip()}", add_special_tokens=False) for before in ("", " ")
            )
            words |= {tuple(each["input_ids"]): None for each in spelled if each["input_ids"]}
    biased: Any = params.logit_bias
    named = {token for word in words for token in word} | {token for token, _ in biased}
    for token in named:
        if token >= vocabulary:
            raise ArgumentError("llm_token", token=token, last=vocabulary - 1)
    return replace(params, bad_words=tuple(words))


def _as_prompts(prompts: Any) -> list[Prompt]:
    """Return ``prompts`` as a list: a text or a list of ids is one prompt. Arrays and tensors count as lists."""
    prompts = _listed(prompts)
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise ArgumentError("llm_prompts", value=type(prompts).__name__)
    items = [_listed(each) for each in prompts]
    several = [isinstance(each, str | list | tuple) for each in items]
    if any(several) and not all(several):
        raise ArgumentError("llm_prompts", value="a list that mixes ids with prompts")
    return items if all(several) else [items]


def _one_each(what: str, values: Any, count: int) -> list:
    """Return ``values`` for each of ``count`` prompts: a list has one each, anything else is for all."""
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise ArgumentError("llm_one_each", what=what, given=len(values), count=count)
    return list(values)


def _listed(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values
