"""What a page to photograph a widget on says."""

import json
from typing import Any


def photo_traits(widget: Any) -> dict[str, Any]:
    """The traits that the page of ``widget.photo_html()`` gives its script."""
    return json.loads(widget.photo_html().split("const traits = ")[1].split(";\nconst listeners")[0])
