"""Shared parts of every widget of the course: its files from the package, and a page for its photograph.

Each widget is one anywidget: a JavaScript module that draws, and traits that Python fills. The script and the style
are part of the widget, so that a notebook needs no network.
"""

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from minikv.look import looks_script, stylesheet


def script(*names: str) -> str:
    """Return one module: the palette, then these files. Shared functions go before the widget's own file, which ends in
    ``export default``.
    """
    return looks_script() + source(*names)


def style(*names: str) -> str:
    """Return the style sheet that all widgets share, then these files."""
    return stylesheet() + source(*names)


def source(*names: str) -> str:
    """Return the text of these package files, one after the other."""
    folder = files("minikv.course.widgets")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


# The same script, with a stand-in for the kernel: it keeps the traits and answers nothing.
_PHOTO = """<!DOCTYPE html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ margin: 12px; background: #fff; color: #1b1b1b; }}
#photo {{ width: 960px; }}
{css}
</style>
</head>
<body>
<div id="photo"></div>
<script type="module">
{esm}
const traits = {traits};
const listeners = {{}};
render({{
  el: document.getElementById("photo"),
  model: {{
    get: (name) => traits[name],
    set(name, value) {{
      traits[name] = value;
      for (const heard of listeners["change:" + name] ?? []) heard();
    }},
    on(event, heard) {{ (listeners[event] ??= []).push(heard); }},
    off(event, heard) {{ listeners[event] = (listeners[event] ?? []).filter((one) => one !== heard); }},
    save_changes() {{}},
    send() {{}},
  }},
}});
</script>
</body>
</html>
"""


def photo_page(title: str, esm: str, css: str, traits: Mapping[str, Any]) -> str:
    """Return one HTML page, complete in itself, that draws the widget inside ``id="photo"`` in the language of its
    form.

    ``esm`` must name its entry point ``render``. ``traits`` are the values that the script reads from its model, with
    "form" and its "lang", the page's language. The file is ASCII: other characters are written as escapes.
    """
    data = json.dumps(dict(traits)).replace("<", "\\u003c")  # "</script>" in a name must not end the script
    name = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    return _PHOTO.format(lang=traits["form"]["lang"], title=name, css=css, esm=esm, traits=data)
