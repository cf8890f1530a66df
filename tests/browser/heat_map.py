"""The heat-map widget as a reader meets it on a page."""

from tests.browser.form import FormOnPage


class HeatMapOnPage(FormOnPage):
    """The first heat-map widget of ``page``."""

    WIDGET_CLASS = "minikv-heat-map"

    def rows(self) -> list[tuple[str, bool, dict[str, list[int]]]]:
        """Each row of the map: its key, whether it is the chosen one, and the tokens of each shade."""
        shown = self.root.locator("svg[role=img] g[data-row]").evaluate_all(
            "rows => rows.map((row) => [row.dataset.row, row.dataset.chosen === 'true',"
            " [...row.querySelectorAll('path')].map((path) => [path.dataset.shade, path.dataset.tokens])])"
        )
        return [
            (key, chosen, {shade: [int(token) for token in tokens.split()] for shade, tokens in paths})
            for key, chosen, paths in shown
        ]

    def shades(self, row: dict[str, list[int]], length: int) -> str:
        """A row of the map as Python wrote it: a character a token."""
        said = {token: shade for shade, tokens in row.items() for token in tokens}
        return "".join(said.get(token, ".") for token in range(length))

    def strip(self, what: str = "role") -> str:
        """Role or shade of every token of the chosen row."""
        return "".join(
            self.root.locator(".minikv-place").evaluate_all(
                "(places, what) => places.map((place) => place.dataset[what])", what
            )
        )

    def frames(self) -> list[int]:
        """The tokens that stand in a frame."""
        runs = self.root.locator("svg[role=listbox] .minikv-kept").evaluate_all(
            "frames => frames.map((frame) => [Number(frame.dataset.first), Number(frame.dataset.end)])"
        )
        return [token for first, end in runs for token in range(first, end)]
