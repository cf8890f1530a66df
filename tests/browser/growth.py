"""The growth widget as a reader meets it on a page."""

from tests.browser.form import FormOnPage


class GrowthOnPage(FormOnPage):
    """The first growth widget of ``page``."""

    WIDGET_CLASS = "minikv-growth"

    def drawn(self, cache: str, what: str = "tokens") -> list[int]:
        """Tokens or slots of each row, as drawn for "linear" or "paged"."""
        return self.root.locator(f'g[data-cache="{cache}"]').evaluate_all(
            "(groups, what) => groups.map((group) => Number(group.dataset[what]))", what
        )

    def figures(self, key: str) -> list[str]:
        """A line of the table: the linear cache's value and the paged one's."""
        return self.root.locator(f'tr[data-key="{key}"] td').all_inner_texts()
