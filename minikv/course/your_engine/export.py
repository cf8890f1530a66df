"""Exports nano and a learner's parts as one file; replaces only an earlier export. No torch, and no part runs."""

import re
from collections.abc import Mapping
from pathlib import Path

import minikv
from minikv.course.kept_file import read_bytes, write_whole
from minikv.course.your_engine.flat import Yours, flatten
from minikv.course.your_engine.kept import KeptPart, parts_path
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.errors import ConfigError
from minikv.i18n import text

WRITTEN_BY = "Written by my_engine.export() of minikv"


def export_engine(path: Path, kept: Mapping[str, KeptPart], lang: str) -> str:
    """Write the engine with the parts of ``kept`` to ``path``; return a sentence in ``lang``.

    Raises ``ConfigError`` where ``path`` exists and is no export, and where a part cannot be exported.
    """
    there = read_bytes(path)
    if there is not None and WRITTEN_BY.encode() not in there[:500]:
        raise ConfigError("export_not_ours", path=str(path))
    for task, part in kept.items():
        try:
            compile(f"{part.needs}\n{part.source}", task, "exec")
        except (SyntaxError, ValueError):  # a file that was edited by hand
            raise ConfigError(
                "parts_damaged", path=str(parts_path()), where=f"parts[{task!r}].source"
            ) from None
    yours = [
        Yours(PART_OF[task], part, f"yours, since {part.since[:10]}, exercise {task}")
        for task, part in kept.items()
    ]
    code = flatten(yours, _docstring(path.name, kept))
    write_whole(path, code)
    counts = {"yours": len(yours), "parts": len(PARTS), "lines": code.count("\n")}
    return text("my_engine.exported", lang, path=path, **counts)


def _docstring(name: str, kept: Mapping[str, KeptPart]) -> str:
    name = name if re.fullmatch(r"[\w.-]+", name) else "my_engine.py"
    mine = ", ".join(PART_OF[task].qualname for task in kept) or "none yet"
    lines = [
        "An engine for decoders of transformers: paged K and V, prefix cache, chunks, continuous batching, preemption.",
        "",
        f'    python {name} FOLDER_OR_HUB_ID "a prompt" --max-tokens 64',
        "",
        f"{WRITTEN_BY} {minikv.__version__}. It needs torch and transformers.",
        f"{len(kept)} of its {len(PARTS)} parts are yours, and marked so: {mine}.",
        "The other lines are minikv's, under the Apache License 2.0.",
        "",
    ]
    return "\n".join(lines)
