"""Texts of any shape in HTML and Markdown, and what of them must be in a translation."""

import re
from collections import Counter

from hypothesis import strategies as st

#: Things that must be as often in the result as in the text.
KEPT = {
    "html": re.compile(
        r"<!--.*?-->|</?[A-Za-z][^<>]*>|\{\{.*?\}\}|%[ds]|\{0\}|https?://[^\s<>\"]+\w"
    ),
    "markdown": re.compile(
        r"`+[^`\n]+`+|\]\([^()\n]*\)|\{\{.*?\}\}|\{0\}|%\(count\)d|<[^<>\n]+>|\*|~~|\[\^\d\]"
        r"|^ *(?:[-+*]|\d+[.)]) |^#+ |^\|?[-:|]+\|?$",
        re.M,
    ),
    "text": re.compile(r"\{\{.*?\}\}|\$\{\w+\}|%s|^\s*(?:[-*>]|\d\)) ?|\n+", re.M),
}


def kept(text: str, format: str) -> Counter:
    return Counter(found[0] for found in KEPT[format].finditer(text))


WORDS = st.sampled_from(
    "A dog runs. The man, who sees it! Is it? 3.5 km Dr. Smith e.g. this".split()
    + ["שלום", "עולם", "مرحبا", "世界。", "&amp;", "&lt;", "&nbsp;"]
    + ["{{name}}", "%s", "https://x.org/a?b", "{0}"]
)
LINE = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
INLINE = st.sampled_from(["b", "i", "em", "a href='u?v=1'", 'span class="x > y"', "sub", "u"])
BLOCKS = st.sampled_from(["p", "div id=d", "li", "td", "h2", "blockquote", "section", "x-y"])


def wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Elements around text; some are not closed, some cross."""
    tag = st.one_of(INLINE, BLOCKS)
    element = st.builds(
        lambda tag, text, closed: f"<{tag}>{text}" + (f"</{tag.split()[0]}>" if closed else ""),
        tag,
        inner,
        st.sampled_from([True, True, True, False]),
    )
    crossed = st.builds(lambda a, b: f"<b>{a} <i>{b}</b> {a}</i>", inner, inner)
    fixed = st.sampled_from(
        ["<br>", "<!-- no. Yes -->", "<code>a < b. C</code>", "<img src=x alt='a b'>", "<hr/>"]
    )
    return st.one_of(element, crossed, fixed, st.lists(inner, min_size=2, max_size=3).map(" ".join))


MARKED = st.one_of(
    LINE,
    LINE.map("**{}**".format),
    LINE.map("*{}*".format),
    LINE.map("[{}](http://a.b/c)".format),
    st.just("`x = *y*`"),
    LINE.map("~~{}~~".format),
)
PARAGRAPH = st.lists(MARKED, min_size=1, max_size=4).map(" ".join)
LINES = st.one_of(
    PARAGRAPH,
    PARAGRAPH.map("# {}".format),
    PARAGRAPH.map("- {}".format),
    PARAGRAPH.map("  1. {}".format),
    PARAGRAPH.map("> {}".format),
    st.sampled_from(["```\nno *words*.\n```", "---", "| a | b |\n|---|---|\n| c d | `e` |", ""]),
)

#: HTML, nested, unclosed and crossed, with entities and words from right to left; and Markdown.
HTML_TEXT = st.recursive(LINE, wrapped, max_leaves=8)
MARKDOWN_TEXT = st.lists(LINES, min_size=1, max_size=5).map("\n\n".join)
