"""A widget with controls as a reader meets it on a page: found by its class, read by its data."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class FormOnPage:
    """The first widget of its class on ``page``."""

    page: object

    WIDGET_CLASS: ClassVar[str]

    @property
    def root(self):
        """The widget's own element; asking for it twice is cheap, it is found when it is used."""
        return self.page.locator(f".{self.WIDGET_CLASS}").first

    def control(self, name: str):
        """A control by the name of what it changes: ``tp``, ``utilization``, ``utilization-exact``..."""
        return self.root.locator(f'[name="{name}"]')

    def control_names(self) -> list[str]:
        """What a screen reader calls each control."""
        return self.root.locator("select, input, button").evaluate_all(
            "controls => controls.map("
            "(c) => c.getAttribute('aria-label') || c.labels?.[0]?.textContent || c.textContent)"
        )

    def readout(self) -> str:
        """The sentence that a screen reader speaks."""
        return self.root.get_by_role("status").inner_text()

    def bar(self) -> dict[str, int]:
        """Bytes of each part that a stacked bar shows."""
        shown = self.root.locator("svg[role=img] rect[data-bytes]").evaluate_all(
            "parts => parts.map((part) => [part.dataset.key, Number(part.dataset.bytes)])"
        )
        return dict(shown)

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
