"""The terminal that a command draws on."""

from rich.console import Console


def make_console() -> Console:
    """A console that prints names as they are: "[bold]" and ":key:" may stand in a folder's name."""
    return Console(highlight=False, markup=False, emoji=False)


def can_print(letters: str, console: Console) -> bool:
    """Whether the console's encoding has all of these letters."""
    try:
        letters.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
