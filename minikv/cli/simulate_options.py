"""The options of ``minikv simulate``, in panels of the help by subject."""

import typer


def option(panel: str, *names: str) -> typer.models.OptionInfo:
    """An option of ``panel``, with the title ``panel_PANEL`` of messages/help.toml."""
    return typer.Option(*names, rich_help_panel=panel)


ASK, FLEET, CLOCK, LOAD = option("ask"), option("fleet"), option("clock"), option("load")
