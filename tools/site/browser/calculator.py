"""Runs in the reader's browser: settings in, the widget's view out. Everything crosses as JSON.

``models`` are the reader's own: a config as a dictionary, or the path of a GGUF file, whose header alone is read.
"""

import json
import shlex
from typing import Any

from minikv.course.widgets.budget_view import KV_DTYPES, budget_form, budget_view
from minikv.course.widgets.parts import nothing_stacked, stacked
from minikv.errors import MiniKVError
from minikv.i18n import LANGUAGES, escape_controls
from minikv.plan import CacheSpec, find_gpu, model_names, plan_gguf
from minikv.plan.gguf.memory import GGUFPlan

START: dict[str, Any] = {
    "model": "Llama-3.1-8B",
    "gpu": find_gpu("H200").name,
    "tp": 1,
    "context": 4096,
    "batch": 1,
    "kv_dtype": None,
    "utilization": 0.9,
}
GGUF_TYPES = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
NO_GGUF = ("tp", "utilization")  # settings that llama.cpp does not have

models: dict[str, Any] = {}
gguf_paths: dict[str, str] = {}


def answer(asked: str) -> str:
    """``{"lang", "state"}`` to ``{"form", "state", "view", "explained", "command"}``; settings left out are START's."""
    request = json.loads(asked)
    lang, state = request["lang"], START | request["state"]
    told = _gguf(state, lang) if state["model"] in gguf_paths else _config(state, lang)
    return json.dumps(told, ensure_ascii=False)


def add_config(text: str, lang: str) -> str:
    """Offer a config.json. ``{"model": its name}``, or ``{"error": a sentence}``."""
    try:
        config = json.loads(text)
        name = _free(CacheSpec.from_config(config).name)
    except (ValueError, MiniKVError) as refusal:
        return _refused(refusal, lang)
    models[name] = config
    return json.dumps({"model": name})


def add_gguf(path: str, lang: str) -> str:
    """Offer a GGUF file, as ``add_config`` does a config."""
    try:
        name = _free(plan_gguf(path).spec.name)
    except MiniKVError as refusal:
        return _refused(refusal, lang)
    models[name], gguf_paths[name] = path, path
    return json.dumps({"model": name})


def _refused(refusal: Exception, lang: str) -> str:
    said = refusal.text(lang) if isinstance(refusal, MiniKVError) else escape_controls(str(refusal))
    return json.dumps({"error": said}, ensure_ascii=False)


def _free(name: str) -> str:
    number, free = 1, name
    while free in models or free in model_names():
        number += 1
        free = f"{name} ({number})"
    return free


def _config(state: dict[str, Any], lang: str) -> dict[str, Any]:
    kept = (
        state if state["kv_dtype"] in KV_DTYPES else {**state, "kv_dtype": None}
    )  # a GGUF file's was chosen
    try:  # the bytes of a token are known where the memory of a card is not
        asked = {"tp": kept["tp"], "kv_dtype": kept["kv_dtype"]}
        spec = CacheSpec.from_config(models.get(kept["model"], kept["model"]), **asked)
        explained = {each: spec.explain(each) for each in LANGUAGES}
    except MiniKVError as refusal:
        explained = {each: refusal.text(each) for each in LANGUAGES}
    return {
        "form": budget_form(START, models, lang),
        "state": kept,
        "view": budget_view(kept, models, lang),
        "explained": explained,
        "command": _command(kept),
    }


def _command(state: dict[str, Any]) -> str:
    model = "config.json" if state["model"] in models else state["model"]
    said = ["minikv", "plan", model, "--gpu", state["gpu"]]
    for name in ("tp", "context", "batch", "kv_dtype", "utilization"):
        if state[name] != START[name] or name == "context":
            said += [f"--{name.replace('_', '-')}", str(state[name])]
    return shlex.join(said)


def _gguf(state: dict[str, Any], lang: str) -> dict[str, Any]:
    kv_dtype = state["kv_dtype"] if state["kv_dtype"] in GGUF_TYPES else GGUF_TYPES[0]
    kept = {**state, "kv_dtype": kv_dtype}
    form = budget_form(START, models, lang)
    form["fields"] = [field for field in form["fields"] if field["key"] not in NO_GGUF]
    for field in form["fields"]:
        if field["key"] == "kv_dtype":
            field["options"] = [(name, name) for name in GGUF_TYPES]
    try:
        plan = plan_gguf(
            gguf_paths[state["model"]],
            kv_dtype=kv_dtype,
            gpu=state["gpu"],
            context=state["context"],
            batch=state["batch"],
        )
        view, explained = _gguf_view(plan, lang), {each: plan.text(each) for each in LANGUAGES}
        command = plan.command()
    except MiniKVError as refusal:
        view = {**nothing_stacked(lang), "figures": [], "status": refusal.text(lang), "error": True}
        explained, command = {each: refusal.text(each) for each in LANGUAGES}, ""
    return {"form": form, "state": kept, "view": view, "explained": explained, "command": command}


def _gguf_view(plan: GGUFPlan, lang: str) -> dict[str, Any]:
    """The bar of ``plan``, with what does not fit beyond the card's edge, and its sentences."""
    name = plan.gpu.name if plan.gpu else ""
    parts, aria = plan.parts(), "widgets.bar"
    if not plan.fits:
        del parts["left"]
        aria = "widgets.bar_over"
    said = {"batch": plan.batch, "context": plan.context}
    drawn = stacked(parts, "gguf.part_", lang, name=name, aria=aria, values=said, limit=plan.total_bytes)
    status = " ".join(plan.shown(lang).lines[-2:-1])
    return {**drawn, "figures": [], "status": status, "error": not plan.fits}
