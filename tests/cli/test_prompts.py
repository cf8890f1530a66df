"""A file of prompts: a line each or JSON lines, and for every bad file one sentence that names the line."""

import json
from pathlib import Path

import pytest

from minikv.cli.prompts import all_prompts, read_prompts
from tests.cli.inside import is_one_sentence
from tests.cli.test_generate import ASKED

TEXTS = ["ada: paris; ada", '  两行, "quoted" {x}  ', "[1, 2]"]
JSON_LINES = "".join(json.dumps({"prompt": text, "id": 7}, ensure_ascii=False) + "\n" for text in TEXTS)


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(TEXTS),
        "\r\n".join(TEXTS) + "\r\n\r\n",
        "\ufeff" + "\n\n".join(TEXTS),
        JSON_LINES,
        "\n" + JSON_LINES,
    ],
    ids=["lines", "CRLF", "BOM and blank lines", "JSON", "JSON and blank lines"],
)
def test_every_form_gives_the_same_prompts(content, tmp_path):
    path = tmp_path / "prompts"
    path.write_bytes(content.encode())
    assert read_prompts(str(path)) == TEXTS
    assert all_prompts(["first"], str(path)) == ["first", *TEXTS]


@pytest.mark.usefixtures("loaded_once")
def test_each_is_answered_in_the_order_of_the_file(tmp_path, terminal):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(asked.text + "\n" for asked in ASKED))
    done = terminal("generate", "--prompts-file", str(path), "--max-tokens", "1")
    assert done.out == "".join(f"[{i}] {asked.answer}\n" for i, asked in enumerate(ASKED, 1))
    more = terminal("generate", ASKED[2].text, "--prompts-file", str(path), "--max-tokens", "1")
    assert more.out.splitlines()[0] == f"[1] {ASKED[2].answer}"
    assert len(more.out.splitlines()) == 1 + len(ASKED)


GOOD = b'{"prompt": "x"}\n'
BAD = {
    "empty": (b"", "no prompt"),
    "blank": (b" \n\t\n", "no prompt"),
    "no UTF-8": (b"fine\n\n\xff\n", "Line 3"),
    "no JSON": (GOOD + b"\n{\n", "Line 3"),
    "no object": (GOOD + b'["x"]\n', "Line 2"),
    "no prompt": (GOOD + b'{"text": "x"}\n', "Line 2"),
    "no text": (GOOD + b'{"prompt": [1, 2]}\n', "Line 2"),
    "an empty text": (GOOD + b'{"prompt": " "}\n', "Line 2"),
    "nested": (GOOD + b"[" * 100_000 + b"\n", "Line 2"),
    "the first": (b'{"a": 1}\n', "Line 1"),
}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_sentence_with_the_line(name, lang, tmp_path, terminal):
    content, words = BAD[name]
    path = tmp_path / "prompts"
    path.write_bytes(content)
    done = terminal("generate", "--prompts-file", str(path), "--lang", lang)
    assert is_one_sentence(done), done
    assert str(path) in done.err
    if lang == "en":
        assert words in done.err
    else:
        assert any("\u4e00" <= letter <= "\u9fff" for letter in done.err)


@pytest.mark.parametrize(
    "file", ["{folder}/none", "{folder}", "~no-such-user-of-minikv/a", "/dev/zero", "{folder}/huge"]
)
def test_what_is_no_such_file_is_one_sentence(file, tmp_path, terminal):
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(2**40)  # takes no room on the disk
    place = file.format(folder=tmp_path)
    if Path(place).exists() or "no" in file:
        done = terminal("generate", "--prompts-file", place)
        assert is_one_sentence(done), done
        assert place in done.err


def test_the_at_of_other_programs_is_answered_with_the_option(tmp_path, terminal):
    (tmp_path / "prompts.txt").write_text("x\n")
    for lang in ("en", "zh"):
        done = terminal("generate", f"@{tmp_path}/prompts.txt", "--lang", lang)
        assert is_one_sentence(done)
        assert f"--prompts-file {tmp_path}/prompts.txt" in done.err
    assert all_prompts(["@ada", f" @{tmp_path}/prompts.txt"], None) == ["@ada", f" @{tmp_path}/prompts.txt"]
