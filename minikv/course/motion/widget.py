"""Motion: the thin anywidget that feeds a scene's module in JupyterLab and in Colab."""

from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets

from minikv.course.motion.scene import player_words, scene_module
from minikv.course.widgets.base import photo_page
from minikv.i18n import pick_language, text

# The module's ``mount`` behind the two traits of a notebook.
_RENDER = """
function render({ model, el }) {
  const mounted = mount(el, model.get("scene"), {
    place: model.get("step"),
    onPlace(place) {
      model.set("step", place);
      model.save_changes();
    },
  });
  const show = () => mounted.show(model.get("step"));
  model.on("change:step", show);
  return () => {
    mounted.stop();
    model.off("change:step", show);
  };
}
export default { render };
"""


def widget_module(name: str) -> str:
    """Return the module of the scene ``name`` with what anywidget calls."""
    return scene_module(name) + _RENDER


class Motion(anywidget.AnyWidget):
    """Recorded states, shown one after the other; a subclass has a scene's module and style, and says its words.

    ``step`` is the state on display, from 0; the page writes it too.
    """

    _name = ""  # of the module

    scene = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    def __init__(self, lang: str, form: dict[str, Any], states: Sequence[dict[str, Any]], step: int):
        self._lang = pick_language(lang)
        whole = {**player_words(self._lang), "name": self._name, **form}
        super().__init__(scene={"form": whole, "states": list(states)}, step=min(step, len(states) - 1))

    @property
    def form(self) -> dict[str, Any]:
        """The part of the scene that does not change."""
        return self.scene["form"]

    @property
    def states(self) -> list[dict[str, Any]]:
        """The recorded states, as the module draws them."""
        return self.scene["states"]

    @traitlets.validate("step")
    def _within(self, proposal: Any) -> int:
        return min(max(proposal["value"], 0), len(self.states) - 1)

    def text(self) -> str:
        """Return every state as plain lines, with all of its figures, in the widget's language."""
        lines = [
            text("widgets_motion.headline", self._lang, title=self.form["title"], size=self.form["size"])
        ]
        for step, state in enumerate(self.states):
            lines.append(text("widgets_motion.line", self._lang, step=step, said=state["status"]))
            lines += [f"   {line}" for line in self._figures(step, state)]
        return "\n".join(lines)

    def photo_html(self) -> str:
        """Return a page that draws the state on display inside ``id="photo"``; the last one where none was chosen."""
        step = self.step or len(self.states) - 1
        traits = {"form": self.form, "scene": self.scene, "step": step}
        return photo_page(self.form["title"], self._esm, self._css, traits)

    def _figures(self, step: int, state: dict[str, Any]) -> list[str]:
        """Return what the drawing of a state shows beside its sentence; what has not changed may be left out."""
        raise NotImplementedError
