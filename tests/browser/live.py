"""A widget on a plain page with its own Python behind it: what a notebook gives it, without JupyterLab and a kernel."""

import json
from dataclasses import dataclass, field
from typing import Any

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>live</title>
<style>body {{ margin: 12px; background: #fff; color: #1b1b1b; }} #photo {{ width: 800px; }}
{css}</style></head>
<body><div id="photo"></div>
<script type="module">
{esm}
const traits = {traits}, ears = {{}};
let written = {{}};
window.asked = window.answered = 0;
const fire = (name) => {{ for (const heard of ears["change:" + name] ?? []) heard(); }};
window.fromPython = (changed) => {{
  const before = Object.keys(changed).filter((name) => JSON.stringify(traits[name]) !== JSON.stringify(changed[name]));
  Object.assign(traits, changed);
  before.forEach(fire);
}};
const ask = async (kind, content) => {{
  window.asked += 1;
  window.fromPython(JSON.parse(await window.toPython(kind, JSON.stringify(content))));
  window.answered += 1;
}};
render({{ el: document.getElementById("photo"), model: {{
  get: (name) => traits[name],
  set(name, value) {{ traits[name] = written[name] = value; fire(name); }},
  on(event, heard) {{ (ears[event] ??= []).push(heard); }},
  off(event, heard) {{ ears[event] = (ears[event] ?? []).filter((one) => one !== heard); }},
  save_changes() {{ const sent = written; written = {{}}; ask("write", sent); }},
  send(content) {{ ask("press", content); }},
}} }});
</script></body></html>"""


@dataclass
class Live:
    """A page, the widget whose traits it shows, and what the page has asked Python for."""

    page: Any
    widget: Any
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def root(self) -> Any:
        return self.page.locator("#photo")

    def traits(self) -> dict[str, Any]:
        """What travels between the two, as plain data; not the script and the style."""
        names = [name for name in self.widget.trait_names(sync=True) if not name.startswith("_")]
        own = {
            name: getattr(self.widget, name)
            for name in names
            if name not in ("layout", "tabbable", "tooltip")
        }
        return json.loads(json.dumps(own, allow_nan=False))

    def wait(self) -> None:
        """Until Python has answered all that the page asked."""
        self.page.wait_for_function("window.asked === window.answered")

    def refresh(self) -> None:
        """Show what the widget has become by itself."""
        self.page.evaluate("changed => window.fromPython(changed)", self.traits())

    def answer(self, kind: str, content: str) -> str:
        said = json.loads(content)
        self.heard.append((kind, said))
        if kind == "write":
            self.widget.set_state(said)
        else:
            self.widget._handle_custom_msg(said, [])
        return json.dumps(self.traits())


def open_live(watched_page, widget: Any) -> tuple[Any, Live]:
    """``widget`` on a page that talks to it; also what must stay empty while it is used."""
    watched = watched_page("")
    live = Live(watched.page, widget)
    watched.page.expose_function("toPython", live.answer)
    traits = json.dumps(live.traits()).replace("<", "\\u003c")
    watched.page.set_content(_PAGE.format(css=widget._css, esm=widget._esm, traits=traits))
    watched.page.wait_for_function("window.fromPython && document.getElementById('photo').children.length")
    return watched, live
