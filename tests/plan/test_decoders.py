"""The table of what runs, what is planned and what is refused: it is of every decoder, current, and shown."""

import json

import pytest
import transformers

from minikv.plan import model_names
from minikv.plan.decoders import OUTCOMES, decoder_outcomes, transformers_release
from minikv.plan.spec.architectures import ARCHITECTURES
from tests.cli.inside import Terminal
from tests.in_turn import in_turn
from tests.longer import usual_if
from tools import decoders as tool

ROWS = {each.model_type: each for each in decoder_outcomes()}
LOOKED_AT = [name for name, each in ROWS.items() if each.outcome != "not built"]
USUAL = ("bart", "camembert", "codegen", "deepseek_v32", "kimi_linear", "qwen3")


of_its_release = pytest.mark.skipif(
    transformers.__version__ != transformers_release(),
    reason="the table is of another release of transformers",
)


@pytest.mark.long
@of_its_release
def test_it_has_every_decoder_of_the_installed_transformers():
    assert sorted(ROWS) == tool.model_types()


def test_what_is_known_is_never_measured_and_everything_else_has_a_reason():
    for each in ROWS.values():
        assert each.outcome in OUTCOMES
        assert (each.model_type in ARCHITECTURES) == (each.outcome in ("runs", "planned"))
        runs = each.outcome in ("runs", "measured")
        assert runs == bool(each.reads) == bool(each.layers) == (not each.why)
        assert runs or each.reason("zh") != each.reason("en") != ""
    assert set(ARCHITECTURES) <= set(ROWS)


@of_its_release
@pytest.mark.parametrize("model_type", usual_if(USUAL.__contains__, LOOKED_AT))
def test_a_row_is_what_becomes_of_the_model(model_type):
    found = tool.outcome_of(model_type)
    told = {name: value for name, value in vars(ROWS[model_type]).items() if value and name != "model_type"}
    assert found == told


@in_turn("lang", ["en", "zh"])
def test_the_page_is_written_from_it(lang):
    page = tool.page_of(lang)
    assert tool.PAGES[lang].read_text(encoding="utf-8") == page
    assert all(f"`{name}`" in page for name in ROWS)
    assert all(f"| {name} |" in page for name in model_names())


@in_turn("lang", ["en", "zh"])
def test_the_command_lists_it(monkeypatch, lang):
    terminal = Terminal(monkeypatch)
    shown = terminal("plan", "--list", "--lang", lang, COLUMNS="300").out
    assert all(name in shown for name in ROWS)
    told = json.loads(terminal("plan", "--list", "--json", "--lang", lang).out)
    assert {each["model_type"]: each["outcome"] for each in told["decoders"]} == {
        name: each.outcome for name, each in ROWS.items()
    }
    assert all(each["model_type"] for each in told["models"])


def test_the_tool_says_which_page_is_stale(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["decoders", "--check"])
    assert tool.main() == 0
    monkeypatch.setattr(tool, "PAGES", {lang: tmp_path / f"{lang}.md" for lang in tool.PAGES})
    monkeypatch.setattr("sys.argv", ["decoders", "--page"])
    assert tool.main() == 0
    (tmp_path / "zh.md").write_text("old")
    monkeypatch.setattr("sys.argv", ["decoders", "--check"])
    assert tool.main() == 1
    assert "zh.md" in capsys.readouterr().out
