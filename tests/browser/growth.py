"""The growth widget as a reader meets it on a page: found by its class, read by its data."""

from dataclasses import dataclass

WIDGET_CLASS = "minikv-growth"


@dataclass(frozen=True)
class GrowthOnPage:
    """The first growth widget of ``page``."""

    page: object

    @property
    def root(self):
        """The widget's own element."""
        return self.page.locator(f".{WIDGET_CLASS}").first

    def control(self, name: str):
        """A control by the name of what it changes: ``step``, ``step-exact``, ``block_size``..."""
        return self.root.locator(f'[name="{name}"]')

    def readout(self) -> str:
        """The sentence that a screen reader speaks."""
        return self.root.get_by_role("status").inner_text()

    def drawn(self, cache: str, what: str = "tokens") -> list[int]:
        """Tokens or slots of each row, as drawn for "linear" or "paged"."""
        return self.root.locator(f'g[data-cache="{cache}"]').evaluate_all(
            "(groups, what) => groups.map((group) => Number(group.dataset[what]))", what
        )

    def figures(self, key: str) -> list[str]:
        """A line of the table: the linear cache's value and the paged one's."""
        return self.root.locator(f'tr[data-key="{key}"] td').all_inner_texts()

    def wait_for_another_readout(self, old: str) -> str:
        """Wait until the kernel has answered with another sentence, and return it."""
        self.page.wait_for_function(
            "([root, old]) => root.querySelector('[role=status]').textContent !== old",
            arg=[self.root.element_handle(), old],
            timeout=30_000,
        )
        return self.readout()

    def press(self, slider: str, key: str = "ArrowRight") -> str:
        """One press of an arrow key on a slider; the new readout."""
        old = self.readout()
        self.control(slider).focus()
        self.page.keyboard.press(key)
        return self.wait_for_another_readout(old)
