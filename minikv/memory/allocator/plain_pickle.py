"""Reads a pickle of plain containers, numbers and text, and nothing else: no class is looked up, no code is run.

``pickle`` itself would import and call whatever a file names. Here ``pickletools.genops`` only splits the file into
opcodes, and the few that plain data needs are carried out below. Any other opcode is refused by its name, and with it
every class, function and extension.
"""

import pickletools
from typing import Any

from minikv.errors import ArgumentError

VALUES = frozenset(
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8".split()
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
NEWEST = 5  # protocol of pickle
NAMING = frozenset({"GLOBAL", "INST", "STACK_GLOBAL"})  # these name what they would import
KEYS = (str, int)  # of a dict: hashing these runs no foreign code and does not recurse


class _Mark:
    """Marks the begin of a list, tuple or dict on the stack."""


def load_plain(data: bytes, name: str) -> Any:
    """The object that ``data`` (a pickle of protocol 2 to 5) describes; ``name`` is what errors call it.

    Raises ``ArgumentError`` ("snapshot_refused") on any opcode beyond plain data, and on a damaged file.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    texts = ["", ""]  # the last two, which STACK_GLOBAL would join to a name
    try:
        for opcode, found, _ in pickletools.genops(data):
            argument: Any = found
            code = opcode.name
            if code in VALUES:
                stack.append(argument)
                if isinstance(argument, str):
                    texts = [texts[1], argument]
            elif code in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif code in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif code == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif code in CONSTANTS:
                stack.append(CONSTANTS[code])
            elif code == "MARK":
                stack.append(_Mark)
            elif code == "EMPTY_DICT":
                stack.append({})
            elif code == "EMPTY_LIST":
                stack.append([])
            elif code == "EMPTY_TUPLE":
                stack.append(())
            elif code in TUPLES:
                items = stack[-TUPLES[code] :]
                del stack[-TUPLES[code] :]
                stack.append(tuple(items))
            elif code == "TUPLE":
                stack.append(tuple(_since_mark(stack)))
            elif code == "APPEND":
                last = stack.pop()
                _target(stack, list).append(last)
            elif code == "APPENDS":
                items = _since_mark(stack)
                _target(stack, list).extend(items)
            elif code == "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(_target(stack, dict), [key, value])
            elif code == "SETITEMS":
                items = _since_mark(stack)
                _set_items(_target(stack, dict), items)
            elif code == "STOP":
                (result,) = stack
                return result
            elif (code == "PROTO" and argument <= NEWEST) or code == "FRAME":
                continue
            else:
                name_of = ".".join(texts) if code == "STACK_GLOBAL" else str(argument or "").replace(" ", ".")
                named = f"{name_of[:80]} ({code})" if code in NAMING else code
                raise ArgumentError("snapshot_refused", name=name, found=named)
    except ArgumentError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        # Errors of genops, and of opcodes that do not fit the stack: the file is cut off or not a pickle.
        told = f"a damaged pickle ({type(error).__name__})"
        raise ArgumentError("snapshot_refused", name=name, found=told) from None
    raise ArgumentError("snapshot_refused", name=name, found="no end")


def _since_mark(stack: list[Any]) -> list[Any]:
    start = len(stack) - 1
    while stack[start] is not _Mark:
        if start == 0:
            raise IndexError
        start -= 1
    items = stack[start + 1 :]
    del stack[start:]
    return items


def _target(stack: list[Any], kind: type) -> Any:
    if type(stack[-1]) is not kind:
        raise TypeError
    return stack[-1]


def _set_items(target: dict[Any, Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in KEYS:
            raise TypeError
        target[key] = value
