"""A drawing of the course alone on a page, in each theme of JupyterLab."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THEMES = Path(sys.prefix) / "share" / "jupyter" / "lab" / "themes" / "@jupyterlab"
# A page without JupyterLab (Colab, a photograph), and JupyterLab's own themes: the body's mark, and the style sheet.
SKINS = {
    "plain": ("", ""),
    "light": ("true", "theme-light-extension"),
    "dark": ("false", "theme-dark-extension"),
    "dark high contrast": ("false", "theme-dark-high-contrast-extension"),
}
_HTML = """<!DOCTYPE html><html lang="{lang}"><head><meta charset="utf-8"><title>view</title></head>
<body><div id="photo">{html}</div></body></html>"""
_BODY = "\nbody { background: var(--jp-layout-color0) !important; color: var(--jp-content-font-color1) !important; }"

# A line of text is taller than its letters: three pixels above and below may overlap.
WORDS_ASTRAY = """(root) => {
  const svg = root.querySelector("svg:has(text)"), whole = svg.getBoundingClientRect(), faults = [];
  const words = [...svg.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0); // what is hidden has no box
  for (const [place, [said, box]] of words.entries()) {
    const sideways = box.left < whole.left - 1 || box.right > whole.right + 1;
    if (sideways || box.bottom > whole.bottom) faults.push(`${said}: outside`);
    for (const [other, near] of words.slice(place + 1)) {
      const beside = box.left < near.right - 1 && near.left < box.right - 1;
      const level = box.top + 3 < near.bottom - 3 && near.top + 3 < box.bottom - 3;
      if (beside && level) faults.push(`${said} touches ${other}`);
    }
  }
  return faults;
}"""


@dataclass(frozen=True)
class Drawing:
    """The page that holds a drawing, and nothing else."""

    page: Any

    @property
    def root(self) -> Any:
        return self.page.locator("#photo")

    def put_on(self, skin: str) -> None:
        """Another theme, as JupyterLab changes it: variables of its style sheet, and a mark on the body."""
        light, folder = SKINS[skin]
        css = (THEMES / folder / "index.css").read_text(encoding="utf-8") + _BODY if folder else ""
        self.page.evaluate(
            """([css, light]) => {
              let style = document.getElementById("theme");
              if (!style) document.head.append(style = Object.assign(document.createElement("style"), { id: "theme" }));
              style.textContent = css;
              if (light) document.body.dataset.jpThemeLight = light;
              else delete document.body.dataset.jpThemeLight;
            }""",
            [css, light],
        )


def open_drawing(watched_page, view: Any, lang: str, **options: Any) -> tuple[Any, Drawing]:
    """``view`` on a page of its own; also what must stay empty while it is used."""
    watched = watched_page("", **options)
    if hasattr(view, "photo_html"):
        watched.page.set_content(view.photo_html())
    else:
        html = view._repr_mimebundle_()["text/html"]
        watched.page.set_content(_HTML.format(lang="zh-CN" if lang == "zh" else "en", html=html))
    return watched, Drawing(watched.page)
