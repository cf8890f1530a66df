"""install_kv_eviction: eviction in a model's own ``generate``, until it is removed. Lessons 14 and 15.

    with install_kv_eviction(model, policy="keydiff", budget=64, n_recent=32) as eviction:
        model.generate(**inputs, max_new_tokens=200)

The model's code is not patched: it gets a cache with evicting layers, and an attention function that lets the policy
observe.
"""

import copy
from typing import Any

from transformers import GenerationConfig

from minikv.errors import ArgumentError, check_choice, check_count
from minikv.eviction.hf.attention import ATTRIBUTE, NAMES, register
from minikv.eviction.hf.cache import full_layers
from minikv.eviction.hf.handle import EvictionHandle
from minikv.eviction.hf.rotary import Rotary, find_rotary, turning_for
from minikv.eviction.hf.rules import LayerRules
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import OtherCaches, PolicyName, Positions, Scope, When
from minikv.eviction.policies.literature import policy_of
from minikv.eviction.policies.policy import Needs, Policy
from minikv.keywords import own_keywords
from minikv.models.protocols import CausalLM

# Chunked prompts while eviction is installed; ``save_pretrained`` still writes the model's own chunk size.
#
# ``generate`` reads the size of a chunk from the model's generation config, and ``save_pretrained`` writes that config
# to a file. So the installed value lies in a config of another class, which does not write it.


_OWN = "_minikv_own_chunk"  # on an installed config: the size that was there before


class ChunkedConfig(GenerationConfig):
    """A generation config with an installed ``prefill_chunk_size``."""

    def to_dict(self) -> dict[str, Any]:
        """The config without the remembered size."""
        return {name: value for name, value in super().to_dict().items() if name != _OWN}

    def save_pretrained(self, *args: Any, **options: Any) -> None:
        """Write the config as it was before the install."""
        own = copy.deepcopy(self)
        take_back_chunk(own)
        own.save_pretrained(*args, **options)


def install_chunk(config: Any, size: int) -> None:
    """Let ``config``, a model's generation config, cut prompts into chunks of ``size`` tokens.

    A config of a subclass keeps its class, and would be saved with the size.
    """
    setattr(config, _OWN, config.prefill_chunk_size)
    if type(config) is GenerationConfig:
        config.__class__ = ChunkedConfig
    config.prefill_chunk_size = size


def take_back_chunk(config: Any) -> None:
    """Undo ``install_chunk``; a config without it stays as it is."""
    if _OWN not in vars(config):
        return
    config.prefill_chunk_size = getattr(config, _OWN)
    delattr(config, _OWN)
    if type(config) is ChunkedConfig:
        config.__class__ = GenerationConfig


@own_keywords("install_kv_eviction")
def install_kv_eviction(
    model: CausalLM,
    *,
    policy: PolicyName | Policy,
    budget: int,
    n_sink: int = 4,
    n_recent: int = 32,
    evict_every: int = 1,
    scope: Scope = "layer",
    positions: Positions = "original",
    when: When = "always",
    prefill_chunk: int | None = None,
    other_caches: OtherCaches = "refuse",
) -> EvictionHandle:
    """Let the full-attention layers of ``model``, a decoder of transformers in eval mode, evict tokens.

    ``policy``: a name of ``POLICIES`` or an object; there is no default, since the best one depends on the model and on
    what is asked (lesson 14). ``budget``, ``n_sink``, ``n_recent``, ``evict_every``: in tokens,
    see ``Budget``; ``budget`` counts the heavy hitters only. ``scope``: all KV heads of a layer keep the same tokens
    ("layer"), or each its own ("head"). ``positions`` "original": a token keeps its place in the text; "reindexed":
    the kept ones count 0, 1, 2, ... as in StreamingLLM. ``when`` "prefill": only after forwards of several tokens.
    ``prefill_chunk``: ``generate`` computes a prompt in chunks of so many tokens and evicts after each, so its peak is
    bounded too. ``other_caches`` "pass": a cache of another class is used as it is, and ``eviction_report`` says so;
    "refuse": that raises.

    Sliding-window layers stay as they are: their window bounds them. On MLA all heads read one latent a token, so all
    heads keep the same tokens. A layer evicts right after its attention, so only one layer at a time holds a whole
    prompt.

    Raises ``ArgumentError``, the model unchanged: an install that is there already, here or in a model that shares
    layers or config, bad counts or names, ``prefill_chunk`` without a ``generate``, a model in training mode, without
    full-attention layers or with layers that share K and V, ``scope="head"`` on MLA, a policy that needs probabilities
    with an attention that gives none, "reindexed" where keys cannot be turned.
    """
    chosen = policy_of(policy)
    whole = Budget(n_sink, budget, n_recent, evict_every)
    for what, value, known in (
        ("scope", scope, Scope),
        ("positions", positions, Positions),
        ("when", when, When),
        ("other_caches", other_caches, OtherCaches),
    ):
        check_choice(what, value, known)
    if prefill_chunk is not None:
        check_count("prefill_chunk", prefill_chunk)
    _check_model(model)
    if prefill_chunk is not None and getattr(model, "generation_config", None) is None:
        raise ArgumentError("eviction_no_generate", kind=type(model).__name__)
    switched = _switches(model, chosen)
    latent = any(hasattr(module, "kv_b_proj") for module in model.modules())
    if latent and scope == "head":
        raise ArgumentError("eviction_head_latent", kind=type(model).__name__)
    chosen = chosen.fitted(model, whole, scope)
    budgets = _layer_budgets(model, chosen, whole)
    if not switched and len({own.budget for own in budgets if own is not None}) > 1:
        name = model.config._attn_implementation
        raise ArgumentError("eviction_uneven", policy=type(chosen).__name__, name=name)
    rotary = _rotary(model, chosen, budgets, latent) if positions == "reindexed" else None
    turning = turning_for(chosen, model, latent)
    options: dict[str, Any] = {
        "scope": scope,
        "when": when,
        "latent": latent,
        "rotary": rotary,
        "turning": turning,
        "num_layers": len(budgets),
    }
    rules = [
        None if own is None else LayerRules(chosen, own, layer=layer, **options)
        for layer, own in enumerate(budgets)
    ]
    eviction = EvictionHandle(
        model,
        chosen,
        whole,
        rules,
        scope=scope,
        positions=positions,
        other_caches=other_caches,
        switched=switched,
        undo=None,
    )
    eviction.undo = Connection(model, eviction, prefill_chunk)
    return eviction


def remove_kv_eviction(model: CausalLM) -> None:
    """Give ``model`` back as it was before ``install_kv_eviction``. Raises ``ArgumentError`` without an install."""
    eviction_of(model).remove()


def reset_eviction_scores(model: Any) -> None:
    """Reset the policy's scores of the text in the model's last cache, which keeps its tokens.

    A new ``generate`` begins with a new cache and no scores; this is for a text that continues in the same cache on
    another subject. Raises ``ArgumentError`` without an install.
    """
    eviction_of(model).reset_scores()


def eviction_of(model: Any) -> EvictionHandle:
    """The ``EvictionHandle`` that is installed in ``model``. Raises ``ArgumentError`` without an install."""
    found = getattr(model, ATTRIBUTE, None)
    if not isinstance(found, EvictionHandle):
        raise ArgumentError("eviction_not_installed", kind=type(model).__name__)
    return found


def _check_model(model: Any) -> None:
    kind = type(model).__name__
    if not hasattr(model, "set_attn_implementation") or getattr(model.config, "is_encoder_decoder", False):
        raise ArgumentError("models_not_a_decoder", kind=kind)
    # Eviction is installed here, or in a model that shares layers with this one.
    if any(hasattr(module, ATTRIBUTE) for module in model.modules()):
        raise ArgumentError("eviction_installed", kind=kind)
    if model.training:
        raise ArgumentError("models_training", kind=kind)
    config = model.config.get_text_config(decoder=True)
    shares = any(mode == "reuse" for mode in getattr(config, "kv_sharing_modes", None) or ())
    # Older releases of transformers have ``num_kv_shared_layers`` instead.
    if shares or getattr(config, "num_kv_shared_layers", False):
        raise ArgumentError("eviction_shared", kind=kind)
    if not any(full_layers(config)):
        raise ArgumentError("eviction_no_full_layer", kind=kind)


def _switches(model: Any, policy: Policy) -> bool:
    """Whether the model should call our attention function: only if we can wrap its own."""
    kind, own = type(model).__name__, model.config._attn_implementation
    if not type(model)._can_set_attn_implementation():
        raise ArgumentError("eviction_attention_fixed", kind=kind)
    if own in NAMES:
        return True
    if own in NAMES.values():
        raise ArgumentError("eviction_shared_config", kind=kind)
    if policy.needs & Needs.ATTENTION:
        raise ArgumentError("eviction_no_probs", policy=type(policy).__name__, name=own)
    return False


def _layer_budgets(model: Any, policy: Policy, whole: Budget) -> list[Budget | None]:
    """A ``Budget`` for each layer that evicts, None for the others."""
    full = full_layers(model.config.get_text_config(decoder=True))
    shares = policy.layer_budgets(whole.budget, sum(full))
    if len(shares) != sum(full) or sum(shares) != whole.budget * sum(full):
        total = whole.budget * sum(full)
        raise ArgumentError("eviction_budgets", policy=type(policy).__name__, given=list(shares), total=total)
    left = iter(shares)
    return [
        Budget(whole.n_sink, next(left), whole.n_recent, whole.evict_every) if forgets else None
        for forgets in full
    ]


def _rotary(model: Any, policy: Policy, budgets: list[Budget | None], latent: bool) -> Rotary:
    """The model's rotary embedding, if positions can be counted anew."""
    if None in budgets:
        raise ArgumentError("eviction_reindexed_layers", kind=type(model).__name__)
    shares = [budget.budget for budget in budgets if budget is not None]
    if min(shares) < max(shares):
        given = {"policy": type(policy).__name__, "least": min(shares), "most": max(shares)}
        raise ArgumentError("eviction_reindexed_uneven", **given)
    if policy.window > 1:
        name = type(policy).__name__
        raise ArgumentError("eviction_reindexed_window", policy=name, window=policy.window)
    return find_rotary(model, latent)


class Connection:
    """The hooks and settings that join a model and its ``EvictionHandle``; a copy of the model copies these."""

    def __init__(self, model: Any, eviction: EvictionHandle, prefill_chunk: int | None):
        register()
        self.model, self.switched = model, eviction.switched
        own = model.config._attn_implementation
        parts = {name: getattr(model.config, name, None) for name in getattr(model.config, "sub_configs", ())}
        of_parts = {name: part._attn_implementation for name, part in parts.items() if part is not None}
        self.attention = {"": own} | of_parts  # a vision part may have another one than the text's
        if self.switched:
            model.set_attn_implementation(NAMES[own])
        inside = (module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int))
        self.marked = [model, *inside]
        for module in self.marked:
            setattr(module, ATTRIBUTE, eviction)
        self.hooks = [
            model.register_forward_pre_hook(eviction.before, with_kwargs=True),
            model.register_forward_hook(eviction.after, with_kwargs=True, always_call=True),
        ]
        if prefill_chunk is not None:
            install_chunk(model.generation_config, prefill_chunk)

    def undo(self) -> None:
        """Give the model back as it was."""
        for hook in self.hooks:
            hook.remove()
        for module in self.marked:
            delattr(module, ATTRIBUTE)
        if self.switched:
            self.model.set_attn_implementation(self.attention)
        generation_config = getattr(self.model, "generation_config", None)
        if generation_config is not None:
            take_back_chunk(generation_config)
