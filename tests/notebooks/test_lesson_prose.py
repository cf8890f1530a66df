"""Chinese line joining, hashes, own words, and the glossary's bans."""

from pathlib import Path

import pytest

from tests.in_turn import in_turn
from tools.notebooks.glossary import Ban, forbidden_words, read_glossary
from tools.notebooks.prose import broken_bold, join_chinese_lines, own_words, reads_as_prose, text_hash


@in_turn(
    "lines, joined",
    [
        ("一句。\n二句。", "一句。二句。"),
        ("字\n字", "字字"),
        ("用了\nGPU", "用了\nGPU"),  # the break shows as the space that belongs there
        ("一句。\nGPU 呢？", "一句。GPU 呢？"),  # a full-width mark brings its own space
        ("GPU\n（显卡）", "GPU（显卡）"),
        ("**重点**\n下一句", "**重点**下一句"),
        ("见[此处](a.md)\n下一句", "见[此处](a.md)下一句"),
        ("代码 `x`\n下一句", "代码 `x`\n下一句"),
        ("一段。\n\n二段。", "一段。\n\n二段。"),
        ("一行  \n二行", "一行  \n二行"),  # a hard break is meant
        ("一行\\\n二行", "一行\\\n二行"),
        ("- 甲\n- 乙", "- 甲\n- 乙"),
        ("- 甲。\n  续。", "- 甲。续。"),
        ("1. 甲\n2. 乙", "1. 甲\n2. 乙"),
        ("## 标题\n正文", "## 标题\n正文"),
        ("正文。\n## 标题", "正文。\n## 标题"),
        ("| 甲 | 乙 |\n|---|---|\n| 丙 | 丁 |", "| 甲 | 乙 |\n|---|---|\n| 丙 | 丁 |"),
        ("```\n甲\n乙\n```\n丙\n丁", "```\n甲\n乙\n```\n丙丁"),
        ("$$\n甲\n乙\n$$\n丙\n丁", "$$\n甲\n乙\n$$\n丙丁"),
        ("$$ x $$\n丙\n丁", "$$ x $$\n丙丁"),
        ("> 甲。\n> 乙。", "> 甲。乙。"),
        ("> 甲。\n乙。", "> 甲。\n乙。"),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_a_chinese_line_break_joins_only_where_it_would_show_as_a_wrong_space(lines, joined):
    assert join_chinese_lines(lines) == joined
    assert join_chinese_lines(joined) == joined


def test_hash_sees_words_and_not_trailing_spaces():
    assert text_hash("a\nb") == text_hash("a  \nb\n")
    assert text_hash("a\nb") != text_hash("a b")
    assert len(text_hash("")) == 8


@pytest.mark.parametrize(
    "hidden",
    [
        "`令牌`",
        "``x ` 令牌``",
        "```\n令牌\n```",
        "“令牌”",
        "„令牌“",
        "「令牌」",
        "> 令牌",
        "[x](令牌)",
        "$令牌$",
    ],
)
def test_code_and_quotations_are_not_the_authors_words(hidden):
    assert "令牌" not in own_words(f"甲\n\n{hidden}\n\n乙")
    assert "甲" in own_words(f"甲\n\n{hidden}\n\n乙")
    assert "乙" in own_words(f"甲\n\n{hidden}\n\n乙")


def test_an_unclosed_quotation_does_not_hide_the_next_paragraph():
    assert "令牌" in own_words("“没有结束\n\n令牌”")


def test_formulas_are_not_prose_and_sentences_are():
    assert not reads_as_prose("$$bytes = 2 \\cdot layers \\cdot heads \\cdot dimension$$")
    assert not reads_as_prose("`one two three four five long words that are only code here`")
    assert reads_as_prose("每层")
    assert reads_as_prose("Every layer keeps keys and values, which costs memory that nobody else gets back.")


BANS = read_glossary(Path(__file__).resolve().parents[2] / "minikv/course/data/glossary.toml")


def found(text, english="", lesson="02", lang="zh"):
    return [ban.word for ban in forbidden_words(BANS, text, lang, lesson, english)]


@in_turn("word", [b.word for b in BANS if not (b.if_en or b.lessons)])
def test_every_unconditional_ban_is_found(word):
    assert word in found(f"这里写了{word}。", english="A kernel on a GPU.")
    assert found(f"这里写了“{word}”和 `{word}`。") == []


def test_a_ban_is_found_across_a_line_break():
    assert found("这是令\n牌。") == ["令牌"]


def test_conditions_decide():
    assert found("把 token 解码成文字", english="Detokenize the tokens") == ["解码"]
    assert found("解码阶段", english="The decode phase") == []
    assert found("解码后还原为文本", english="Decode, then detokenize") == []
    assert found("一个缓存块", lesson="07") == ["缓存块"]
    assert found("一个缓存块", lesson="09") == []
    assert found("写一个内核", english="Write a kernel") == ["内核"]
    assert found("重启内核", english="Restart the kernel") == []
    assert found("区块链", english="A blockchain") == []
    assert found("区块", english="A block") == ["区块"]


def test_a_ban_can_hold_in_english():
    ban = Ban(word="page", lang="en", instead="block")
    assert forbidden_words([ban], "A Page is one.", "en", "02", "A Page is one.") == [ban]
    assert forbidden_words([ban], "Paged attention", "en", "02", "Paged attention") == []
    assert forbidden_words([ban], "A page.", "zh", "02", "") == []


def test_a_misspelt_condition_is_not_ignored(tmp_path):
    path = tmp_path / "glossary.toml"
    path.write_text('[[word]]\nen = "a"\nzh = "b"\nnever = [{ word = "c", iff_en = "x" }]\n')
    with pytest.raises(TypeError, match="iff_en"):
        read_glossary(path)


def test_no_recommended_word_is_banned():
    for ban in BANS:
        if not (ban.if_en or ban.unless_en or ban.lessons):
            others = [other.instead for other in BANS if ban.word in other.instead]
            assert others == [], ban


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("**现在来回答。**\n下一句", True),
        ("- **7 倍。** 它等于", False),
        ("**现在来回答**。下一句", False),
        ("**Now the answer.** Next", False),
        ("`a ** b` and $x ** y$", False),
        ("```python\n2**30\n```", False),
        ("看**“引号”**后面", True),
    ],
)
def test_bold_that_would_stay_asterisks_is_seen(text, broken):
    assert bool(broken_bold(text)) == broken
