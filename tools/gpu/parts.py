"""What there is to run: the tests marked ``gpu``, the recorded traces, every benchmark, the lessons.

A later issue adds a part by adding a file: a test that is marked ``gpu``, or ``benchmarks/NAME.py`` that takes
``--json FILE`` and gives its rows to ``benchmarks.report.publish`` one by one. Lessons count as soon as one of their
cells has the tag ``hardware`` or ``timing``.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

RESULTS = "benchmarks/results"
# Seconds until a run has said better; what is not here is taken for long.
EXPECTED_S = {"allocator-traces": 40, "lessons": 180, "startup": 60, "caching_allocator": 30, "blocks": 30}
UNKNOWN_S = 300


@dataclass(frozen=True)
class Part:
    """One thing to run in under 9 minutes. It writes ``result`` (a name in the folder of results) row by row."""

    name: str
    kind: str  # "tests", "traces", "benchmark", "lessons"
    result: str
    files: tuple[str, ...]  # what its figures rest on, with everything that these import
    expected_s: int

    def command(self, json_file: Path, files: tuple[str, ...]) -> list[str]:
        """What follows ``python -m``; ``files`` are those of ``self.files`` that can be loaded here."""
        if self.kind == "tests":
            plugin = ["-p", "tools.gpu.record_tests", "--gpu-json", str(json_file)]
            return ["pytest", *files, "-m", "gpu", "-q", "-p", "no:cacheprovider", *plugin]
        module = {"traces": "tools.gpu.traces", "lessons": "tools.gpu.lessons"}.get(self.kind)
        return [module or f"benchmarks.{Path(self.files[0]).stem}", "--json", str(json_file)]


def all_parts(root: Path) -> list[Part]:
    """The tests first, then the rest; within each the cheapest first, by the last run's time where one is known."""
    from tools.gpu.results import seconds_of

    def part(name: str, kind: str, files: list[str]) -> Part:
        stem = {"tests": name.replace("-", "_"), "traces": "allocator_traces"}.get(kind, name)
        result = f"{stem}.cuda.json"
        known = seconds_of(root / RESULTS / result)
        return Part(name, kind, result, tuple(files), known or EXPECTED_S.get(name, UNKNOWN_S))

    groups: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if is_gpu_test(path):
            name = path.relative_to(root / "tests").parts[0].removesuffix(".py")
            groups.setdefault(f"tests-{name}", []).append(str(path.relative_to(root)))
    tests = [part(name, "tests", files) for name, files in groups.items()]
    rest = [
        part(path.stem, "benchmark", [f"benchmarks/{path.name}"])
        for path in sorted((root / "benchmarks").glob("*.py"))
        if is_program(path)
    ]
    if (root / "tools/gpu/traces.py").is_file():
        rest.append(part("allocator-traces", "traces", ["tools/gpu/traces.py"]))
    lessons = [str(path.relative_to(root)) for path in measured_lessons(root)]
    if lessons:
        rest.append(part("lessons", "lessons", ["tools/gpu/lessons.py", *lessons]))
    return [*_cheapest_first(tests), *_cheapest_first(rest)]


def _cheapest_first(parts: list[Part]) -> list[Part]:
    return sorted(parts, key=lambda part: (part.expected_s, part.name))


def is_gpu_test(path: Path) -> bool:
    """Whether the file names ``pytest.mark.gpu`` in its code (not in a string)."""
    marks = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.Attribute) and node.attr == "gpu")
    return any(isinstance(node.value, ast.Attribute) and node.value.attr == "mark" for node in marks)


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
