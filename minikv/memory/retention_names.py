"""Paths and variables in the words of a person: ``cache.layers[0].keys``, a local of ``test()``. Lesson 16."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from minikv.i18n import text
from minikv.memory.retention_caches import cache_kind
from minikv.memory.retention_roots import Root, short
from minikv.memory.retention_walk import Token, children

LONGEST = 6  # parts of a chain that are shown
HIDDEN = {"cell", "root"}
UNNAMED = {"__traceback__", "tb_next", "__dict__"}


@dataclass(frozen=True)
class Holder:
    """One variable that keeps a storage alive, and the way from it to the tensor.

    ``kind``: "local", "global", "output" (IPython's Out, _ and _3), "ipython" (IPython itself), "error"
    (``sys.last_exc`` and its kin), "class", "widget", "result" (what the call returned or raised), "measured" (the
    function itself), "array" (a NumPy array), "loose" (an object that nothing in Python refers to) or "unseen".
    ``path`` reads as Python where it can; ``where`` is the function, module or class; ``release`` is the code that
    lets go, "" where there is none.
    """

    kind: str
    path: str
    where: str
    release: str

    def text(self, lang: str = "en") -> str:
        """One phrase that names it."""
        return text(f"retention.holder_{self.kind}", lang, path=self.path, where=self.where)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def holder_of(root: Root, tokens: tuple[Token, ...]) -> Holder:
    """The holder that ``root`` and the path of ``tokens`` below it make."""
    kind, name, where, held, used = root.kind, root.name, root.where, root.held, tokens
    comm = next((index for index, token in enumerate(tokens) if token == ("attr", "comms")), None)
    if kind == "widget" and tokens:
        held, used = _step(held, tokens[0]), tokens[1:]
        name = type(held).__name__
    elif comm is not None and kind in ("global", "class") and len(tokens) > comm + 1:
        for token in tokens[: comm + 2]:
            held = _step(held, token)
        kind, name, where, used = "comm", type(held).__name__, "", tokens[comm + 2 :]
    elif kind in ("class", "ipython"):
        name = f"{where}.{name}"
    return Holder(kind, chain(name, used), where, _release(kind, name, held, used))


def chain(name: str, tokens: tuple[Token, ...]) -> str:
    """``name`` and the path behind it, cut in the middle where it has more than six parts."""
    parts = [name]
    for token in tokens:
        word = _word(token)
        if word.startswith((".", "[", "(")):
            parts[-1] += word
        elif word:
            parts.append(word)
    if len(parts) > LONGEST:
        parts = [*parts[:2], "...", *parts[-(LONGEST - 3) :]]
    return " -> ".join(parts)


def _word(token: Token) -> str:
    kind, value = token
    if kind in HIDDEN or (kind == "attr" and value in UNNAMED):
        return ""
    if kind == "attr":
        name = str(value)
        return f"[{name}]" if name.isdigit() else f".{name}"
    if kind == "item":
        return f"[{_key(value)}]"
    if kind == "closure":
        return f"closure of {short(value[0])}(): {value[1]}"
    if kind == "default":
        return f"default of {short(value)}()"
    if kind == "frame":
        return f"frame {short(value)}()"
    if kind == "local":
        return f"{value}"
    if kind == "saved":
        return f"autograd {value}"
    if kind == "base":
        return ".base"
    return "{...}" if kind in ("element", "key") else ""


def _key(value: Any) -> str:
    if type(value) is str:
        return repr(value if len(value) <= 24 else value[:21] + "...")
    return repr(value) if type(value) in (int, float, bool, type(None)) else type(value).__name__


def _step(held: Any, token: Token) -> Any:
    """What ``token`` leads to from ``held``."""
    kind, name = token
    if kind == "item" and type(held) in (list, tuple):
        return held[name]
    if kind == "item" and type(held) is dict and type(name) in (str, int):
        return held.get(name)
    if kind == "attr" and issubclass(
        type(held), torch.nn.Module
    ):  # a list of thousands of modules is one of them
        for part in ("_parameters", "_buffers", "_modules"):
            if name in held.__dict__.get(part, ()):
                return held.__dict__[part][name]
    return next(
        (child for found, child in children(held) if found[0] == kind and _same(found[1], name)), None
    )


def _same(one: Any, other: Any) -> bool:
    """Equal names; a key that is an object of its own class is compared by identity."""
    return one is other or (issubclass(type(one), str | int) and type(one) is type(other) and one == other)


def _release(kind: str, name: str, held: Any, tokens: tuple[Token, ...]) -> str:
    """What a person would type. Up to a cache object on the way, else up to an attribute of a module."""
    if kind == "output":
        return "%reset -f out"
    if kind == "error":
        return f"del {name}"
    if kind == "widget":
        return "widget.close()"
    if kind == "comm":
        return "comm.close()"
    if kind not in ("local", "global", "class"):
        return ""
    place, item, owner = 0, held, held
    last = len(tokens)
    for place, token in enumerate(tokens):
        if cache_kind(item):
            last = place
            break
        if issubclass(type(item), torch.nn.Module):
            owner, last = item, place + 1
        item = _step(item, token)
    plain = all(token[0] in ("attr", "item") for token in tokens[:last])
    if cache_kind(item) and not cache_kind(held) and plain:
        return f"{chain(name, tokens[:last])} = None"
    if issubclass(type(owner), torch.nn.Module) and plain and not cache_kind(held):
        return f"{chain(name, tokens[:last])} = None" if last else f"del {name}"
    return f"{name} = None" if kind == "class" else f"del {name}"
