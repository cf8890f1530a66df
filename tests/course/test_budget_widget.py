"""The budget widget without a browser: what it is told, what it answers, and what it asks of the platform."""

import ast
import itertools
import json
import random
import threading
from pathlib import Path

import pytest

import minikv.course.widgets as widgets
from minikv.course.widgets import BudgetWidget
from minikv.errors import ArgumentError, ConfigError, DoesNotFitError, MiniKVError, UnknownNameError
from minikv.i18n import LANGUAGES
from minikv.plan import MemoryBudget, find_gpu, find_model, plan_memory
from tests.course.forms import options

FOLDER = Path(widgets.__file__).parent


def shown_bytes(widget: BudgetWidget) -> dict[str, int]:
    return {part["key"]: part["bytes"] for part in widget.view["bar"]["parts"]}


def refused_budget(state: dict) -> MemoryBudget:
    chosen = dict(state)
    with pytest.raises(DoesNotFitError) as refusal:
        plan_memory(chosen.pop("model"), **chosen)
    return refusal.value.budget


def assert_too_much(widget: BudgetWidget, budget: MemoryBudget) -> None:
    bar = widget.view["bar"]
    assert shown_bytes(widget) == budget.wanted()
    assert bar["total"] == sum(budget.wanted().values()) > budget.limit_bytes == bar["over"]["limit"]
    assert f"{(bar['total'] - budget.limit_bytes) / 2**30:,.1f}" in bar["over"]["text"]


def test_what_is_drawn_is_what_the_planner_says():
    rng = random.Random(2)
    widget = BudgetWidget()
    answered = refused = 0
    for _ in range(60):
        state = {field["key"]: rng.choice(options(widget, field["key"])) for field in widget.form["fields"]}
        widget.state = state
        if widget.budget is None:
            refused += 1
            assert widget.view["status"]
            if widget.view["bar"]["parts"]:  # the model itself is too large: drawn beyond the card's edge
                assert_too_much(widget, refused_budget(state))
            continue
        answered += 1
        model = state.pop("model")
        budget = plan_memory(model, **state)
        assert widget.budget == budget
        assert widget.view["error"] == (not budget.fits)
        if budget.fits:
            assert shown_bytes(widget) == budget.parts()
            assert sum(shown_bytes(widget).values()) == budget.total_bytes == widget.view["bar"]["total"]
        else:
            assert_too_much(widget, budget)
        values = [figure["value"] for figure in widget.view["figures"]]
        assert values[0] == f"{budget.num_blocks:,}"
        assert values[2] == f"{budget.max_batch(state['context']):,}"
    assert answered >= 10
    assert refused >= 10


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    ("bad", "number"),
    [
        ({"model": "Llama-3.1-70B", "gpu": "T4"}, "T4"),
        ({"model": "Qwen2.5-0.5B", "tp": 8}, "8"),
        ({"context": 131_073}, "131,072"),
        ({"context": 0}, "0"),
        ({"utilization": 1.5}, "1.5"),
        ({"kv_dtype": "fp3"}, "fp3"),
        ({"model": "no such model"}, "no such model"),
    ],
)
def test_a_refusal_is_the_errors_own_sentence_and_the_widget_goes_on(lang, bad, number):
    widget = BudgetWidget(lang)
    before = widget.text()
    start = dict(widget.state)
    widget.state = {**start, **bad}
    arguments = {**start, **bad}
    model = arguments.pop("model")
    with pytest.raises(MiniKVError) as refusal:
        plan_memory(model, **arguments)
    assert widget.budget is None
    assert widget.view["error"]
    assert widget.view["status"] == refusal.value.text(lang)
    assert widget.view["status"] in widget.text()
    widget.state = start
    assert widget.text() == before


def test_a_batch_that_is_too_large_is_drawn_beyond_the_edge():
    widget = BudgetWidget(gpu="RTX 4090", batch=64)
    budget = widget.budget
    assert not budget.fits
    assert_too_much(widget, budget)
    most = budget.max_batch(4096)
    widget.state = {"batch": most}
    assert not widget.view["error"]
    assert "over" not in widget.view["bar"]
    widget.state = {"batch": most + 1}
    assert widget.view["error"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_model_that_is_too_large_by_itself_keeps_its_bar(lang):
    widget = BudgetWidget(lang, model="Llama-3.1-70B", gpu="T4")
    assert widget.budget is None
    assert_too_much(widget, refused_budget(widget.state))


def test_one_knob_leaves_the_others_where_they_are():
    widget = BudgetWidget(batch=3, context=5000)
    widget.state = {"tp": 2}
    assert widget.state["batch"] == 3
    assert widget.state["context"] == 5000
    assert widget.budget.spec.tp == 2
    assert widget.form["defaults"]["tp"] == 1, "Reset returns to where the widget began"


def test_only_what_has_an_answer_is_offered_and_the_start_always_is():
    widget = BudgetWidget(gpu="h200", model="llama 3.1 8b")
    assert widget.state["gpu"] in options(widget, "gpu")
    assert widget.state["model"] in options(widget, "model")
    assert all(find_gpu(name).total_bytes for name in options(widget, "gpu"))
    assert all(find_model(name).complete for name in options(widget, "model"))
    for key in ("context", "batch", "utilization"):
        steps = options(widget, key)
        assert all(a < b for a, b in itertools.pairwise(steps))
        assert widget.state[key] in steps


def test_a_model_of_your_own_is_offered_under_its_name():
    config = {**find_model("Llama-3.1-8B").config, "num_key_value_heads": 32}
    widget = BudgetWidget(model="ours", configs={"ours": config})
    assert options(widget, "model")[0] == "ours"
    assert widget.budget.needed_bytes == 4 * BudgetWidget().budget.needed_bytes


def test_the_model_may_be_a_config_a_path_or_a_folder(tmp_path):
    config = {**find_model("Llama-3.1-8B").config, "num_key_value_heads": 32}
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    class ConfigObject:
        model_type, name_or_path = config["model_type"], "theirs"

        def to_dict(self):
            return dict(config)

    models = {
        "mine": {**config, "_name_or_path": "mine"},
        "theirs": ConfigObject(),
        "ours": folder,
        "ours ": str(folder),
        " ours": folder / "config.json",
    }
    for name, model in models.items():
        widget = BudgetWidget(model=model)
        assert widget.state["model"] == options(widget, "model")[0] == name.strip()
        assert widget.budget.needed_bytes == 4 * BudgetWidget().budget.needed_bytes
        assert name.strip() in widget.text()
        widget.state = {"model": "Llama-3.1-8B"}
        widget.state = widget.form["defaults"]
        assert widget.budget.needed_bytes == 4 * BudgetWidget().budget.needed_bytes
        assert json.dumps([widget.form, widget.state, widget.view], allow_nan=False)


def test_a_config_with_a_name_that_is_taken_hides_no_other_model():
    config = {**find_model("Llama-3.1-8B").config, "num_key_value_heads": 32, "_name_or_path": "Llama-3.1-8B"}
    widget = BudgetWidget(model=config, configs={"Llama-3.1-8B (2)": "DeepSeek-V3"})
    assert widget.state["model"] == "Llama-3.1-8B (3)"
    assert len(set(options(widget, "model"))) == len(options(widget, "model"))
    widget.state = {"model": "Llama-3.1-8B"}
    assert widget.budget == BudgetWidget().budget


def test_a_wrong_start_is_an_error_of_the_caller():
    with pytest.raises(UnknownNameError):
        BudgetWidget(model="no such model")
    with pytest.raises(UnknownNameError):
        BudgetWidget(gpu="no such gpu")
    with pytest.raises(ArgumentError):
        BudgetWidget("fr")
    with pytest.raises(ArgumentError):
        BudgetWidget(model=8)
    with pytest.raises(ConfigError):
        BudgetWidget(model={})


def test_the_last_of_many_threads_stands():
    """ipykernel 7 delivers the browser's messages in other threads while a cell is busy."""
    widget = BudgetWidget()
    batches = list(range(1, 41))
    start_together = threading.Barrier(4)

    def turn(mine: list[int]) -> None:
        start_together.wait()
        for batch in mine:
            widget.set_state({"state": {**widget.state, "batch": batch}})

    threads = [threading.Thread(target=turn, args=(batches[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Whoever came last: state, budget and picture are of the same moment.
    batch = widget.state["batch"]
    assert batch in batches[-4:]
    assert widget.budget.batch == batch
    assert widget.view["status"].startswith(f"{batch} x ")


def test_the_text_is_the_same_every_time_and_names_every_part():
    for lang in LANGUAGES:
        widget = BudgetWidget(lang, model="DeepSeek-V3", tp=8)
        assert widget.text() == BudgetWidget(lang, model="DeepSeek-V3", tp=8).text()
        for num_bytes in widget.budget.parts().values():
            assert f"({num_bytes:,} B)" in widget.text()


def test_both_languages_have_every_sentence_of_the_widget():
    forms = {lang: BudgetWidget(lang).form for lang in LANGUAGES}
    labels = {lang: [field["label"] for field in form["fields"]] for lang, form in forms.items()}
    differing = [en != zh for en, zh in zip(*labels.values(), strict=True)]
    assert sum(differing) == len(differing) - 1, "only GPU is the same word in both"


def test_what_is_synced_is_plain_json_for_every_model():
    """Python's Infinity and NaN are no JSON: a browser drops the whole message."""
    widget = BudgetWidget()
    for model in options(widget, "model"):
        widget.state = {"model": model, "context": 448}
        for trait in ("form", "state", "view"):
            assert json.dumps(getattr(widget, trait), allow_nan=False)


def test_colab_is_asked_for_nothing_but_anywidget():
    """Colab has ipywidgets 7.7: a widget of ipywidgets 8 would not be there."""
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
                )
                assert not any(name.split(".")[0] == "ipywidgets" for name in names), file.name


def test_the_script_sets_text_and_fetches_nothing():
    for script in FOLDER.glob("*.js"):
        code = script.read_text(encoding="utf-8")
        assert code.isascii()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "fetch(", "import ", "eval("):
            assert word not in code, f"{script.name}: {word}"
