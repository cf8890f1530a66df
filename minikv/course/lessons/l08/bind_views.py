"""Exercise 08.5: bind the views of one cache tensor to the attention modules."""

from types import SimpleNamespace

import torch

from minikv.course.exercise import Exercise, Misconception


def bind_views(kv_cache, modules) -> int:
    found = [module for module in modules if hasattr(module, "k_cache") and hasattr(module, "v_cache")]
    if len(found) != kv_cache.shape[1]:
        raise ValueError(f"{len(found)} modules for {kv_cache.shape[1]} layers")
    for layer, module in enumerate(found):
        module.k_cache, module.v_cache = kv_cache[0, layer], kv_cache[1, layer]
    return len(found)


def bind_copies(kv_cache, modules):
    return bind_views(kv_cache.clone(), modules)


def bind_counts_all(kv_cache, modules):
    """Counts a layer for every module, also for those without a cache."""
    found = [module for module in modules if hasattr(module, "k_cache") and hasattr(module, "v_cache")]
    if len(found) != kv_cache.shape[1]:
        raise ValueError
    for layer, module in enumerate(modules):
        if module in found:
            place = min(layer, kv_cache.shape[1] - 1)
            module.k_cache, module.v_cache = kv_cache[0, place], kv_cache[1, place]
    return len(found)


def bind_k_twice(kv_cache, modules):
    count = bind_views(kv_cache, modules)
    for module in modules:
        if hasattr(module, "v_cache") and hasattr(module, "k_cache"):
            module.v_cache = module.k_cache
    return count


def bind_layer_first(kv_cache, modules):
    """Takes ``kv_cache[layer, 0]``, as if the layers came before K and V."""
    found = [module for module in modules if hasattr(module, "k_cache") and hasattr(module, "v_cache")]
    if len(found) != kv_cache.shape[1]:
        raise ValueError
    flat = kv_cache.flatten(0, 1)
    for layer, module in enumerate(found):
        module.k_cache, module.v_cache = flat[2 * layer], flat[2 * layer + 1]
    return len(found)


def bind_unchecked(kv_cache, modules):
    """Does not check, like the public guides: with too few modules, the last layers are bound to no module."""
    found = [module for module in modules if hasattr(module, "k_cache") and hasattr(module, "v_cache")]
    for layer, module in enumerate(found[: kv_cache.shape[1]]):
        module.k_cache, module.v_cache = kv_cache[0, layer], kv_cache[1, layer]
    return min(len(found), kv_cache.shape[1])


def bind_then_raise(kv_cache, modules):
    """Raises at the module without a layer, or at the end; earlier modules are already bound."""
    count = bind_unchecked(kv_cache, modules)
    found = sum(hasattr(module, "k_cache") and hasattr(module, "v_cache") for module in modules)
    if count != kv_cache.shape[1] or count != found:
        raise ValueError
    return count


def bind_half(kv_cache, modules):
    """Takes a module with ``k_cache`` alone for one that caches."""
    found = [module for module in modules if hasattr(module, "k_cache")]
    if len(found) != kv_cache.shape[1]:
        raise ValueError
    for layer, module in enumerate(found):
        module.k_cache, module.v_cache = kv_cache[0, layer], kv_cache[1, layer]
    return len(found)


def use(fn, layers: int, blocks: int, modules: list[str]):
    """Return what can be observed: the result or the refusal; the layer of K and V that each module reads; the cache.

    ``modules`` says what each has: "kv" both attributes, "k" only ``k_cache``, "-" neither.
    """
    kv_cache = torch.arange(2.0 * layers * blocks * 4 * 2 * 3).view(2, layers, blocks, 4, 2, 3)
    before = kv_cache.clone()
    made = []
    for kind in modules:
        names = {"kv": ("k_cache", "v_cache"), "k": ("k_cache",), "-": ()}[kind]
        made.append(SimpleNamespace(**dict.fromkeys(names)))
    try:
        answer = fn(kv_cache, made)
    except ValueError:
        answer = "ValueError"
    if not torch.equal(kv_cache, before):
        return answer, "kv_cache was changed"
    # Every number of the cache changes now: a view shows the change, a copy does not.
    kv_cache += 1 + kv_cache.numel()
    seen = [
        tuple(_mark(getattr(module, name, None), kv_cache) for name in ("k_cache", "v_cache"))
        for module in made
    ]
    return answer, seen


def _mark(tensor, kv_cache: torch.Tensor) -> str:
    if not isinstance(tensor, torch.Tensor):
        return "-"
    for which, name in enumerate("kv"):
        for layer, view in enumerate(kv_cache[which]):
            if tensor.dtype == view.dtype and torch.equal(tensor, view):
                return f"{name}[{layer}] {list(view.shape)}"
    kind = "view" if tensor.untyped_storage().data_ptr() == kv_cache.untyped_storage().data_ptr() else "copy"
    return f"another {kind} {list(tensor.shape)}"


def draw_binds(rng) -> list[dict]:
    """Draw models with other modules between the attention modules; in a third the counts do not match."""
    cases = []
    for i in range(36):
        layers = 2 + i // 9
        attention = layers + (rng.choice([-1, 1]) if i % 3 == 2 else 0)
        modules = ["kv"] * attention + ["-"] * (1 + i % 3) + ["k"] * (i % 2)
        rng.shuffle(modules)
        cases.append({"layers": layers, "blocks": rng.randint(2, 5), "modules": ["-", *modules]})
    return cases


BIND = Exercise(
    id="08.5",
    minutes=5,
    name="bind_views",
    signature=("layers", "blocks", "modules"),
    cases=draw_binds,
    reference=bind_views,
    drive=use,
    misconceptions=(
        Misconception("copies", bind_copies),
        Misconception("counts_all", bind_counts_all),
        Misconception("k_twice", bind_k_twice),
        Misconception("layer_first", bind_layer_first),
        Misconception("unchecked", bind_unchecked),
        Misconception("then_raises", bind_then_raise),
        Misconception("k_alone", bind_half),
    ),
)
