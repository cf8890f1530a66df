"""Which room may import which: the table of docs/architecture.md, held by reading the imports."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "minikv"

# Files at the root of the package: free to every room.
ROOT_FILES = {"errors", "extras", "i18n", "keywords", "shown", "units", "__init__"}
# A room of its own that is as free: it imports nothing of ours.
FREE_ROOMS = {"look"}

# room: the rooms of ours that it may import.
MAY_IMPORT = {
    "look": set(),
    "plan": set(),
    "blocks": set(),
    "memory": {"plan"},
    "kernels": set(),
    "cache": {"plan", "blocks", "memory", "kernels"},
    "models": {"plan", "blocks", "memory", "cache", "kernels"},
    "eviction": {"plan", "blocks", "cache", "kernels", "models"},
    "nano": {"plan"},
    "engine": {"plan", "blocks", "memory", "kernels", "cache", "models", "eviction"},
    "simulate": {"plan", "blocks", "engine"},
    "course": {
        "plan",
        "blocks",
        "memory",
        "kernels",
        "cache",
        "models",
        "eviction",
        "engine",
        "nano",
        "simulate",
    },
    "cli": {
        "plan",
        "blocks",
        "memory",
        "kernels",
        "cache",
        "models",
        "eviction",
        "engine",
        "nano",
        "simulate",
        "course",
    },
}
WITHOUT_TORCH = {"plan", "blocks", "simulate", *FREE_ROOMS, *ROOT_FILES}
# Whose files may import torch when they are imported, but for the ``__init__`` of a room; others do so in a function.
TORCH_AT_IMPORT = {"memory", "kernels", "cache", "models", "eviction", "nano", "engine"}
COURSE_TORCH_AT_IMPORT = {"lessons", "capstone", "your_engine"}
ENGINE_PACKAGES = {"torch", "transformers", "triton", "safetensors", "accelerate", "huggingface_hub"}
# The parts of the engine that a simulated clock drives: all that ``simulate`` may import of it.
ENGINE_WITHOUT_TORCH = set(
    """core.extension core.rules core.scheduler core.sequence core.step detokenizer ext.drafts ext.events ext.eviction
    ext.offload outputs sampling_params serve.metrics serve.view""".split()
)
WIDGETS = {"ipywidgets", "plotly", "anywidget"}


def room_of(path: Path) -> str:
    """ "plan" for minikv/plan/spec/cache_spec.py, "errors" for minikv/errors.py."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def part_of(path: Path) -> str:
    """ "serve.view" for minikv/engine/serve/view.py."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts[1:])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path, *, when_imported: bool = False) -> set[str]:
    """Every module that a file imports, anywhere in it, except where only a type checker looks.

    ``when_imported``: without those that its functions import when they are called.
    """
    tree = parsed(path)
    later = {
        inner
        for node in ast.walk(tree)
        if (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
        or (when_imported and isinstance(node, ast.FunctionDef))
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in later:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


def test_each_file_imports_only_what_its_room_may():
    found = {str(path.relative_to(PACKAGE)): what for path in FILES if (what := unwelcome(path))}
    assert found == {}


def unwelcome(path: Path) -> set[str]:
    """The modules that this file imports and may not."""
    room = room_of(path)
    modules = imports_of(path)
    ours = {name.split(".")[1] for name in modules if name.startswith("minikv.") and name.count(".") >= 1}
    ours -= ROOT_FILES | FREE_ROOMS | {room}
    ours = {name for name in ours if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}
    top = {name.split(".")[0] for name in modules}
    wrong = ours - MAY_IMPORT[room] if room not in ROOT_FILES and room != "__main__" else set()
    if room in WITHOUT_TORCH or (room == "engine" and part_of(path) in ENGINE_WITHOUT_TORCH):
        wrong |= top & {"torch", "transformers", "triton"}
    if room not in ("course", "cli"):
        wrong |= top & WIDGETS
    if room == "simulate":
        parts = {name.removeprefix("minikv.engine.") for name in modules if name.startswith("minikv.engine.")}
        wrong |= {part for part in parts - {"core", "ext", "serve"} if not torchless(part)}
    return wrong


def torchless(part: str) -> bool:
    """Whether ``part`` of the engine, a module or a name in one, needs no torch."""
    return bool(ENGINE_WITHOUT_TORCH & {part, part.rpartition(".")[0]})


def test_only_the_rooms_that_compute_import_torch_when_they_are_imported():
    for path in FILES:
        if not ENGINE_PACKAGES & {name.split(".")[0] for name in imports_of(path, when_imported=True)}:
            continue
        room, *inner = path.relative_to(PACKAGE).parts
        allowed = room in TORCH_AT_IMPORT or (room == "course" and inner[0] in COURSE_TORCH_AT_IMPORT)
        assert allowed, f"{path} imports torch when it is imported"
        assert inner != ["__init__.py"], f"import minikv.{room} would bring torch"


def test_every_room_is_in_the_table():
    rooms = {room_of(path) for path in FILES} - ROOT_FILES - {"__main__"}
    assert rooms <= set(MAY_IMPORT)


def test_the_table_has_no_circle():
    for room, allowed in MAY_IMPORT.items():
        assert all(room not in MAY_IMPORT[other] for other in allowed)


def test_light_imports_load_no_heavy_library():
    """One after the other in one process, which says what is there after each of them."""
    statements = [
        "import minikv",
        "import minikv.plan.budget",
        *(f"import minikv.{room}" for room in MAY_IMPORT),
    ]
    heavy = {*ENGINE_PACKAGES, *WIDGETS}
    code = "import sys\n" + "".join(
        f"{statement}\nprint('{statement}:', [name for name in {heavy} if name in sys.modules])\n"
        for statement in statements
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{statement}: []" for statement in statements]


def test_the_public_names_load_on_first_use():
    import minikv

    assert minikv.CacheSpec.from_config("Llama-3.1-8B").bytes_for(1) == 131_072
    assert set(minikv.__all__) <= set(dir(minikv))
    with pytest.raises(AttributeError, match="no_such_name"):
        minikv.no_such_name  # noqa: B018
