"""Markdown as prose: joining Chinese lines, hashing a text, and leaving out what is not prose."""

import hashlib
import re

from markdown_it import MarkdownIt

CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
# Full-width marks carry their own space: a line break beside one must not become another.
_WIDE_MARK = re.compile(r"[\u3000-\u303f\uff00-\uff65“”‘’…—]")
_LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s")
_OWN_LINE = re.compile(r"\s*(?:#{1,6}\s|\||<|\$\$|```|~~~|(?:[-*_]\s*){3,}$|!\[|\\begin|\\end)")
_FENCE = re.compile(r"\s*(```|~~~|\$\$)")
_LINK_END = re.compile(r"\]\([^()\s]*\)$")


def text_hash(text: str) -> str:
    """Eight hexadecimal digits for a cell's text; spaces at line ends do not count."""
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return hashlib.sha256(lines.encode()).hexdigest()[:8]


def join_chinese_lines(markdown: str) -> str:
    """Undo the line breaks inside Chinese paragraphs, where Markdown would show each as a space.

    A break stays where a space is right (between Chinese and Latin letters or code), and everywhere that a
    line means something: lists, tables, headings, code fences, math, HTML.
    """
    joined: list[str] = []
    fence = ""
    may_join = False  # the previous line is text that this one may continue
    for line in markdown.split("\n"):
        opening = _FENCE.match(line)
        if fence:
            joined.append(line)
            fence = "" if line.strip().endswith(fence) else fence
            may_join = False
        elif opening:
            joined.append(line)
            mark = opening[1]
            closed = line.count(mark) >= 2  # $$ x $$ on one line
            fence, may_join = ("" if closed else mark), False
        else:
            quote = re.match(r"\s*>\s?", line)
            words = line[quote.end() :] if quote else line
            starts = bool(_OWN_LINE.match(words) or _LIST_ITEM.match(words) or not words.strip())
            same_quote = bool(joined) and bool(quote) == joined[-1].lstrip().startswith(">")
            if may_join and not starts and same_quote and _no_space_between(joined[-1], words):
                joined[-1] = joined[-1].rstrip() + words.strip()
            else:
                joined.append(line)
            hard_break = line.endswith("  ") or line.endswith("\\")
            may_join = bool(words.strip()) and not _OWN_LINE.match(words) and not hard_break
            joined[-1] = joined[-1] if hard_break else joined[-1].rstrip()
    return "\n".join(joined)


def _no_space_between(left: str, right: str) -> bool:
    """True where a reader of Chinese would be disturbed by a space between the two lines."""
    last = _LINK_END.sub("", left.rstrip()).rstrip("*_~")[-1:]
    first = right.lstrip().lstrip("*_~[")[:1]
    if _WIDE_MARK.match(last) or _WIDE_MARK.match(first):
        return True
    return bool(CJK.match(last) and CJK.match(first))


_CODE_BLOCK = re.compile(r"^\s*(```|~~~).*?^\s*\1\s*$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_MATH = re.compile(r"\$\$.*?\$\$|(?<![\\$])\$(?![\s$])[^$\n]*?\$", re.DOTALL)
_QUOTE_LINE = re.compile(r"^\s*>.*$", re.MULTILINE)
_QUOTATION = re.compile(r"“(?:[^“”\n]|\n(?!\n))*”|„(?:[^„“”\n]|\n(?!\n))*[“”]|「(?:[^「」\n]|\n(?!\n))*」")
_URL = re.compile(r"\]\([^)\n]*\)|</?[A-Za-z][^>\n]*>|https?://\S+")


def without_code(markdown: str) -> str:
    """The text without code, math, HTML tags and addresses; each leaves a space."""
    for pattern in (_CODE_BLOCK, _CODE_SPAN, _MATH, _URL):
        markdown = pattern.sub(" ", markdown)
    return markdown


def own_words(markdown: str) -> str:
    """What the author says: the text without code and without quotations (“…”, „…“, 「…」, lines with >)."""
    return _QUOTATION.sub(" ", _QUOTE_LINE.sub("", without_code(markdown)))


def reads_as_prose(markdown: str) -> bool:
    """True for a text that needs a translation: Chinese letters, or more than eight longer Latin words."""
    words = without_code(markdown)
    return bool(CJK.search(words)) or len(re.findall(r"[A-Za-z]{4,}", words)) > 8


def broken_bold(markdown: str) -> str | None:
    """The line on which a ``**`` stays a pair of asterisks, as the reader would see it; None where all is well.

    A closing ``**`` that follows punctuation and touches a letter closes nothing. Chinese writes no space there,
    so a bold sentence with its full stop inside the span hits this.
    """
    text = _MATH.sub("x", join_chinese_lines(markdown))
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in block.children or ():
            if token.type == "text" and "**" in token.content:
                return token.content
    return None
