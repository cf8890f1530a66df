"""Generate ``minikv/plan/data/config_defaults.json`` from the installed transformers.

    python -m tools.config_defaults [--check]

The table holds, for every architecture that minikv knows, the class defaults that a config.json may leave out,
the other names of its fields, and which composite config wraps which decoder. ``--check`` writes nothing and
exits with 1 where the table differs from the installed transformers.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent.parent / "minikv" / "plan" / "data" / "config_defaults.json"

# Fields that describe training, text or output, never a size.
_NOISE = ("_token_id", "_dropout", "dropout", "output_", "return_dict", "use_cache", "initializer", "label")


def defaults_of(config_class: type) -> dict[str, Any]:
    """The class's defaults that are sizes, switches or patterns: ints, bools, nulls, short texts."""
    found = {}
    for field in dataclasses.fields(config_class):
        value = field.default
        if any(noise in field.name for noise in _NOISE):
            continue
        if value is None or isinstance(value, bool | int | str):
            found[field.name] = value
    return dict(sorted(found.items()))


def build_table() -> dict[str, Any]:
    """The whole table, from the transformers that is installed."""
    import transformers
    from transformers import CONFIG_MAPPING

    from minikv.plan.spec.architectures import ARCHITECTURES

    composites, aliases, defaults = {}, {}, {}
    for outer in sorted(CONFIG_MAPPING):
        config_class = CONFIG_MAPPING[outer]
        inner = (getattr(config_class, "sub_configs", None) or {}).get("text_config")
        inner_type = getattr(inner, "model_type", None)
        if inner_type in ARCHITECTURES and inner_type != outer:
            composites[outer] = inner_type
    for model_type in sorted(ARCHITECTURES):
        config_class = CONFIG_MAPPING[model_type]
        defaults[model_type] = defaults_of(config_class)
        if config_class.attribute_map:
            aliases[model_type] = dict(sorted(config_class.attribute_map.items()))
    return {
        "transformers": transformers.__version__,
        "composites": composites,
        "aliases": aliases,
        "defaults": defaults,
    }


def main() -> int:
    table = build_table()
    text = json.dumps(table, indent=1, sort_keys=True) + "\n"
    if "--check" in sys.argv[1:]:
        same = TABLE.exists() and json.loads(TABLE.read_text()) == table
        print(
            "config_defaults.json is up to date" if same else "config_defaults.json is stale: regenerate it"
        )
        return 0 if same else 1
    TABLE.write_text(text)
    print(f"{TABLE.name}: {len(table['defaults'])} architectures, {len(table['composites'])} composites")
    return 0


if __name__ == "__main__":
    sys.exit(main())
