"""What there is to run: a first look, the tests marked ``gpu``, the recorded traces, benchmarks, the lessons.

A later issue adds a part by adding a file: a test that is marked ``gpu``, or ``benchmarks/NAME.py`` that says
``NEEDS_GPU = True``, takes ``--json FILE`` and gives its rows to ``benchmarks.report.publish`` one by one. A benchmark
that takes long says ``GPU_PARTS = {"SECTION": ("--only", "SECTION"), ...}`` instead: a part each. Lessons count as
soon as one of their cells has the tag ``hardware`` or ``timing``.
"""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu.sources import installed

RESULTS = "benchmarks/results"
# What an hour with a GPU is for, most valuable first; within a line the cheapest first. What is not here comes
# before the last line, whose parts make everything slow.
ORDER = (
    ("smoke",),
    ("tests-kernels",),
    ("tests-engine", "tests-cache", "tests-memory"),
    ("kernels-decode", "kernels-quantized"),
    ("kernels-latent", "kernels-prefill", "kernels-storage"),
    ("kernels-sweep",),
    (
        *("engine-decode", "engine-host", "engine-mixed", "bandwidth"),
        *("allocator-traces", "eviction_throughput", "offload"),
    ),
    ("lessons-first",),
    ("tests-nano", "tests-course"),
    (),
    ("csan-engine", "csan-cache", "sanitizer"),
)
# Seconds until a run has said better; what is not here is taken for long.
EXPECTED_S = {
    **{"smoke": 60, "tests-kernels": 420, "tests-engine": 240, "tests-cache": 90, "tests-memory": 150},
    **{"kernels-decode": 300, "kernels-quantized": 60, "kernels-latent": 90, "kernels-prefill": 60},
    **{"kernels-storage": 30, "kernels-sweep": 240, "engine-decode": 60, "engine-host": 30, "bandwidth": 30},
    **{
        "allocator-traces": 40,
        "offload": 60,
        "eviction_throughput": 120,
        "lessons-first": 60,
        "lessons": 300,
    },
    **{"engine-mixed": 300, "engine-prefix": 300, "engine-skewed": 300, "eviction-steps": 240},
    **{"kv_bytes": 60, "malloc": 30, "tests-nano": 90},
    **{"tests-eviction": 120, "tests-course": 60, "csan-engine": 400, "csan-cache": 150, "sanitizer": 400},
}
UNKNOWN_S = 300
SMOKE_LIMIT_S = 120  # it takes a minute; a cold disk may take another
SANITIZER = "tests/kernels/test_sanitizer_gpu.py"
CSAN = ("engine", "cache")  # rooms whose tests run again under torch's sanitizer of streams
FIRST_LESSONS = ("10", "11a", "16", "GPU")
WORKERS = (
    8  # of the kernels' tests: they compile for minutes; what compares memory or time stays in one process
)


@dataclass(frozen=True)
class Part:
    """One thing to run in under 9 minutes. It writes ``result`` (a name in the folder of results) row by row.

    ``arguments`` follow the benchmark's name, ``variables`` are set in its environment.
    """

    name: str
    kind: str  # "smoke", "tests", "traces", "benchmark", "lessons"
    result: str
    files: tuple[str, ...]  # what its figures rest on, with everything that these import
    expected_s: int
    arguments: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def value(self) -> int:
        """Its line in ``ORDER``, from 0."""
        lines = (place for place, names in enumerate(ORDER) if self.name in names)
        return next(lines, len(ORDER) - 2)

    def commands(self, json_file: Path, files: tuple[str, ...]) -> list[list[str]]:
        """What follows ``python -m``, one process after another; ``files`` are those that can be loaded here.

        A file of tests has a process of its own, since what an earlier one left in the allocator would be counted;
        the kernels' tests share some, where pytest-xdist is installed.
        """
        if self.kind != "tests":
            named = {"smoke": "tools.gpu.smoke", "traces": "tools.gpu.traces", "lessons": "tools.gpu.lessons"}
            module = named.get(self.kind) or f"benchmarks.{Path(self.files[0]).stem}"
            return [[module, *self.arguments, "--json", str(json_file)]]
        options = ["-m", "gpu", "-q", "-p", "no:cacheprovider"]
        options += ["-p", "tools.gpu.record_tests", "--gpu-json", str(json_file)]
        if self.name == "tests-kernels":
            workers = min(WORKERS, os.cpu_count() or 1)
            return [["pytest", *files, *options, *(["-n", str(workers)] if installed("xdist") else [])]]
        return [["pytest", name, *options] for name in files]


def all_parts(root: Path) -> list[Part]:
    """Every part, by value, then the cheapest first, by the last run's time where one is known."""
    from tools.gpu.results import seconds_of

    def part(name: str, kind: str, files: list[str], **more: Any) -> Part:
        stem = {"tests": name.replace("-", "_"), "traces": "allocator_traces"}.get(kind, name)
        result = f"{stem}.cuda.json"
        known = seconds_of(root / RESULTS / result)
        return Part(name, kind, result, tuple(files), known or EXPECTED_S.get(name, UNKNOWN_S), **more)

    groups: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if is_gpu_test(path):
            name = str(path.relative_to(root))
            room = path.relative_to(root / "tests").parts[0].removesuffix(".py")
            groups.setdefault("sanitizer" if name == SANITIZER else f"tests-{room}", []).append(name)
    found = [part(name, "tests", files) for name, files in groups.items()]
    for room in CSAN:
        if f"tests-{room}" in groups:
            variables = (("TORCH_CUDA_SANITIZER", "1"),)
            found.append(part(f"csan-{room}", "tests", groups[f"tests-{room}"], variables=variables))
    for path in sorted((root / "benchmarks").glob("*.py")):
        for section, arguments in gpu_sections(path):
            name = f"{path.stem}-{section}" if section else path.stem
            found.append(part(name, "benchmark", [f"benchmarks/{path.name}"], arguments=arguments))
    for name, kind in (("smoke", "smoke"), ("allocator-traces", "traces")):
        file = f"tools/gpu/{kind}.py"
        found += [part(name, kind, [file])] if (root / file).is_file() else []
    lessons = measured_lessons(root)
    first = [path for path in lessons if path.stem.split("_")[0] in FIRST_LESSONS]
    for name, paths in (
        ("lessons-first", first),
        ("lessons", [path for path in lessons if path not in first]),
    ):
        if paths:
            files = [str(path.relative_to(root)) for path in paths]
            only = ("--only", *(path.stem.split("_")[0] for path in paths))
            found.append(part(name, "lessons", ["tools/gpu/lessons.py", *files], arguments=only))
    return sorted(found, key=lambda part: (part.value, part.expected_s, part.name))


def is_gpu_test(path: Path) -> bool:
    """Whether the file names ``pytest.mark.gpu`` in its code (not in a string)."""
    marks = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.Attribute) and node.attr == "gpu")
    return any(isinstance(node.value, ast.Attribute) and node.value.attr == "mark" for node in marks)


def gpu_sections(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(section, arguments) of each part that a benchmark says it has; ("", ()) for the whole of it."""
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "NEEDS_GPU" and ast.literal_eval(node.value):
                yield "", ()
            elif node.targets[0].id == "GPU_PARTS":
                yield from ast.literal_eval(node.value).items()


def is_program(path: Path) -> bool:
    """Whether the file ends in ``if __name__ == "__main__"``."""
    tests = (node.test for node in _tree(path).body if isinstance(node, ast.If))
    return any(ast.unparse(test) == "__name__ == '__main__'" for test in tests)


def measured_lessons(root: Path) -> list[Path]:
    """The lessons with a cell whose output depends on the machine."""
    from tools.notebooks.source import read_source

    paths = sorted((root / "notebooks/src").glob("*.py"))
    return [path for path in paths if any(cell.tags for cell in read_source(path).cells)]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
