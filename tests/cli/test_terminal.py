"""Any terminal: narrow ones lose no digit, poor encodings give no traceback, names are printed as they are."""

import json
import re

import pytest

from minikv.plan import plan_memory
from tests.cli.test_commands import LLAMA, LOG

PLAN = ("plan", "DeepSeek-V3", "--gpu", "H200", "--tp", "8", "--context", "32768")
BLOCK = "█"


@pytest.mark.parametrize("columns", ["120", "80", "66", "46", "30", "12"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_width_cuts_a_number(columns, lang, terminal):
    told = json.loads(terminal(*PLAN, "--json").out)
    shown = terminal(*PLAN, "--lang", lang, COLUMNS=columns).out
    for num_bytes in [*told["parts"].values(), told["total_bytes"]]:
        assert f" {num_bytes:,}" in shown
        assert f" {num_bytes / 2**30:.2f} " in shown
    assert "…" not in shown
    # Bars come where there is room for them, the labels of the two languages differ in width.
    if int(columns) >= 80:
        assert BLOCK in shown
    if int(columns) <= 46:
        assert BLOCK not in shown


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_plan_prints_what_the_budget_s_text_says(lang, terminal):
    """And bars beside it: a notebook, a script and a terminal say the same."""
    said = terminal(*PLAN, "--lang", lang, COLUMNS="200").out.replace(BLOCK, "")
    budget = plan_memory("DeepSeek-V3", gpu="H200", tp=8, context=32768)
    assert said.split() == budget.text(lang).split()


@pytest.mark.parametrize(
    "arguments", [("plan", "Llama-3.1-8B", "--gpu", "H200", "--table"), ("plan", "--list")]
)
def test_other_tables_are_the_same_at_any_width(arguments, terminal):
    wide, narrow = (terminal(*arguments, COLUMNS=columns).out for columns in ("200", "20"))
    assert "…" not in narrow
    assert re.findall(r"[\d,.]{3,}", wide) == re.findall(r"[\d,.]{3,}", narrow)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "gbk", "cp437"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_encoding_ends_in_a_traceback(encoding, lang, terminal):
    done = terminal(*PLAN, "--lang", lang, encoding=encoding)
    assert done.code == 0
    assert done.err == ""
    assert "85,140,071,456" in done.out
    letter = BLOCK if encoding in ("gbk", "cp437") else "#"
    assert f"85,140,071,456  {letter * 14}" in done.out
    bad = terminal("plan", "--gpu", "H200", "--lang", lang, encoding=encoding)
    assert bad.code == 2
    assert bad.err.startswith("minikv: ")
    assert bad.err.count("\n") == 1
    for arguments in (
        ("plan", "--list"),
        ("doctor",),
        ("plan", "Llama-3.1-8B", "--explain"),
        ("plan", "--help"),
    ):
        assert "Traceback" not in terminal(*arguments, MINIKV_LANG=lang, encoding=encoding).err


@pytest.mark.parametrize("name", ["m[bold]x", "a[red]b", "[link=x]y", "m:key:", "x[/dim]"])
@pytest.mark.parametrize("view", [(), ("--table",), ("--explain",)])
def test_a_name_is_printed_as_it_is(name, view, tmp_path, terminal):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    done = terminal("plan", str(folder), "--gpu", "H200", *view)
    assert done.code == 0, done.err
    assert folder.name in done.out.splitlines()[0]


@pytest.mark.parametrize(
    ("language", "chinese"),
    [
        ("zh", True),
        ("zh_CN.UTF-8", True),
        ("zh-Hans", True),
        ("ZH_cn", True),
        ("en_US.UTF-8", False),
        ("", False),
    ],
)
def test_an_error_speaks_the_language_of_the_answer(language, chinese, terminal):
    bad = terminal("plan", "Llama-3.1-8B", "--gpu", "H900", MINIKV_LANG=language)
    good = terminal("plan", "Llama-3.1-8B", "--gpu", "H200", MINIKV_LANG=language)
    assert (bad.code, good.code) == (2, 0)
    assert ("目录" in bad.err) is chinese
    assert ("权重" in good.out) is chinese


@pytest.mark.parametrize(
    ("utilization", "percent"), [("0.9", "10"), ("0.995", "0.5"), ("0.925", "7.5"), ("1", "0")]
)
def test_the_share_kept_free_is_the_share_asked_for(utilization, percent, terminal):
    for lang in ("en", "zh"):
        shown = terminal(*PLAN, "--utilization", utilization, "--lang", lang).out
        assert re.search(rf"[(（]{re.escape(percent)} %[)）]", shown)


def test_chinese_has_no_english_values_and_one_times_sign(tmp_path, terminal):
    given = terminal(*PLAN, "--weight-bytes", "80GB", "--lang", "zh").out
    shapes = terminal(*PLAN, "--lang", "zh").out
    assert "由你给出" in given
    assert "由配置的形状算出" in shapes
    for shown in (given, shapes):
        assert "KV 数据类型" in shown
        assert "8 × H200" in shown
        assert " x " not in shown
    assert "×" not in terminal(*PLAN).out


HOSTILE = "x\n\x1b[31mred\u202e\x9b2J"
WRITTEN = r"x\n\x1b[31mred\u202e\x9b2J"


def hostile_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return str(path)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_type": HOSTILE}, 2),
        ({"quantization_config": {"quant_method": HOSTILE}}, None),
        ({"layer_types": [HOSTILE] * 2}, None),
        ({"torch_dtype": HOSTILE}, 2),
        ({"hidden_size": HOSTILE}, 2),
        ({"architectures": [HOSTILE]}, 0),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("view", [(), ("--explain",)])
def test_a_config_cannot_steer_the_terminal(changes, code, view, lang, tmp_path, terminal):
    done = terminal("plan", hostile_config(tmp_path, **changes), "--gpu", "H200", "--lang", lang, *view)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.out + done.err)
    if code is not None:
        assert done.code == code
    if done.code:
        assert done.err.count("\n") == 1
    if "model_type" in changes or "torch_dtype" in changes:
        assert WRITTEN in done.err


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_neither_a_name_nor_a_log_nor_a_trace_can(lang, tmp_path, terminal):
    folder = tmp_path / HOSTILE
    folder.mkdir()
    name = hostile_config(folder)
    trace = folder / "trace.jsonl"
    trace.write_text(json.dumps({"timestamp": HOSTILE, "input_length": 1, "output_length": 1}) + "\n")
    bad_events = folder / "bad.jsonl"
    bad_events.write_text("x\n")
    events = folder / "events.jsonl"
    events.write_text("")
    log = tmp_path / "log"
    log.write_text(LOG + f"INFO model='{HOSTILE}', tensor_parallel_size=1\n")
    for arguments in (
        ("plan", name, "--gpu", "H200"),
        ("plan", name, "--explain"),
        ("plan", str(folder / HOSTILE), "--gpu", "H200"),
        ("plan", name, "--gpu", HOSTILE),
        ("check-log", str(log)),
        ("check-log", str(folder)),
        ("simulate", str(trace)),
        ("simulate", HOSTILE),
        ("watch", str(events), "--once"),
        ("watch", str(bad_events), "--once"),
        ("progress", "--import", str(trace)),
        ("generate", "x", "--model", str(folder / HOSTILE)),
        ("lab", "--copy-only", "--folder", str(trace)),
    ):
        done = terminal(*arguments, "--lang", lang)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.out + done.err), arguments
        assert done.code == 0 or done.err.count("\n") == 1, arguments


def test_an_answer_cannot_and_keeps_its_lines(capsys):
    from types import SimpleNamespace

    from minikv.cli.answers import print_answers

    said = SimpleNamespace(text="one\n\ttwo \x1b[2J\x9b", sample=0, error=None)
    print_answers({1: SimpleNamespace(completions=[said])})
    assert capsys.readouterr().out == "[1] one\n\ttwo \\x1b[2J\\x9b\n"
