"""Readable names of paths and variables: ``cache.layers[0].keys``, a local of ``test()``. Lesson 16."""

from dataclasses import asdict, dataclass
from typing import Any

from minikv.i18n import text
from minikv.memory.retention.plain import module_of, mro, name_of
from minikv.memory.retention.release import Cuts, release_of, step
from minikv.memory.retention.roots import Root, short
from minikv.memory.retention.walk import Token, Wanted

LONGEST = 6  # parts of a chain that are shown
HIDDEN = {"cell", "root"}
UNNAMED = {"__traceback__", "tb_next", "__dict__"}


@dataclass(frozen=True)
class Holder:
    """One variable that keeps a storage alive, and the path from it to the tensor.

    ``kind``: "local", "global", "output" (IPython's Out, _ and _3), "ipython" (IPython itself), "error"
    (``sys.last_exc`` and its kin), "class", "widget", "comm", "result" (what the call returned or raised), "measured"
    (the function itself), "array" (a NumPy array), "library" (a variable of running code of Python, the notebook or an
    installed package), "loose" (an object that nothing in Python refers to) or "unseen".
    ``path`` is a Python expression where possible; ``where`` is the function, module or class; ``release`` is the
    code that releases the storage, "" where there is none.
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


def holder_of(root: Root, tokens: tuple[Token, ...], key: int, wanted: Wanted, cuts: Cuts) -> Holder:
    """The holder of storage ``key`` that is reached from ``root`` over ``tokens``."""
    kind, name, where, used = root.kind, root.name, root.where, tokens
    comm = next((index for index, token in enumerate(tokens) if token == ("attr", "comms")), None)
    if kind == "widget" and tokens:
        name, where, used = name_of(type(step(root.held, tokens[0]))), "", tokens[1:]
    elif comm is not None and len(tokens) > comm + 1:
        return _comm(root.held, tokens, comm + 2)
    elif kind in ("class", "ipython"):
        name = f"{where}.{name}"
    return Holder(kind, chain(name, used), where, release_of(root, tokens, key, wanted, cuts))


def _comm(held: Any, tokens: tuple[Token, ...], first: int) -> Holder:
    """An open comm of the notebook, or the widget behind it, by whichever variable the list of comms was reached."""
    for token in tokens[:first]:
        held = step(held, token)
    comm, used = held, tokens[first:]
    for place, token in enumerate(used):
        held = step(held, token)
        if any(
            name_of(base) == "Widget" and module_of(base).startswith("ipywidgets.")
            for base in mro(type(held))
        ):
            path = chain(name_of(type(held)), used[place + 1 :])
            return Holder("widget", path, "", "ipywidgets.Widget.close_all()")
    release = f"comm.get_comm_manager().comms[{tokens[first - 1][1]!r}].close()"
    return Holder("comm", chain(name_of(type(comm)), used), "", release)


def chain(name: str, tokens: tuple[Token, ...]) -> str:
    """``name`` and the path after it, cut in the middle if it has more than six parts."""
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
    return repr(value) if type(value) in (int, float, bool, type(None)) else name_of(type(value))
