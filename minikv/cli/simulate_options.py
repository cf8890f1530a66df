"""What the options of ``minikv simulate`` are about: each has a panel of its own in the help."""

import typer


def option(panel: str, *names: str) -> typer.models.OptionInfo:
    """An option of ``panel``, whose title is ``panel_PANEL`` of messages/help.toml."""
    return typer.Option(*names, rich_help_panel=panel)


ASK, FLEET, CLOCK, LOAD = option("ask"), option("fleet"), option("clock"), option("load")
