"""What the tests of the widgets with a form share: what a field of it lets a reader choose."""

from typing import Any


def options(widget: Any, key: str) -> list:
    """The values of a list, or the steps of a slider."""
    field = next(field for field in widget.form["fields"] if field["key"] == key)
    return [value for value, _ in field["options"]] if "options" in field else field["steps"]
