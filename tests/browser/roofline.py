"""The roofline widget as a reader meets it on a page."""

from tests.browser.form import FormOnPage


class RooflineOnPage(FormOnPage):
    """The first roofline widget of ``page``."""

    WIDGET_CLASS = "minikv-roofline"

    def marks(self) -> dict[str, float]:
        """FLOP per byte of each mark on the roof, by its key."""
        shown = self.root.locator("g.minikv-on-roof").evaluate_all(
            "marks => marks.map((mark) => [mark.dataset.key, Number(mark.dataset.value)])"
        )
        return dict(shown)

    def ridge(self) -> float:
        """The ridge point that is drawn, FLOP per byte."""
        return float(self.root.locator(".minikv-ridge").get_attribute("data-value"))

    def figures(self, key: str) -> list[str]:
        """A line of the table: GiB, GFLOP, FLOP/byte, milliseconds."""
        return self.root.locator(f'tr[data-key="{key}"] td').all_inner_texts()
