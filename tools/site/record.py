"""Records the states of the lessons' widgets that need torch or numpy, for the site, which is built without them.

    python -m tools.site.record [--all | --check] [NN ...]          a part of make notebooks

Each cell of ``RECORDED`` runs as the site's other widgets do, with what it reads of earlier cells. A run of an engine
is taken to its end, a monitor looks after each step of an engine instead of five times a second, and of a widget with
controls each combination of ``AXES`` is asked. ``recorded/<lang>/<lesson>_<cell>.json`` holds what the widget's script
reads in its first line and a state in each further one, as what has changed in it. A recording is made anew where the
cell has changed, where its lesson is named, or all are; ``--check`` only says which ones are not of their cells.

``recorded/model.json`` is the run that the model's page shows before the reader loads the model.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

from minikv import install_kv_eviction
from minikv.course.motion.widget import Motion
from minikv.course.widgets import BlocksWidget, EngineWidget
from minikv.course.widgets.engine_drawing import FIGURES
from minikv.course.widgets.form import FormWidget
from minikv.course.widgets.monitor import Monitor
from minikv.course.widgets.ticker import Ticker
from minikv.engine.serve.llm_engine import LLMEngine
from minikv.i18n import LANGUAGES
from minikv.models import load
from tools.notebooks.course import Target, open_course
from tools.project import ROOT
from tools.site.model import ANSWER, EXAMPLE, MODEL_RUN, ONE_RUN
from tools.site.widgets import (
    FOLDER,
    RECORDED,
    code_of,
    digest_of,
    name_of,
    recorded_name,
    run,
    traits_of,
)

# The settings that the page offers of a widget with controls; its other ones keep their first value.
AXES: dict[str, dict[str, list[Any]]] = {
    "growth": {
        "step": [*range(0, 160, 10), 156, 157, *range(160, 201, 10)],
        "max_seq": [128, 256, 512],
        "block_size": [8, 16, 64],
    },
    "heat_map": {"policy": ["streaming", "h2o", "tova", "keydiff"], "share": [0.25]},
    "fleet": {
        "replicas": [1, 2, 3, 4, 6],
        "router": ["round-robin", "least-loaded", "prefix"],
        "host_gib": [0, 64, 256],
        "load": [0.5, 1.0, 2.0],
    },
}
# What a widget of this kind draws by itself from the one view, so that its page keeps these controls.
_DRAWN = {"heat_map": ("layer", "head", "rows", "shade", "step")}
_DIGITS = 4  # of a place in a drawing


def recording(number: str, key: str, lang: str) -> str:
    """Run the cell; return its recording."""
    code = code_of(cells_of(number, lang), key, RECORDED[number, key])
    seen: dict[int, list[dict[str, Any]]] = {}
    shown: list[tuple[Any, int]] = []
    with _looking_after_steps(seen):
        run(
            code, number, lang, lambda widget, **_: shown.append((widget, len(seen.get(id(widget), [0])) - 1))
        )
        widget, start = shown[-1]  # a cell of RECORDED's others may show it too
        whole = {"digest": digest_of(code), **_told(widget, seen.get(id(widget), []), start)}
        if hasattr(widget, "close"):
            widget.close()
    frames = whole.pop("frames")
    lines = [json.dumps({**whole, "frames": []}, ensure_ascii=False, separators=(",", ":"))[:-2]]
    before: Any = {}
    for place, frame in enumerate(frames):
        told = json.dumps(changes(before, frame), ensure_ascii=False, separators=(",", ":"))
        lines.append(told + ("," if place < len(frames) - 1 else ""))
        before = frame
    return "\n".join([*lines, "]}\n"])


def changes(old: Any, new: Any) -> Any:
    """Return what makes ``new`` of ``old``: {place: changes} in a list or a mapping, [new] otherwise."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return {key: changes(old[key], new[key]) for key in new if old[key] != new[key]}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return {
            str(at): changes(*both)
            for at, both in enumerate(zip(old, new, strict=True))
            if both[0] != both[1]
        }
    return [new]


def model_run() -> dict[str, Any]:
    """Run the first text of the model's page: its tokens, what it answers, and what ``ONE_RUN`` keeps of the prompt."""
    tiny, tokenizer = load("tiny-gqa", dtype="fp32")
    prompt = tokenizer(EXAMPLE, return_tensors="pt")
    length = prompt["input_ids"].shape[1]

    def written(count: int, **options: Any) -> str:
        tokens = tiny.generate(**prompt, max_new_tokens=count, do_sample=False, **options)
        return str(tokenizer.decode(tokens[0, length:]))

    with install_kv_eviction(tiny, **ONE_RUN) as handle:
        cache = handle.new_cache()
        written(1, past_key_values=cache)  # the prompt's forward alone
        kept = [layer.positions[0, 0].tolist() for layer in cache.layers]
        answer = written(ANSWER, past_key_values=handle.new_cache())
    tokens = tokenizer.convert_ids_to_tokens(prompt["input_ids"][0].tolist())
    return {"tokens": tokens, "kept": kept, "full": written(ANSWER), "written": answer}


def cells_of(number: str, lang: str) -> Sequence[Mapping[str, Any]]:
    stem = next(lesson.stem for lesson in open_course(ROOT).lessons if lesson.number == number)
    text = (ROOT / Target("lesson", lang, stem).path).read_text(encoding="utf-8")
    return json.loads(text)["cells"]


def _told(widget: Any, seen: list[dict[str, Any]], start: int) -> dict[str, Any]:
    """Return name, traits and frames. ``seen`` are the views of a monitor; the cell shows that at ``start``."""
    if isinstance(widget, FormWidget):
        return _asked(widget)
    if isinstance(widget, EngineWidget):
        return _ended(widget)
    if isinstance(widget, Monitor):
        plain = [{**view, "running": False} for view in seen]
        form = {**widget.form, "buttons": []}
        if "cells" in str(widget._esm) and "speeds" in form:
            return {"name": "engine", "traits": {"form": form, "speed": 0}, "start": start, "frames": plain}
        name = type(widget).__module__.rpartition(".")[2]
        return {"name": name, "traits": {"form": form}, "start": start, "frames": plain}
    assert isinstance(widget, Motion | BlocksWidget)
    return {"name": name_of(widget), "traits": traits_of(widget), "frames": []}


def _ended(widget: EngineWidget) -> dict[str, Any]:
    """Take the run to its end, without the figure that differs between runs."""
    start = len(widget._history) - 1
    while widget.step():
        pass
    place = FIGURES.index("speed")
    frames = []
    for view in widget._history:
        figures = [figure for at, figure in enumerate(view["figures"]) if at != place]
        frames.append({**view, "figures": figures, "running": False})
    form = {**widget._form(widget._lang, speed=False), "buttons": []}
    return {"name": "engine", "traits": {"form": form, "speed": 0}, "start": start, "frames": frames}


def _asked(widget: FormWidget) -> dict[str, Any]:
    """Ask for each combination; a control that has none is left out of the form."""
    name = name_of(widget)
    axes = AXES[name]
    state, form = dict(widget.state), dict(widget.form)
    assert all(state[key] in values for key, values in axes.items()), state
    fields = []
    for field in form["fields"]:
        key = field["key"]
        if key in axes and "options" in field:
            fields.append({**field, "options": [each for each in field["options"] if each[0] in axes[key]]})
        elif key in axes:
            fields.append({**field, "steps": axes[key]})
        elif key in _DRAWN.get(name, ()):
            fields.append(field)
    frames = []
    for values in product(*axes.values()):
        widget.state = {**state, **dict(zip(axes, values, strict=True))}
        frames.append(_rounded(widget.view))
    traits = {"form": {**form, "fields": fields}, "state": state}
    return {"name": name, "traits": traits, "axes": list(map(list, axes.items())), "frames": frames}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


@contextmanager
def _looking_after_steps(seen: dict[int, list[dict[str, Any]]]) -> Iterator[None]:
    """Let each monitor look after every step of an engine, never by the clock; ``seen`` gets {its id: views}."""
    tick, step, made = Monitor.tick, LLMEngine.advance, Monitor.__init__
    monitors: list[Monitor] = []

    def making(monitor: Monitor, *args: Any, **named: Any) -> None:
        made(monitor, *args, **named)
        monitors.append(monitor)
        seen[id(monitor)] = [monitor.view]

    def ticking(monitor: Monitor) -> bool:
        going = tick(monitor)
        if monitor.view["status"] != seen[id(monitor)][-1]["status"]:
            seen[id(monitor)].append(monitor.view)
        return going

    def stepping(engine: LLMEngine, *args: Any, **named: Any) -> Any:
        done = step(engine, *args, **named)
        for monitor in monitors:
            monitor.tick()
        return done

    with ExitStack() as stack:
        for owner, name, new in (
            (Monitor, "__init__", making),
            (Monitor, "tick", ticking),
            (LLMEngine, "advance", stepping),
            (Ticker, "start", lambda ticker: None),
        ):
            stack.enter_context(patch.object(owner, name, new))
        yield


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.site.record", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("lessons", nargs="*", help="as 00 or 11a; all where none is named")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where one is not up to date"
    )
    parser.add_argument("--all", action="store_true", help="also those whose cells are the same")
    options = parser.parse_args(arguments)
    old = 0
    if not (options.check or options.lessons):
        MODEL_RUN.write_text(json.dumps(model_run()) + "\n", encoding="utf-8")
    for number, key in RECORDED:
        if options.lessons and number not in options.lessons:
            continue
        for lang in LANGUAGES:
            path = FOLDER / recorded_name(number, key, lang)
            code = code_of(cells_of(number, lang), key, RECORDED[number, key])
            if (
                not (options.lessons or options.all)
                and path.is_file()
                and f'"{digest_of(code)}"' in path.read_text(encoding="utf-8")[:40]
            ):
                continue
            old += 1
            if options.check:
                say(f"{path.relative_to(ROOT)}: not of this cell. Write it anew: python -m tools.site.record")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(recording(number, key, lang), encoding="utf-8")
            say(f"recorded  {path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    return int(options.check and old > 0)


if __name__ == "__main__":
    sys.exit(main())
