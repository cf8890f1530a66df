"""An ``AllocationReport`` as one labelled bar: the use of the device's bytes, to the byte."""

from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page, script, style
from minikv.course.widgets.parts import stacked
from minikv.i18n import pick_language, text
from minikv.units import format_bytes

if TYPE_CHECKING:  # it imports torch, which the other widgets do not need
    from minikv.cache.allocation import AllocationReport

TABLE = "widgets_allocation"


class ReportBar(anywidget.AnyWidget):
    """``report.parts()`` as a bar, and a table of its exact bytes. It has no controls."""

    _esm = script("bar.js", "form.js", "parts.js", "report_bar.js")
    _css = style()

    form = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, report: "AllocationReport", lang: str = "en"):
        self._lang = pick_language(lang)
        self._report = report
        super().__init__(form=_form(report, self._lang), view=_view(report, self._lang))

    @property
    def summary(self) -> str:
        """The same as plain lines, in the widget's language."""
        lines = [
            text(f"{TABLE}.line_part", self._lang, label=row["label"], size=row["text"], exact=row["exact"])
            for row in self.view["rows"]
        ]
        return "\n".join([self.form["title"], *lines, self.view["status"]])

    def text(self) -> str:
        """Return ``summary``, which ``show`` prints where there is no picture."""
        return self.summary

    def photo_html(self) -> str:
        """Return a page that draws this bar, in its language, inside ``id="photo"``."""
        traits = {"form": self.form, "view": self.view}
        return photo_page(self.form["title"], self._esm, self._css, traits)


def report_bar(report: "AllocationReport", lang: str = "en") -> ReportBar:
    """Return the bar of ``report``. Raises ``ArgumentError`` for a language that the course is not written in."""
    return ReportBar(report, lang)


def _form(report: "AllocationReport", lang: str) -> dict[str, Any]:
    return {
        "lang": "zh-CN" if lang == "zh" else "en",
        "title": text("allocation.title", lang, name=report.name, device=report.device, tp=report.tp),
        "columns": [
            "",
            text("widgets.column_term", lang),
            text(f"{TABLE}.column_size", lang),
            text("widgets.column_bytes", lang),
        ],
    }


def _view(report: "AllocationReport", lang: str) -> dict[str, Any]:
    parts = report.parts()
    return {
        **stacked(
            parts,
            f"{TABLE}.part_",
            lang,
            name=report.device,
            aria=f"{TABLE}.bar",
            write=format_bytes,
            total_text=format_bytes,
        ),
        "status": text(
            f"{TABLE}.report_status",
            lang,
            blocks=report.num_blocks,
            block_size=report.block_size,
            tokens=report.max_tokens,
            kv=format_bytes(report.kv_bytes),
        ),
    }
