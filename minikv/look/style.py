"""The style sheets of everything that the course draws in HTML and SVG.

Widgets share one sheet. An output that is no widget (a report, a table, source) carries a short one of its own, since
in Colab each output is a page. Their variables follow the theme of the page.
"""

import re
from functools import cache
from importlib.resources import files

from minikv.look.palette import MEANINGS, SEQUENCES

# JupyterLab's variables where it runs, else the page's own colours: Colab, VS Code and a plain page say only whether
# they are dark. A token of source has, elsewhere, a colour that is readable on white and on black.
CODE_COLOURS = {
    "keyword": "var(--jp-mirror-editor-keyword-color, color-mix(in srgb, #8a63d2 60%, currentColor))",
    "name": "var(--jp-mirror-editor-def-color, color-mix(in srgb, #3b7dd8 60%, currentColor))",
    "builtin": "var(--jp-mirror-editor-builtin-color, color-mix(in srgb, #1f8a70 60%, currentColor))",
    "string": "var(--jp-mirror-editor-string-color, color-mix(in srgb, #c4514c 60%, currentColor))",
    "number": "var(--jp-mirror-editor-number-color, color-mix(in srgb, #2f8a4c 60%, currentColor))",
    "comment": "var(--jp-ui-font-color2, color-mix(in srgb, #7a7a7a 60%, currentColor))",
}
VARIABLES = {
    "ink": "var(--jp-ui-font-color1, currentColor)",
    "hairline": "var(--jp-border-color2, color-mix(in srgb, currentColor 25%, transparent))",
    "type": "14px/1.45 var(--jp-ui-font-family, system-ui, sans-serif)",
    "code": "var(--jp-code-font-family, monospace)",
    "link": "var(--jp-content-link-color, color-mix(in srgb, #3b7dd8 60%, currentColor))",
    "bar": SEQUENCES[0],  # as in a plot of one series
    "comment": CODE_COLOURS["comment"],
    **{name: meant.fill for name, meant in MEANINGS.items()},
}


@cache
def stylesheet() -> str:
    """Return the rules that all widgets share: variables ("--minikv-k"), then type, controls, tables."""
    variables = " ".join(f"--minikv-{name}: {value};" for name, value in VARIABLES.items())
    return f".minikv-widget {{ {variables} }}\n{_sheet('style')}"


def report_style(body: str, kind: str = "") -> str:
    """Return ``<style>...</style>``, one line, for ``body``, the HTML of an output of the class "minikv-shown".

    ``kind`` adds the rules of a second class: "source", "minikv-source", code in colours; "flow", "minikv-flow".
    A rule is there if ``body`` has what its selector begins with: ``& td``, ``& .minikv-note``, ``& [align]``.
    """

    def needed(rule: re.Match[str]) -> str:
        before = {".": "", "[": " "}.get(rule[1], "<")
        return rule[0] if before + rule[2] in body else ""

    return f"<style>{re.sub(r'& (?::is.)?([.[]?)([a-z-]+)[^{}]*{[^{}]*}', needed, _rules(kind))}</style>"


@cache
def _rules(kind: str) -> str:
    rules = _sheet("report") + (_sheet(kind) if kind else "")
    if kind == "source":
        named = "".join(f"& .{name} {{ color: {said}; }}" for name, said in CODE_COLOURS.items())
        rules += f".minikv-source {{ {named} }}"
    rules = re.sub(r"/\*.*?\*/", "", rules, flags=re.DOTALL)
    return _short(re.sub(r"var\(--minikv-(\w+)\)", lambda found: VARIABLES[found[1]], rules))


def _sheet(name: str) -> str:
    return (files("minikv.look") / f"{name}.css").read_text(encoding="utf-8")


def _short(rules: str) -> str:
    """The rules without room: a notebook has them once for each output."""
    return re.sub(r" ?([{};,]) ?|(:) ", r"\1\2", re.sub(r"\s+", " ", rules)).replace(";}", "}").strip()
