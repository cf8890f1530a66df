"""The parts of a learner's engine: the files of nano that they stand in, and the functions of nano that call them."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.course.your_engine.parts import PARTS, Part
from minikv.i18n import pick_language, text
from minikv.look import look

CALLER, PART, TASK = 8, 472, 760  # left edges of the columns
TOP, ROW, BOX = 48, 30, 24
PART_WIDE = 264
# The names under which nano holds an object of each class that has parts.
HELD_AS = {"BlockManager": ("blocks",), "KVCache": ("kv_cache", "cache"), "Scheduler": ("self",)}


def engine_parts(lang: str = "en") -> Diagram:
    """Draw each part beside what calls it, read from nano's source, in the order of the files."""
    lang = pick_language(lang)
    picture, lines, y = Picture(), [], float(TOP)
    for x, key in ((CALLER, "callers"), (PART, "part"), (TASK, "exercise")):
        picture.words(x, 16, text(f"diagrams_batching.parts_{key}", lang), bold=True)
    modules = sorted(
        {part.module for part in PARTS}, key=lambda name: [part.module for part in PARTS].index(name)
    )
    for number, module in enumerate(modules):
        picture.words(PART, y + 4, f"{module}.py", size=12, bold=True)
        lines.append(f"{module}.py")
        y += 12
        for part in PARTS:
            if part.module != module:
                continue
            callers = callers_of(part)
            said = ", ".join(callers)
            picture.words(CALLER, y + 17, said, size=12)
            picture.box(PART, y, PART_WIDE, BOX, look(number), radius=4, edge=1)
            picture.words(PART + 8, y + 17, part.qualname, on=look(number), halo=8)
            picture.words(TASK, y + 17, part.task)
            picture.curve((CALLER + width_of(said, 12) + 8, y + BOX / 2), (PART - 4, y + BOX / 2))
            lines.append(
                text("diagrams_batching.parts_line", lang, name=part.qualname, task=part.task, callers=said)
            )
            y += ROW
        y += 16
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y)


def callers_of(part: Part) -> list[str]:
    """Return the functions of nano that use ``part``: "Scheduler.schedule", "attend"."""
    wanted = {f"{each}.{part.name}" for each in HELD_AS[part.owner]} if part.owner else {part.name}
    return [name for name, used in _functions().items() if wanted & used and name != part.qualname]


@cache
def _functions() -> dict[str, set[str]]:
    """What each function of nano uses: "sample", "self.admit", "blocks.free"."""
    found: dict[str, set[str]] = {}
    for path in sorted(files("minikv.nano").iterdir(), key=lambda file: file.name):
        if path.name.endswith(".py"):
            for name, function in _defined(ast.parse(path.read_text(encoding="utf-8"))):
                found[name] = set(_used(function))
    return found


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef)
            )


def _used(function: ast.FunctionDef) -> Iterator[str]:
    own = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id not in own:
            yield node.id
        elif isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            yield f"{name}.{node.attr}"
