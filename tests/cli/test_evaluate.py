"""``minikv evaluate``: tables in both languages, JSON, a record that grows and goes on, and bad input."""

import json

import pytest

from minikv.eviction.evaluate.readers import WordReader
from minikv.models import recall_documents
from tests.cli.inside import is_one_sentence
from tests.eviction.evaluate.small import random_llama

FEW = (
    "--tasks",
    "multikey",
    "--lengths",
    "97",
    "--policies",
    "keydiff",
    "--kept",
    "50",
    "--kv-dtypes",
    "int8",
)
FEW += ("--texts", "2")


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_has_every_way(terminal, lang):
    done = terminal("evaluate", "tiny-gqa", *FEW, "--lang", lang)
    assert done.code == 0
    assert len(done.out.splitlines()) == 5
    assert "multikey" in done.out
    for words in ("keydiff", "int8", "100.0 %"):
        assert words in done.out


@pytest.mark.usefixtures("loaded_once")
def test_a_record_goes_on_where_it_was_cut(terminal, tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    ask, asked = WordReader.ask, []

    def cut(self, question, way):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(way)
        return ask(self, question, way)

    monkeypatch.setattr(WordReader, "ask", cut)
    assert terminal("evaluate", *FEW, "--record", str(path)).code == 130
    assert len(json.loads(path.read_text())["rows"]) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]
    asked.clear()
    done = terminal("evaluate", *FEW, "--record", str(path), "--json")
    assert done.code == 0
    assert [str(way) for way in asked] == ["int8"]
    assert "2 rows" in done.err
    told = json.loads(done.out)
    assert told["rows"] == json.loads(path.read_text())["rows"]
    assert [way["way"] for way in told["recall"][0]["ways"]] == ["full cache", "keydiff, 50 % kept", "int8"]


@pytest.mark.usefixtures("loaded_once")
def test_a_record_of_other_settings_or_of_something_else_is_refused_and_kept(terminal, tmp_path):
    path = tmp_path / "record.json"
    assert terminal("evaluate", *FEW, "--record", str(path)).code == 0
    whole = path.read_bytes()
    for changed in (("--texts", "3"), ("--seed", "1")):
        done = terminal("evaluate", *FEW, *changed, "--record", str(path))
        assert is_one_sentence(done)
        assert changed[1] in done.err
        assert path.read_bytes() == whole
    for content in (b"{", b"[]", b'{"rows": [1]}', b"\xff\xfe", whole[:-9], b'{"rows": [{"task": "niah"}]}'):
        path.write_bytes(content)
        assert is_one_sentence(terminal("evaluate", *FEW, "--record", str(path)))
        assert path.read_bytes() == content
    assert is_one_sentence(terminal("evaluate", *FEW, "--record", str(tmp_path)))
    assert is_one_sentence(terminal("evaluate", *FEW, "--record", str(tmp_path / "no" / "record.json")))


@pytest.fixture
def prose(tmp_path):
    """A file of the tiny models' words."""
    path = tmp_path / "prose.txt"
    path.write_text("\n".join(document.text for document in recall_documents(3)), encoding="utf-8")
    return str(path)


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_text_is_read_and_its_perplexity_is_kept_in_the_record_too(terminal, tmp_path, prose, lang):
    path = tmp_path / "record.json"
    few = (*FEW[2:], "--perplexity", prose, "--record", str(path), "--lang", lang)
    done = terminal("evaluate", *few)
    assert done.code == 0
    assert len(done.out.splitlines()) == 5
    assert "multikey" not in done.out
    told = json.loads(path.read_text())
    assert (len(told["rows"]), len(told["readings"])) == (0, 3)
    done = terminal("evaluate", *few, "--tasks", "multikey", "--json")
    told = json.loads(done.out)
    assert (len(told["rows"]), len(told["readings"])) == (3, 3)
    assert [way["way"] for way in told["perplexity"][0]["ways"]] == [
        "full cache",
        "keydiff, 50 % kept",
        "int8",
    ]
    assert "3 " in done.err


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_plot_is_one_page_with_grid_bars_and_curves(terminal, tmp_path, prose, lang):
    page = tmp_path / "page.html"
    few = (*FEW[2:], "--tasks", "niah,multikey", "--perplexity", prose, "--plot", str(page), "--lang", lang)
    assert terminal("evaluate", *few).code == 0
    drawn = page.read_text(encoding="utf-8")
    assert drawn.count("Plotly.newPlot(") == 3
    for kind in ('"type":"heatmap"', '"type":"bar"', '"type":"scatter"'):
        assert kind in drawn
    assert "<script src" not in drawn
    assert is_one_sentence(terminal("evaluate", *FEW, "--plot", str(tmp_path)))


@pytest.mark.usefixtures("loaded_once")
def test_a_text_that_cannot_be_read_is_one_sentence(terminal, tmp_path, prose):
    bad = tmp_path / "bad.txt"
    assert is_one_sentence(terminal("evaluate", *FEW, "--perplexity", str(bad)))
    assert is_one_sentence(terminal("evaluate", *FEW, "--perplexity", str(tmp_path)))
    for content in (b"\xff\xfe\xff", b"", b"ada paris", b"never seen words " * 200):
        bad.write_bytes(content)
        assert is_one_sentence(terminal("evaluate", *FEW, "--perplexity", str(bad)))
    assert is_one_sentence(terminal("evaluate", *FEW, "--perplexity", prose, "--lengths", "16"))


def test_a_folder_of_a_model_is_read(terminal, tmp_path):
    model, tokenizer = random_llama()
    model.save_pretrained(tmp_path)
    few = ("--tasks", "niah", "--depths", "50", "--policies", "snapkv", "--kept", "25", "--kv-dtypes", "fp8")
    few += ("--texts", "2", "--lengths", "400", "--max-tokens", "3")
    done = terminal("evaluate", str(tmp_path), *few)
    assert is_one_sentence(done)
    assert "tokenizer" in done.err
    tokenizer.save_pretrained(tmp_path)
    done = terminal("evaluate", str(tmp_path), *few)
    assert done.code == 0
    assert "snapkv" in done.out
    assert is_one_sentence(terminal("evaluate", str(tmp_path), *few, "--lengths", "4096"))


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize(
    "bad",
    [
        ("--kept", "half"),
        ("--kept", "0"),
        ("--kept", "nan"),
        ("--kept", "1000"),
        ("--depths", "-1"),
        ("--lengths", "1e3"),
        ("--lengths", "5"),
        ("--lengths", "100000"),
        ("--tasks", "all"),
        ("--policies", "best"),
        ("--kv-dtypes", "int3"),
        ("--texts", "0"),
        ("--max-tokens", "0"),
        ("--seed", "-3"),
    ],
)
def test_bad_input_is_one_sentence(terminal, bad):
    for lang in ("en", "zh"):
        assert is_one_sentence(terminal("evaluate", *FEW, *bad, "--lang", lang))


def test_a_model_that_is_not_there_is_one_sentence(terminal, tmp_path):
    assert is_one_sentence(terminal("evaluate", str(tmp_path), *FEW))
    assert is_one_sentence(terminal("evaluate", "tiny-gpa", *FEW))
