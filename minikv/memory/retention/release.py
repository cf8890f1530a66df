"""The statement that releases a storage, as typed in the notebook or function where the variable is. Lesson 16.

The statement must work: one that cuts the path at one place is given only if no other path leads from the same variable
to the storage, and only where an assignment does what it seems to. Otherwise the statement deletes the variable itself.
"""

import functools
import sys
from typing import Any

import torch

from minikv.memory.retention.caches import cache_kind
from minikv.memory.retention.plain import found_in, mro, name_of, own_dict
from minikv.memory.retention.roots import Root
from minikv.memory.retention.walk import Token, Wanted, children, paths_from

MOST_CUTS = 50  # places that a report checks: each takes a search
Cuts = dict[tuple[int, int, int], dict[int, Any]]  # (root, owner, held): what is still reached without it
Way = list[tuple[Any, Token, Any]]  # (owner, token, what it leads to)
PARTS = ("_parameters", "_buffers", "_modules")


def release_of(root: Root, tokens: tuple[Token, ...], key: int, wanted: Wanted, cuts: Cuts) -> str:
    """The code that releases storage ``key``, to which ``tokens`` lead from ``root``; "" where there is none."""
    if root.kind == "output":
        return f"%xdel {_output(root, tokens)}"
    if root.kind == "error":
        return _error(root, tokens)
    if root.kind == "widget":
        return "ipywidgets.Widget.close_all()"
    if root.kind not in ("local", "global", "class") or not root.code:
        return ""
    way = _way(root.held, tokens)
    codes = _codes(root.code, way)
    found = _cut(root, tokens, way, codes)
    if found is not None:
        place, statement = found
        owner, _, held = way[place]
        if statement.endswith(("cache_clear()", "zero_grad()")) or _lets_go(
            root, owner, held, key, wanted, cuts
        ):
            return statement
    if issubclass(type(root.held), functools._lru_cache_wrapper):
        return f"{root.code}.cache_clear()"
    return f"{root.code} = None" if root.kind == "class" else f"del {root.code}"


def _cut(root: Root, tokens: tuple[Token, ...], way: Way, codes: list[str | None]) -> tuple[int, str] | None:
    """The place to cut, and the statement: a memo of ``lru_cache``, a cache object, a gradient, or a module's part."""
    best: tuple[int, str] | None = None
    for place, (owner, token, held) in enumerate(way):
        code = codes[place]
        if code is None:
            break
        if issubclass(type(held), functools._lru_cache_wrapper):
            return place, f"{code}.cache_clear()"
        if cache_kind(root.held) is None and cache_kind(held) is not None:
            return (place, f"{code} = None") if _assignable(owner, token) else None
        if issubclass(type(owner), torch.nn.Module):
            if token[1] in own_dict(owner).get("_parameters", ()):
                if tokens[place + 1 :] == (("attr", "grad"),):
                    return place, f"{_model(root, way[:place], codes)}.zero_grad()"
                best = None
            elif str(token[1]).endswith("_hooks") and issubclass(type(held), dict):
                best = place, f"{code}.clear()"
            else:
                best = (place, f"{code} = None") if _assignable(owner, token) else None
    if way and len(way) == len(tokens) and issubclass(type(way[-1][0]), torch.Tensor) and codes[-1]:
        return len(way) - 1, f"{codes[-1]} = None"  # its gradient
    return best


def _model(root: Root, above: Way, codes: list[str | None]) -> str | None:
    """The outermost module that contains the last one of the path ``above``."""
    place = len(above)
    while place and above[place - 1][1][1] in own_dict(above[place - 1][0]).get("_modules", ()):
        place -= 1
    return codes[place - 1] if place else root.code


def _assignable(owner: Any, token: Token) -> bool:
    """Whether assigning None in the place of ``token`` releases what ``owner`` holds there."""
    kind, name = token
    if kind == "item":
        return type(owner) in (dict, list) or _is_output(owner)
    if kind != "attr" or _is_output(owner):
        return _is_output(owner) and name in list(dict.keys(owner))
    setter = found_in(type(owner), "__setattr__")
    if setter is not object.__setattr__ and setter is not torch.nn.Module.__setattr__:
        return False
    return not hasattr(type(found_in(type(owner), str(name))), "__set__")


def _is_output(owner: Any) -> bool:
    """Whether it is an output of transformers, with attributes that are also entries: setting the entry sets both."""
    return issubclass(type(owner), dict) and any(name_of(base) == "ModelOutput" for base in mro(type(owner)))


def _lets_go(root: Root, owner: Any, held: Any, key: int, wanted: Wanted, cuts: Cuts) -> bool:
    """Whether nothing else below ``root`` leads to the storage, once ``owner`` no longer refers to ``held``."""
    names = [token[1] for token, child in children(owner) if child is held and token[0] in ("attr", "item")]
    if any(name is not names[0] and name != names[0] for name in names):
        return False  # the owner has it under two names
    edge = (id(root.held), id(owner), id(held))
    if edge not in cuts:
        if len(cuts) >= MOST_CUTS:
            return False
        own = own_dict(owner)
        spaces = [owner, own, *(own.get(part) for part in PARTS)]
        cuts[edge] = paths_from(root.held, wanted, (frozenset(map(id, spaces)), id(held)))
    return key not in cuts[edge]


def _way(held: Any, tokens: tuple[Token, ...]) -> Way:
    way: Way = []
    for token in tokens:
        below = step(held, token)
        if below is None:
            break
        way.append((held, token, below))
        held = below
    return way


def _codes(code: str, way: Way) -> list[str | None]:
    """The Python expression of each place of the path, None from the first place without one."""
    codes: list[str | None] = []
    here: str | None = code
    for owner, (kind, name), _ in way:
        if here is None:
            pass
        elif kind == "item" and type(name) in (str, int, bool):
            here = f"{here}[{name!r}]"
        elif kind == "attr" and _is_output(owner):
            here = f"{here}[{name!r}]" if name in list(dict.keys(owner)) else None
        elif kind == "attr" and str(name).isdigit():
            listed = {name_of(base) for base in mro(type(owner))} & {"Sequential", "ModuleList"}
            here = f"{here}[{name}]" if listed else None
        elif kind == "attr" and str(name).isidentifier() and not str(name).startswith("__"):
            here = f"{here}.{name}"
        else:
            here = None
        codes.append(here)
    return codes


def _output(root: Root, tokens: tuple[Token, ...]) -> str:
    """The numbered name of an IPython output: ``%xdel`` of it empties Out, _ and the hidden copies too."""
    module = sys.modules.get(root.where)
    outs = own_dict(module).get("_oh")
    outs = outs if type(outs) is dict else {}
    if root.held is outs and tokens:
        return f"_{tokens[0][1]}"
    return next((f"_{number}" for number, value in outs.items() if value is root.held), root.name)


def _error(root: Root, tokens: tuple[Token, ...]) -> str:
    """The statement for an error. Some holders of a traceback have no name: cutting it short empties all of them."""
    last = own_dict(sys).get("last_traceback")
    below = [token for token in tokens if token == ("attr", "tb_next")]
    trace = root.held if root.name == "sys.last_traceback" else step(root.held, ("attr", "__traceback__"))
    straight = not tokens or tokens[0][1] in ("__traceback__", "tb_next") or tokens[0][0] == "frame"
    if below and straight:
        return f"{'sys.last_traceback' if trace is last else root.name + '.__traceback__'}.tb_next = None"
    return (
        f"{root.name} = None" if root.name == "sys.last_traceback" else "sys.last_exc = sys.last_value = None"
    )


def step(held: Any, token: Token) -> Any:
    """The object to which ``token`` leads from ``held``."""
    kind, name = token
    if kind == "item" and type(held) in (list, tuple):
        return held[name]
    if kind == "item" and type(held) is dict and type(name) in (str, int):
        return held.get(name)
    # Look the name up directly: a module list may have thousands of children.
    if kind == "attr" and issubclass(type(held), torch.nn.Module):
        own = own_dict(held)
        for part in PARTS:
            if name in own.get(part, ()):
                return own[part][name]
    return next(
        (child for found, child in children(held) if found[0] == kind and _same(found[1], name)), None
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two names are equal; a key with a class of its own is compared by identity."""
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return all(map(_same, one, other))
    return one is other or (type(one) in (str, int, bool) and type(one) is type(other) and one == other)
