"""The walk widget as a reader meets it on a page."""

from tests.browser.form import FormOnPage


class WalkOnPage(FormOnPage):
    """The first walk widget of ``page``."""

    WIDGET_CLASS = "minikv-walk"

    def tiles(self) -> list[list[str]]:
        """The letter and the state of each tile, as drawn."""
        return self.root.locator("g[data-entry]").evaluate_all(
            "tiles => tiles.map((tile) => [tile.textContent, tile.dataset.state])"
        )

    def blocks(self) -> dict[int, str]:
        """The state of each block of the pool that this sequence holds."""
        drawn = self.root.locator("g[data-block]").evaluate_all(
            "blocks => blocks.map((block) => [Number(block.dataset.block), block.dataset.state])"
        )
        return {block: state for block, state in drawn if state != "foreign"}
