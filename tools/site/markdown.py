"""Markdown as HTML: formulas as MathML, code in colours, headings that can be linked to.

No page needs a script or a font for it: browsers draw MathML themselves, and the colours are classes of ``site.css``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from html import escape

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

Link = Callable[[str], str]  # an address as the source has it -> as the page has it

_ADDRESS = re.compile(r'(?<=\s)(href|src|srcset)="([^"]*)"')
_LEFT_BY_THE_CONVERTER = {r"\_": "_", r"\lceil": "⌈", r"\rceil": "⌉"}  # as LaTeX, in words and behind \Big
_LONG = 40  # characters of LaTeX, which a phone may not show in a line
_NO_SLUG = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
class Heading:
    level: int
    key: str  # the id of its element
    title: str


@dataclass
class Prose:
    """Markdown of one page, turned into HTML part by part: ids are unique in all of them.

    ``link`` is asked for each address. ``headings`` are those of all parts, in order.
    """

    link: Link
    headings: list[Heading] = field(default_factory=list)
    _taken: dict[str, int] = field(default_factory=dict)

    def html(self, text: str) -> str:
        """Return ``text`` as HTML, and remember its headings."""
        parser = _parser()
        tokens = parser.parse(text)
        for at, token in enumerate(tokens):
            if token.type == "heading_open":
                self._name(token, tokens[at + 1])
            self._rewrite(token)
        return parser.renderer.render(tokens, parser.options, {})

    def _name(self, opening: Token, content: Token) -> None:
        title = "".join(one.content for one in content.children or () if one.type != "html_inline")
        slug = _NO_SLUG.sub("", title.lower()).strip().replace(" ", "-") or "section"
        number = self._taken[slug] = self._taken.get(slug, -1) + 1
        key = f"{slug}-{number}" if number else slug
        opening.attrSet("id", key)
        self.headings.append(Heading(int(opening.tag[1]), key, title))

    def _rewrite(self, token: Token) -> None:
        for name in ("href", "src"):
            if name in token.attrs:
                token.attrSet(name, self.link(str(token.attrs[name])))
        if token.type in ("html_block", "html_inline"):
            token.content = _ADDRESS.sub(
                lambda found: f'{found[1]}="{escape(self.link(found[2]))}"', token.content
            )
        for child in token.children or ():
            self._rewrite(child)


def code_html(code: str, language: str = "python") -> str:
    """Return ``code`` in a box that can be scrolled by keyboard, its words in classes of Pygments."""
    try:
        lexer = get_lexer_by_name(language or "text", stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text", stripnl=False)
    coloured = highlight(code.rstrip("\n"), lexer, HtmlFormatter(nowrap=True)).rstrip("\n")
    return f'<pre class="code" tabindex="0"><code>{coloured}</code></pre>\n'


def math_html(formula: str, *, block: bool) -> str:
    """Return a formula of LaTeX as MathML."""
    drawn = convert(formula, display="block" if block else "inline")
    for latex, shown in _LEFT_BY_THE_CONVERTER.items():
        drawn = drawn.replace(latex, shown)
    if block:
        return f'<div class="formula" tabindex="0">{drawn}</div>\n'
    # No line breaks within a formula: a long one is scrolled where a screen is narrower.
    return f'<span class="formula" tabindex="0">{drawn}</span>' if len(formula) > _LONG else drawn


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    # Formulas as GitHub and Jupyter read them: "$5 and $6" is none, since a space stands before its second sign.
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=True, double_inline=True)
    rules = {
        "fence": lambda self, tokens, at, options, env: code_html(
            tokens[at].content, tokens[at].info.strip()
        ),
        "code_block": lambda self, tokens, at, options, env: code_html(tokens[at].content, "text"),
        "table_open": lambda self, tokens, at, options, env: '<div class="scroll" tabindex="0"><table>\n',
        "table_close": lambda self, tokens, at, options, env: "</table></div>\n",
        "math_inline": lambda self, tokens, at, options, env: math_html(tokens[at].content, block=False),
        "math_inline_double": lambda self, tokens, at, options, env: math_html(
            tokens[at].content, block=True
        ),
        "math_block": lambda self, tokens, at, options, env: math_html(tokens[at].content, block=True),
    }
    for name, rule in rules.items():
        parser.add_render_rule(name, rule)
    return parser
