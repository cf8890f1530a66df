"""The page of the paging playground: nano's scheduler and block manager, with the reader's own requests.

A run of the example is in the page, recorded when the site is built. The reader's requests need Python in the browser.
"""

import json
from pathlib import Path
from typing import Any

from tools.site import pyodide
from tools.site.browser import playground

_SAID = (
    "later waiting prefill decode ended request name number remove answer arrives".split()
)  # by the script


def values(python: Path | None, lang: str, said: dict[str, str]) -> dict[str, Any]:
    """Return what the page's template asks for; ``size`` is the megabytes that Python has (0: it is absent)."""
    first = playground.start(lang)
    told = json.loads(playground.answer(json.dumps(first)))
    page = {
        "first": first,
        "told": told,
        "limits": playground.REQUEST,
        "most": playground.MOST_REQUESTS,
        "words": {name: said[f"playground_{name}"] for name in _SAID},
    }
    return {
        "size": pyodide.megabytes(python),
        "sizes": playground.SIZES,
        "steps": [state["status"] for state in told["scene"]["states"]],
        "page_data": page,
    }
