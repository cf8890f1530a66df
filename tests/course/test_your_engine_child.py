"""The child process of ``my_engine()``: whatever a part does there, it is named, and the notebook goes on."""

from dataclasses import asdict

import pytest

from minikv.course import my_engine, start
from minikv.course.your_engine import engine
from minikv.course.your_engine.child import run_child
from minikv.course.your_engine.kept import KeptPart, kept_parts
from minikv.course.your_engine.load import loads
from minikv.course.your_engine.run import examine, prepare
from minikv.course.your_engine.source import NotKeptError
from minikv.errors import ArgumentError

RAISES = "def append(self, seq):\n    return 1 // 0\n"
LEAVES = "import sys\n\n\ndef block_bytes(token_bytes, block_size):\n    sys.exit(3)\n"
CHANGES = """
def slot_mapping(block_table, start, end, block_size):
    slots = [block_table[i // block_size] * block_size + i % block_size for i in range(start, end)]
    block_table.append(0)
    return slots
"""
REMOVES = """
import pathlib


def admit(self, seq):
    for file in pathlib.Path.cwd().iterdir():
        file.unlink()
    return self.blocks.allocate(seq, keep_free=len(self.running))
"""
PRINTS_AND_LEAVES_A_THREAD = """
import threading


def token_bytes(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
    print("many lines\\n" * 100_000)
    threading.Thread(target=threading.Event().wait).start()
    return num_layers * num_kv_heads * (k_dim + v_dim) * itemsize
"""
NOT_ALONE = "def pack(self, step, seq, budget, most=NO_SUCH_NAME):\n    ...\n"
HANGS = """
def choose_victim(self):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""
RAISES_CTRL_C = "def free(self, seq):\n    raise KeyboardInterrupt\n"
ENDS = "import os\n\n\ndef block_digest(previous, tokens):\n    os._exit(0)\n"


def kept(**sources: str) -> dict[str, KeptPart]:
    tasks = {name.replace("_", ".").removeprefix("t"): text for name, text in sources.items()}
    names = {task: text.partition("def ")[2].partition("(")[0] for task, text in tasks.items()}
    return {
        task: KeptPart(names[task], text, "", "2026-11-23T10:00:00Z", "1") for task, text in tasks.items()
    }


@pytest.mark.slow
def test_parts_that_misbehave_are_named_and_those_that_hang_or_end_the_process_do_not_hide_the_others(
    tmp_path, monkeypatch
):
    """Three processes: one that ends, one that hangs, and one whose answer tells of all others."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("stays", encoding="utf-8")
    parts = kept(
        **{"t09_7": RAISES, "t02_6": LEAVES, "t09_1": CHANGES, "t11a_4": REMOVES, "t11a_5": NOT_ALONE},
        **{"t02_1": PRINTS_AND_LEAVES_A_THREAD, "t09_2": RAISES_CTRL_C, "t11b_2": HANGS, "t09_3": ENDS},
    )
    answer = run_child(parts, "en", small=True, call_limit_s=2)
    found = {task: each["kind"] for task, each in answer["findings"].items()}
    due = {"09.7": "raised", "02.6": "raised", "09.1": "changed", "11a.4": "files", "11a.5": "not_loaded"}
    assert found == due | {"09.2": "raised", "11b.2": "hung", "09.3": "ended"}
    assert answer["findings"]["09.7"]["source"] == "return 1 // 0"
    assert answer["findings"]["09.1"]["what"].startswith("block_table")
    assert answer["printed"]["02.1"].startswith("many lines")
    assert (tmp_path / "mine.txt").exists()


def test_without_parts_all_are_ours_and_every_token_is_right(capsys, monkeypatch):
    """In this process: there is no part that has to be kept out of it."""

    def run_here(parts, lang):
        assert not parts  # MINIKV_PROGRESS is off here
        examined = examine([prepare(load) for load in loads()], {}, lang=lang)
        assert examined.differs is None
        return asdict(examined)

    monkeypatch.setattr(engine, "run_child", run_here)
    my_engine(lang="zh")
    said = capsys.readouterr().out
    assert "15 个部件中有 0 个是你写的" in said
    assert "48 个提示词" in said


def test_it_speaks_the_language_of_the_last_start(monkeypatch):
    monkeypatch.setattr(my_engine, "lang", "en")
    start("02", lang="zh")
    assert my_engine.lang == "zh"


def block_digest(previous, tokens):  # forgets what came before the block
    return b"".join(token.to_bytes(8, "little") for token in tokens)


def digest_of_block(previous, tokens):
    return b""


def test_a_part_can_be_tried_once_and_is_not_kept():
    report = my_engine.report(block_digest, lang="en")
    assert list(report.findings) == ["09.3"]
    assert report.findings["09.3"].kind == "same"
    said = report.text("en")
    assert "1 of 15 parts are yours" in said
    assert report.answer["effects"]["09.3"]["kind"] == "token"
    assert not kept_parts().parts
    with pytest.raises(ArgumentError, match="digest_of_block"):
        my_engine(digest_of_block)
    with pytest.raises(NotKeptError):
        my_engine(lambda self: None)
