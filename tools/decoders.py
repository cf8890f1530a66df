"""What minikv makes of every causal decoder of the installed transformers: a table of data, and the page of models.

python -m tools.decoders            builds a small model of each, holds it against its own generate(), writes both
python -m tools.decoders --page     writes docs/models.md and docs/models.zh.md from the table and the catalogue
python -m tools.decoders --check    exit 1 where a page is stale

Eight minutes on one core. A composite (Gemma 3 with its vision tower) counts under the decoder inside; where that has
no class of its own with a head, a small composite is held.
"""

import argparse
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from minikv.errors import MiniKVError
from minikv.i18n import LANGUAGES, text
from minikv.plan import CacheSpec, find_model, model_names
from minikv.plan.decoders import OUTCOMES, DecoderOutcome, decoder_outcomes, transformers_release
from minikv.plan.spec.architectures import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "minikv" / "plan" / "data" / "decoders.json"
PAGES = {"en": ROOT / "docs" / "models.md", "zh": ROOT / "docs" / "models.zh.md"}
MOST_PARAMETERS = 50_000_000  # a larger model is one whose class ignores the small sizes


def model_types() -> list[str]:
    """The decoders that are looked at: transformers' causal ones, those inside its composites, and all known ones."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = set(composites())
    for name in {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *ARCHITECTURES}:
        config = CONFIG_MAPPING[name]
        composite = "text_config" in (getattr(config, "sub_configs", None) or {})
        if name in ARCHITECTURES or (config.model_type == name and not composite):
            found.add(name)
    return sorted(found)


@cache
def composites() -> dict[str, str]:
    """The decoders that transformers has inside of composites alone, each with the first composite that has it."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, str] = {}
    outer = {*auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    for name in sorted(outer, reverse=True):
        inner = _inside(CONFIG_MAPPING[name])
        if inner and inner not in {*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *ARCHITECTURES}:
            found[inner] = name
    return found


def _inside(composite: Any) -> str | None:
    """The model_type of a composite's decoder; None for composites of composites and without defaults."""
    parts = composite.sub_configs or {}
    if "thinker_config" in parts:
        return None
    inner = getattr(parts.get("text_config"), "model_type", "")
    if inner:
        return inner
    try:
        return composite().get_text_config(decoder=True).model_type
    except Exception:
        return None


def outcome_of(model_type: str) -> dict[str, str]:
    """The fields of one ``DecoderOutcome``."""
    import torch

    from tests.models.running import World
    from tests.plan.small_models import auto_class_of, small_decoder

    known = ARCHITECTURES.get(model_type)
    if known is not None and known.encoder_decoder:
        return {"outcome": "planned", "why": "encoder_decoder"}
    try:
        # Some classes change the config that they build a model of.
        first, second = small_decoder(model_type), small_decoder(model_type)
        with torch.device("meta"):
            size = auto_class_of(first).from_config(first).num_parameters()  # type: ignore[attr-defined]
        if size > MOST_PARAMETERS:
            return {"outcome": "not built", "why": "large", "what": f"{size:,}"}
        model = World.bare(second)
    except Exception as error:
        if known is not None:
            return {"outcome": "planned", "why": "no_head"}
        return {"outcome": "not built", "why": "not_built", "what": type(error).__name__}
    model.config.dtype = torch.float32
    if model_type in composites():
        model.config.get_text_config(decoder=True).dtype = torch.float32
    return _held(model, known is not None)


def _held(model: Any, known: bool) -> dict[str, str]:
    """What ``minikv doctor --model`` finds."""
    from minikv.engine.model_check import check_model
    from minikv.models import Loaded

    try:
        checks = {check.key: check for check in check_model(Loaded(model, None, model.config.model_type))}
    except MiniKVError as error:
        what = next(
            (str(error.values[name]) for name in ("what", "kind", "reason") if name in error.values), ""
        )
        told = {"outcome": "planned" if known else "refused", "why": error.code}
        return told | ({"what": what[:80]} if what else {})
    failed = [check.key for check in checks.values() if check.state == "failed"]
    assert not failed, f"{model.config.model_type}: {failed}"
    layers = checks["known" if known else "measured"].values["layers"]
    run = checks.get("tokens") or checks["tied"]
    return {"outcome": "runs" if known else "measured", "reads": run.values["reads"], "layers": layers}


def page_of(lang: str) -> str:
    """The page of models in one language."""

    def say(key: str, **values: Any) -> str:
        return text(f"plan.models_{key}", lang, **values)

    rows = decoder_outcomes()
    counts = Counter(each.outcome for each in rows)
    intro = say("intro", release=transformers_release(), count=len(rows))
    lines = [f"# {say('title')}", "", say("made"), "", intro, ""]
    lines += [f"| {say('outcome')} | {say('count')} | {say('means')} |", "|---|---|---|"]
    for outcome in OUTCOMES:
        key = outcome.replace(" ", "_")
        lines.append(f"| {say(key)} | {counts[outcome]} | {say(f'{key}_means')} |")
    for outcome in OUTCOMES:
        mine = [each for each in rows if each.outcome == outcome]
        lines += ["", f"## {say(outcome.replace(' ', '_'))}", "", *_table_of(mine, outcome, lang, say)]
    lines += ["", f"## {say('catalogue')}", "", say("catalogue_intro", count=len(model_names())), ""]
    lines += [f"| {say('model')} | model_type | {say('token')} | {say('positions')} |", "|---|---|---|---|"]
    for name in model_names():
        spec = CacheSpec.from_config(name)
        positions = f"{spec.max_positions:,}" if spec.max_positions else "-"
        lines.append(f"| {find_model(name).name} | `{spec.model_type}` | {spec.slope(0):,} | {positions} |")
    return "\n".join(lines) + "\n"


def _table_of(rows: list[DecoderOutcome], outcome: str, lang: str, say: Any) -> list[str]:
    if outcome in ("runs", "measured"):
        head = [f"| model_type | {say('layers')} | {say('reads')} |", "|---|---|---|"]
        return head + [
            f"| `{each.model_type}` | {each.layers} | {say(f'reads_{each.reads}')} |" for each in rows
        ]
    head = [f"| model_type | {say('why')} |", "|---|---|"]
    return head + [f"| `{each.model_type}` | {each.reason(lang)} |" for each in rows]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        stale = [path.name for lang, path in PAGES.items() if path.read_text("utf-8") != page_of(lang)]
        print(f"stale: {', '.join(stale)}" if stale else "docs/models.md and its twin are up to date")
        return bool(stale)
    if not options.page:
        import transformers

        transformers.logging.set_verbosity_error()
        table = {}
        for name in model_types():
            table[name] = outcome_of(name)
            print(name, *table[name].values(), flush=True)
        told = {"transformers": transformers.__version__, "decoders": table}
        TABLE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    for lang in LANGUAGES:
        PAGES[lang].write_text(page_of(lang), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
