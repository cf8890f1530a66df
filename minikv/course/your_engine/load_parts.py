"""Makes callables of kept sources. That runs a learner's code, so only the child process of ``my_engine`` does it."""

import linecache
from collections.abc import Mapping
from typing import Any

from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.parts import PART_OF


def load_part(task: str, part: KeptPart) -> Any:
    """The callable that ``part`` defines, in a namespace of its own. Raises any error of its code."""
    source = f"{part.needs}\n\n\n{part.source}" if part.needs else part.source
    file = f"<your {PART_OF[task].name}, exercise {task}>"
    # Triton and tracebacks read the text from here.
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    space: dict[str, Any] = {"__name__": f"your_engine_{task.replace('.', '_')}"}
    exec(compile(source, file, "exec", dont_inherit=True), space)
    return space[part.name]


def load_parts(parts: Mapping[str, KeptPart]) -> dict[str, Any]:
    """All callables by exercise's id; parts that this minikv does not have are left out."""
    return {task: load_part(task, part) for task, part in parts.items() if task in PART_OF}
