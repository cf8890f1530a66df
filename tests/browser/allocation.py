"""The allocation widget as a reader meets it on a page."""

from tests.browser.form import FormOnPage


class AllocationOnPage(FormOnPage):
    """The first allocation widget of ``page``."""

    WIDGET_CLASS = "minikv-allocation"

    def columns(self) -> list[tuple[str, str, int]]:
        """(call, quantity, bytes) of each column of the time-line, as drawn."""
        drawn = self.root.locator("rect[data-size]").evaluate_all(
            "rects => rects.map((r) => [r.dataset.call, r.dataset.quantity, Number(r.dataset.size)])"
        )
        return [tuple(column) for column in drawn]

    def sum(self, key: str) -> str:
        """A line below the readout: "formula", "blocks", "short" or "free"."""
        return self.root.locator(f'.minikv-sums [data-key="{key}"]').inner_text()
