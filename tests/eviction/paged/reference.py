"""A model with a dense cache of everything, and a mask over what eviction has taken: what a paged cache has to equal.

Written without the paged code: one sequence, tokens in the order of their positions, probabilities in float64 from the
whole matrix. It shares only the policies, and the rule by which the best are selected.
"""

import torch
from transformers import AttentionInterface, DynamicCache

from minikv.eviction.policies.policy import Needs, Seen, View
from minikv.eviction.policies.select import select

NAME = "test_masked"


class Masked:
    """``model`` computes one sequence; ``kept[layer]`` [H, S] says which positions each KV head may still look at."""

    def __init__(self, model, policy, budget, scope):
        AttentionInterface.register(NAME, attend)
        model.set_attn_implementation(NAME)
        self.model, self.policy, self.budget, self.scope = model, policy, budget, scope
        self.cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        self.length = 0
        self.kept, self.state, self.recent = {}, {}, {}

    def forward(self, ids):
        """The logits of the last of the tokens ``ids``."""
        places = torch.arange(self.length, self.length + len(ids))
        self.length += len(ids)
        with torch.no_grad():
            out = self.model(
                input_ids=torch.tensor([ids]), position_ids=places[None], past_key_values=self.cache,
                use_cache=True, masked=self,
            )  # fmt: skip
        return out.logits[0, -1]

    def visible(self, layer, heads):
        """[H, S]: what was kept, and all that has come since."""
        old = self.kept.get(layer, torch.zeros(heads, 0, dtype=torch.bool))
        new = torch.ones(heads, self.length - old.shape[1], dtype=torch.bool)
        self.kept[layer] = torch.cat([old, new], 1)
        return self.kept[layer]

    def see(self, layer, probs):
        """``probs`` [H, G, T, S] of this forward."""
        heads, _, queries, length = probs.shape
        policy, kept = self.policy, self.kept[layer]

        def widened(state):
            old = state.get(layer, torch.zeros(1, heads, 0))
            return torch.nn.functional.pad(old, (0, length - old.shape[2]))

        if Needs.PROBS in policy.needs:
            weight = policy.query_weight(torch.arange(queries - 1, -1, -1))
            weighed = probs if weight is None else probs * weight.view(-1, 1)
            sums = weighed.sum(2).mean(1) if policy.over_group == "mean" else weighed.sum((1, 2))
            places = torch.arange(length).expand(1, heads, length)
            seen = Seen(widened(self.state), queries, places)
            self.state[layer] = policy.observe(sums[None].float(), seen) * kept
        if Needs.WINDOW in policy.needs:
            counted = min(queries, policy.window)
            newest = probs[:, :, queries - counted :].mean((1, 2))[None].float()
            share = counted / policy.window
            self.recent[layer] = (widened(self.recent) * (1 - share) + newest * share) * kept

    def evict(self):
        """Down to the capacity, if the sequence holds more."""
        for layer, kept in self.kept.items():
            if int(kept[0].sum()) <= self.budget.capacity:
                continue
            places = torch.stack([row.nonzero().flatten() for row in kept])[None]  # [1, H, resident]

            def resident(x, places=places):
                at = places.view(*places.shape, *[1] * (x.dim() - 3)).expand(*places.shape, *x.shape[3:])
                return x.gather(2, at)

            keys, values = self.cache.layers[layer].keys, self.cache.layers[layer].values
            zeros = torch.zeros(1, *kept.shape)
            view = View(
                keys=resident(keys),
                values=resident(values),
                state=resident(self.state.get(layer, zeros)),
                window_probs=resident(self.recent[layer]) if layer in self.recent else None,
                positions=places,
                valid=torch.ones(1, places.shape[2], dtype=torch.bool),
                layer=layer,
                num_layers=len(self.cache.layers),
            )
            chosen = select(
                self.policy.score(view).expand(-1, len(kept), -1), valid=view.valid, scope=self.scope,
                n_sink=self.budget.n_sink, n_recent=self.budget.n_recent, budget=self.budget.budget,
            )  # fmt: skip
            self.kept[layer] = torch.zeros_like(kept).scatter_(1, places[0].gather(1, chosen[0]), True)
            for state in (self.state, self.recent):
                if layer in state:
                    state[layer] = state[layer] * self.kept[layer]

    def holds(self, layer, head):
        """The positions that are left."""
        return self.kept[layer][head].nonzero().flatten().tolist()


def attend(
    module, query, key, value, attention_mask, *, scaling, masked=None, sliding_window=None, softcap=None, s_aux=None,
    **kwargs,
):  # fmt: skip
    """Attention over everything, with the mask of ``masked``: ([1, T, Hq, Dv], None). A window forgets by itself."""
    layer, (query_heads, queries) = module.layer_idx, query.shape[1:3]
    repeat = query_heads // key.shape[1]
    cached = 1 if hasattr(module, "kv_b_proj") else key.shape[1]  # of latents the cache has one
    key, value = (x[0].repeat_interleave(repeat, 0).double() for x in (key, value))
    logits = query[0].double() @ key.transpose(1, 2) * scaling  # [Hq, T, S]
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    at = torch.arange(masked.length - key.shape[1], masked.length)
    asks = torch.arange(masked.length - queries, masked.length).unsqueeze(1)
    seen = at <= asks
    if sliding_window is None:
        visible = masked.visible(layer, cached)
        seen = seen & visible.repeat_interleave(query_heads // cached, 0).unsqueeze(1)
    else:
        seen = seen & (at > asks - sliding_window)
    logits = logits.masked_fill(~seen, -torch.inf)
    if s_aux is not None:
        logits = torch.cat([logits, s_aux.double().view(-1, 1, 1).expand(-1, queries, 1)], -1)
    probs = logits.softmax(-1)[..., : key.shape[1]]
    if sliding_window is None:
        masked.see(layer, probs.unflatten(0, (cached, -1)))
    return (probs @ value).transpose(0, 1)[None].to(query.dtype), None
