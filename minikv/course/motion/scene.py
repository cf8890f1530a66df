"""A moving drawing as text: one plain ES module, its style sheet, and a page that stands alone.

A module is self-contained and exports ``mount(element, { form, states })``. It knows no anywidget and fetches nothing,
so a site embeds the same text that a notebook runs.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from minikv.course.widgets.base import script, style
from minikv.i18n import text

_PAGE = """<!DOCTYPE html>
<html lang="{lang}"><head><meta charset="utf-8"><title>minikv</title><link rel="icon" href="data:,"><style>
:root {{ color-scheme: {scheme}; }}
body {{ margin: 0; background: Canvas; color: CanvasText; }}
#scene {{ width: 960px; }}
{css}</style></head>
<body><main id="scene"></main><script type="module">
{module}
const scene = {data};
window.draw = () => mount(document.getElementById("scene"), scene);
window.mounted = window.draw();
</script></body></html>
"""
SPEEDS = (1, 2, 5, 20)  # states a second


def scene_module(name: str) -> str:
    """Return the ES module of the scene ``name`` ("paging"), with the palette and all that it calls."""
    return script("bar.js", "form.js") + _source("stage.js", f"{name}.js") + "export { mount };\n"


def scene_style(name: str) -> str:
    """Return the scene's style sheet, with the rules that all widgets share."""
    return style() + _source("stage.css", f"{name}.css")


def scene_page(name: str, data: Mapping[str, Any], *, dark: bool = False) -> str:
    """Return an HTML page that holds the scene alone, ``window.mounted`` its handle: what a site or a camera opens.

    ``window.draw()`` mounts it once more.
    """
    states = json.dumps(dict(data)).replace("<", "\\u003c")  # "</script>" in a name must not end the script
    return _PAGE.format(
        lang=data["form"]["lang"],
        scheme="dark" if dark else "light",
        css=scene_style(name),
        module=scene_module(name),
        data=states,
    )


def player_words(lang: str) -> dict[str, Any]:
    """Return the words of the controls, which every form has."""
    return {
        "lang": "zh-CN" if lang == "zh" else "en",
        **{name: text(f"widgets_motion.{name}", lang) for name in ("back", "play", "pause", "forward")},
        "step": text("widgets_motion.step", lang),
        "step_value": text("widgets_motion.step_value", lang, step="{step}", last="{last}"),
        "speed": text("widgets_motion.speed", lang),
        "speeds": [[rate, text("widgets_motion.rate", lang, rate=rate)] for rate in SPEEDS],
    }


def _source(*names: str) -> str:
    folder = files("minikv.course.motion")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
