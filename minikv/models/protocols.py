"""What minikv asks of a model and of a tokenizer, for type checkers: those of transformers have it. No torch."""

from typing import Any, Protocol


class CausalLM(Protocol):
    """A causal language model of transformers in eval mode, or one that behaves like it."""

    config: Any
    training: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A forward."""

    def can_generate(self) -> bool:
        """Whether it has an output layer, so that it can name a next token."""

    def get_input_embeddings(self) -> Any:
        """The layer that embeds token ids."""

    def modules(self) -> Any:
        """All layers, as of ``torch.nn.Module``."""

    def set_attn_implementation(self, attn_implementation: Any) -> Any:
        """Switch the attention function."""


class Tokenizer(Protocol):
    """A tokenizer of transformers, or one that behaves like it."""

    def __call__(self, text: str, /) -> Any:
        """Token ids of ``text`` under the key "input_ids"."""

    def decode(
        self, token_ids: Any, /, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> Any:
        """Text of token ids."""

    def convert_ids_to_tokens(self, ids: Any, /) -> Any:
        """How tokens are written; None for an id that stands for nothing."""
