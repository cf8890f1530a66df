"""Which cells of a lesson a browser has to run: those that show a widget, and those that what they show is made from.

A lesson's other cells say the same in every browser: nbval runs all of them and compares what they print. Their saved
outputs are drawn from the file, as they are for a reader who opens the lesson.
"""

import ast
import symtable
from collections.abc import Iterator

from nbformat import NotebookNode

WIDGET = "application/vnd.jupyter.widget-view+json"
PLOT = "application/vnd.plotly.v1+json"
SETUP = "minikv-setup"


def shows(cell: NotebookNode, mime: str) -> int:
    """How many of a cell's outputs have ``mime``."""
    return sum(mime in output.get("data", {}) for output in cell.get("outputs", ()))


def widget_cells(notebook: NotebookNode) -> list[str]:
    """Ids of the cells that show a widget, and of the cells that these need, in the order of the notebook.

    A cell is needed if it binds, changes or calls a method on a name that a later needed cell reads first. Where that
    is not enough, the cell that shows the widget fails, or says something else than the saved one.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(shows(cell, WIDGET) for cell in code):
        return []
    wanted: set[str] = set()
    needed = []
    for cell in reversed(code):
        if cell.id == SETUP:
            needed.append(cell.id)
            continue
        statements = ast.parse(cell.source).body
        if shows(cell, WIDGET) or wanted & {
            name for one in statements for name in (*_bound(one), *_changed(one))
        }:
            for one in reversed(statements):
                wanted = wanted - set(_bound(one)) | set(_read(one))
            needed.append(cell.id)
    return needed[::-1]


def _read(statement: ast.stmt) -> Iterator[str]:
    """Names of the module that a statement reads: not those of its own loop, nor those of a function in it."""
    whole = symtable.symtable(ast.unparse(statement), "cell", "exec")
    own = set(_bound(statement)) if isinstance(statement, ast.For | ast.With) else set()
    tables = [whole]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            outer = table is whole or symbol.is_global()
            if outer and symbol.is_referenced() and symbol.get_name() not in own:
                yield symbol.get_name()
    if isinstance(statement, ast.AugAssign):
        yield from _root(statement.target)


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a statement binds in the module; what a function binds is its own."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return
    if isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names whose values a statement changes: a part is assigned, or a method called whose answer nobody wants."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield from _root(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute):
                yield from _root(called)


def _root(node: ast.AST) -> Iterator[str]:
    """``a`` of ``a.b[c].d``."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        yield node.id
