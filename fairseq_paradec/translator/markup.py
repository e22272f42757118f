"""What of a text is translated, and what stays as it is: plain text, HTML and Markdown.

A text becomes pieces. A piece that is a ``str`` stays byte for byte: tags and their attributes,
code, blank lines, indents, marks and numbers of lists. A ``Block`` is running text. It is made of
atoms: words; marks in the line (a tag, an emphasis, the two ends of a link), which are placed in
the translation; and things that are no words (placeholders, URLs, code), which stay and are
translated with their sentence, as one word of it.
"""

import html
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..errors import option_error

FORMATS = ("text", "html", "markdown")

#: Kinds of atoms.
WORDS, OPEN, CLOSE, POINT, THING = "words", "open", "close", "point", "thing"


class Atom(NamedTuple):
    """A part of a block."""

    kind: str  # ``WORDS``, ``THING``, or of a mark ``OPEN``, ``CLOSE`` or ``POINT``
    raw: str  # as in the text
    plain: str = ""  # as the model reads it; empty for a mark


Block = tuple[Atom, ...]
Piece = str | Block


def parse(text: str, format: str) -> list[Piece]:
    """Part a text into pieces; see the module.

    Raises:
        UsageError: there is no such format.
    """
    if format not in FORMATS:
        raise option_error("--format", format, ", ".join(FORMATS))
    parted = {"text": _of_text, "html": _of_html, "markdown": _of_markdown}[format](text)
    return [
        piece
        for part in parted
        for piece in (_trimmed(part) if isinstance(part, tuple) else [part])
    ]


def _trimmed(block: Block) -> Iterator[Piece]:
    """Leave space and marks at both ends as they are, and all of a block without words."""
    if not any(atom.kind == WORDS and has_words(atom.plain) for atom in block):
        yield "".join(atom.raw for atom in block)
        return
    first, last = 0, len(block)
    while _is_blank(block[first]):
        first += 1
    while _is_blank(block[last - 1]):
        last -= 1
    head, tail = ("".join(atom.raw for atom in part) for part in (block[:first], block[last:]))
    kept = list(block[first:last])
    if kept[0].kind == WORDS:
        size = len(kept[0].raw) - len(kept[0].raw.lstrip())
        head += kept[0].raw[:size]
        kept[0] = Atom(WORDS, kept[0].raw[size:], kept[0].plain[size:])
    if kept[-1].kind == WORDS:
        size = len(kept[-1].raw.rstrip())
        behind = kept[-1].raw[size:]
        tail = behind + tail
        plain = kept[-1].plain
        kept[-1] = Atom(WORDS, kept[-1].raw[:size], plain[: len(plain) - len(behind)])
    yield head
    yield tuple(kept)
    yield tail


def _is_blank(atom: Atom) -> bool:
    """Whether an atom is a mark or space."""
    return atom.kind in (OPEN, CLOSE, POINT) or (atom.kind == WORDS and not atom.plain.strip())


def has_words(text: str) -> bool:
    """Whether there is anything to translate: a letter."""
    return any(char.isalpha() for char in text)


# ---- plain text ----------------------------------------------------------------------------------

#: Placeholders, URLs and addresses.
_THINGS = re.compile(
    r"\{{2,3}[^{}]{0,200}\}{2,3}"
    r"|\$\{[^{}\s]*\}"
    r"|\{[\w.:,!#%+<>^\[\]-]*\}"
    r"|(?<![\d%])(?:%(?:%|(?:\([\w.-]+\))?(?:\d+\$)?[-+#0]*(?:\d+|\*)?(?:\.\d+)?"
    r"(?:hh|ll|[hlzjtLq])?(?:[dsiuf](?!\w{3})|[oxXeEFgGcraA@](?!\w))))+"  # also in %ds, %d%%
    r"|(?:https?://|ftp://|www\.)(?:\([^\s<>\"()]*\)|\((?![^\s<>\"()]*\))|[^\s<>\"(])*"
    r"(?:\([^\s<>\"()]*\)|[^\s<>\".,;:!?()\]}'*_~|`])"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+",
    re.DOTALL,
)
#: What a line of a list begins with, and indents.
_PREFIX = re.compile(r"\s*(?:(?:[-*+•‣–—]|\(?(?:\d{1,9}|[A-Za-z])[.)]|#{1,6}|>)[ \t]+)*")


_ENTITY = re.compile(r"(&(?:#[xX][0-9a-fA-F]+|#\d+|[A-Za-z]\w*);?)")


def _words(raw: str, entities: bool = True) -> list[Atom]:
    """Part running text into words and things; an entity of HTML is an atom."""
    atoms, first = [], 0
    for match in _THINGS.finditer(raw):
        atoms += _entities(raw[first : match.start()], entities)
        atoms.append(Atom(THING, match[0], html.unescape(match[0]) if entities else match[0]))
        first = match.end()
    return [*atoms, *_entities(raw[first:], entities)]


def _entities(raw: str, known: bool = True) -> list[Atom]:
    """Part words at entities of HTML, if they are known."""
    parts = _ENTITY.split(raw) if known else [raw]
    return [Atom(WORDS, part, html.unescape(part) if known else part) for part in parts if part]


def _of_text(text: str) -> Iterator[Piece]:
    """Part plain text: each line by itself."""
    for line in text.splitlines(keepends=True):
        prefix = _PREFIX.match(line)
        assert prefix is not None
        yield prefix[0]
        yield tuple(_words(line[prefix.end() :], entities=False))


# ---- HTML ----------------------------------------------------------------------------------------

_TAG = (
    r"<!--.*?(?:-->|\Z)|<[!?][^>]*(?:>|\Z)"
    r"|</?[A-Za-z][^\s<>/]*+(?:[^<>\"']|\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z))*+(?:>|\Z)"
)
_TAGS = re.compile(_TAG, re.DOTALL)
_NAME = re.compile(r"</?([A-Za-z][^\s<>/]*)")
#: Elements in a line of text.
_IN_LINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q s small span "
    "strike strong sub sup time u".split()
)
#: Empty elements in a line.
_POINTS = frozenset("img wbr".split())
#: Elements in a line whose content is no text, and others.
_CODE = frozenset("code kbd samp var tt".split())
_OPAQUE = frozenset(
    "script style pre svg math textarea template noscript iframe object canvas".split()
)
#: Elements of one name in each other; in deeper ones the outermost counts as not closed.
DEEPEST = 100
_UNTRANSLATED = re.compile(
    r"\stranslate\s*=\s*[\"']?no\b|\sclass\s*=\s*(?:\"[^\"]*\bnotranslate\b|'[^']*\bnotranslate\b)",
    re.IGNORECASE,
)


def _of_html(text: str) -> Iterator[Piece]:
    """Part HTML: a tag that is not in the line ends a block."""
    block: list[Atom] = []
    at = 0
    while at < len(text):
        match = _TAGS.search(text, at)
        if match is None:
            block += _words(text[at:])
            break
        block += _words(text[at : match.start()])
        tag, at = match[0], match.end()
        name = _name(tag)
        if tag.startswith("<!--") or name in _POINTS:
            block.append(Atom(POINT, tag))
        elif name == "br" and _is_inside(block[-NEAR:], text[at : at + NEAR]):
            block += [Atom(POINT, tag), Atom(WORDS, "", " ")]
        elif is_opaque(tag, name):
            end = _end_of(text, name, at)
            raw = text[match.start() : end]
            at = end
            if name in _CODE | _IN_LINE and raw != tag:
                block.append(_thing(raw))
            else:
                yield tuple(block)
                block = []
                yield raw
        elif name in _IN_LINE:
            block.append(Atom(CLOSE if tag.startswith("</") else OPEN, tag))
        else:
            yield tuple(block)
            block = []
            yield tag
    yield tuple(block)


#: Atoms before a line break, and letters behind it, that say whether it is inside a sentence.
NEAR = 200
#: What ends a sentence or a part of one, so that a line break behind it is none inside.
_ENDING = re.compile(r"[.!?…:;。！？：；][\"'’”»)\]」』”）]*$")


def _is_inside(block: Sequence[Atom], behind: str) -> bool:
    """Return whether a line break is inside a sentence.

    It is not behind punctuation, before a capital, a number or a bullet (of an address, a list, a
    poem), nor beside another break or a tag that ends the block.

    Args:
        block: the atoms before it.
        behind: the text behind it.
    """
    before = "".join(atom.plain for atom in block).rstrip()
    if not has_words(before) or _ENDING.search(before):
        return False
    while (tag := _TAGS.match(behind := behind.lstrip())) and _name(tag[0]) in _IN_LINE:
        behind = behind[tag.end() :]
    return behind[:1].isalpha() and not behind[:1].isupper()


def _name(tag: str) -> str:
    """Return the name of a tag; empty for a comment or declaration."""
    match = _NAME.match(tag)
    return "" if match is None else match[1].lower()


def is_opaque(tag: str, name: str) -> bool:
    """Whether a tag begins what is not translated."""
    if not name or tag.startswith("</") or tag.endswith("/>"):
        return False
    return name in _CODE | _OPAQUE or _UNTRANSLATED.search(tag) is not None


def _end_of(text: str, name: str, at: int) -> int:
    """Return where an element ends whose content begins at ``at``.

    One that is not closed: at the end of the text if it is a script or the like, else at once.
    """
    depth = 1
    tags = re.compile(rf"<(/?){re.escape(name)}(?=[\s>/])[^>]*>", re.IGNORECASE)
    for match in tags.finditer(text, at):
        depth += -1 if match[1] else 0 if match[0].endswith("/>") else 1
        if depth == 0:
            return match.end()
        if depth > DEEPEST:
            break
    return len(text) if name in _OPAQUE else at


def _thing(raw: str) -> Atom:
    """Return an element that stays; the model reads its text."""
    plain = html.unescape(_TAGS.sub("", raw)).strip()
    return Atom(THING, raw, plain) if plain else Atom(POINT, raw)


# ---- Markdown ------------------------------------------------------------------------------------

_FENCE = re.compile(r"\s*(?:>\s*)*(?:[-*+]\s+|\d+[.)]\s+)?(`{3,}(?!.*`)|~{3,})")
_MARKS = re.compile(
    r"[ \t]*(?:>[ \t]?)*[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?)*(?:#{1,6}[ \t]+)?"
    r"(?:\[\^[^\]\s]+\]:[ \t]+)?"  # a note at the foot
)
_VERBATIM = re.compile(
    r"[ \t]*+(?:>[ \t]*+)*+(?:"
    r"\[(?!\^)[^\]]+\]:.*"  # where a link leads
    r"|(?:[-*_][ \t]*+){3,}+|=++[ \t]*+|-++[ \t]*+"  # rules, and lines under headings
    r"|\|?[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?[ \t]*+"  # under a table
    r")?$"
)
_HTML_LINE = re.compile(r"[ \t]{0,3}<(?:!--|[!?]|/?([A-Za-z][^\s<>/]*))")
_INLINE = re.compile(
    r"(?P<escaped>\\[!-/:-@\[-`{-~])"
    r"|(?P<ticks>`+)(?P<code>.{1,1000}?)(?<!`)(?P=ticks)(?!`)"
    r"|(?P<image>!\[[^\]]*\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])|\[\^[^\]\s]+\])"
    r"|(?P<auto><[^\s<>@]+@[^\s<>]+>|<[a-z][a-z0-9+.-]*:[^\s<>]*>)"
    r"|(?P<link>\[)(?P<label>(?:`[^`]+`|[^\[\]\\]|\\.|!?\[[^\[\]]*\](?:\([^()]*\))?)*+)"
    r"(?P<target>\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\]))"
    rf"|(?P<tag>{_TAG})"
    r"|(?P<entity>&(?:\w+|\#\d+|\#[xX][0-9a-fA-F]+);)"
    rf"|(?P<thing>{_THINGS.pattern})"
    r"|(?P<hard>(?:(?<![ ])[ ]{2,}+|\\)\n)"
    r"|(?P<emphasis>\*+|_+|~~)",
    re.DOTALL,
)


def _of_markdown(text: str) -> Iterator[Piece]:
    """Part Markdown: code, rules and the like stay, paragraphs are joined lines."""
    lines = text.splitlines(keepends=True)
    at = _front_matter(lines)
    yield "".join(lines[:at])
    paragraph: list[str] = []
    before = ""  # the line before, if it was not of a paragraph
    while at < len(lines):
        line = lines[at]
        bare = line.rstrip("\r\n")
        special, end = _special(lines, at, bool(paragraph), before)
        if special is not None or not paragraph or _MARKS.match(bare)[0].strip():  # type: ignore[index]
            yield from _paragraph(paragraph)
            paragraph = []
        if special is None:
            paragraph.append(line)
        else:
            yield from special
        before = line
        at = end
    yield from _paragraph(paragraph)


def _front_matter(lines: Sequence[str]) -> int:
    """Return the number of lines of a header in YAML."""
    if not lines or lines[0].rstrip() != "---":
        return 0
    ends = (n for n, line in enumerate(lines[1:], start=2) if line.rstrip() in ("---", "..."))
    return next(ends, 0)


def _special(
    lines: Sequence[str], at: int, in_paragraph: bool, before: str
) -> tuple[list[Piece] | None, int]:
    """Return the pieces of lines that are no paragraph's, None for one; and where they end."""
    line = lines[at]
    bare = line.rstrip("\r\n")
    fence = _FENCE.match(line)
    if fence is not None:
        end = at + 1
        while end < len(lines) and not lines[end].strip().lstrip("> ").startswith(fence[1]):
            end += 1
        return ["".join(lines[at : end + 1])], end + 1
    if _VERBATIM.match(bare):
        return [line], at + 1
    if not in_paragraph and re.match(r"(?: {4}|\t)", line) and not before.strip():
        return [line], at + 1
    match = _HTML_LINE.match(line)
    if match is not None and not in_paragraph and _opens_block(match[1]):
        end = at + 1
        inner = (match[1] or "!--").lower()
        closing = "-->" if inner == "!--" else f"</{inner}"
        whole = inner in _OPAQUE or inner == "!--"
        while end < len(lines) and (
            closing not in "".join(lines[at:end]).lower() if whole else lines[end].strip()
        ):
            end += 1
        return list(_of_html("".join(lines[at:end]))), end
    if bare.lstrip().startswith("|"):
        return list(_row(line)), at + 1
    return None, at + 1


def _opens_block(name: str | None) -> bool:
    """Whether a line that begins with a tag is HTML, not a paragraph."""
    return name is None or name.lower() not in _IN_LINE | _CODE | _POINTS


def _row(line: str) -> Iterator[Piece]:
    """Part a table's row into cells."""
    for cell in re.split(r"((?<!\\)\|)", line):
        yield cell if cell == "|" else tuple(_inline(cell))


def _paragraph(lines: Sequence[str]) -> Iterator[Piece]:
    """Part a paragraph, or an item of a list, at hard breaks of its lines."""
    if not lines:
        return
    text = "".join(lines)
    prefix = _MARKS.match(text)
    assert prefix is not None
    yield prefix[0]
    block: list[Atom] = []
    for atom in _inline(text[prefix.end() :]):
        if atom.kind == "hard":
            yield tuple(block)
            block = []
            yield atom.raw
        else:
            block.append(atom)
    yield tuple(block)


def _inline(text: str) -> list[Atom]:
    """Part running Markdown into atoms."""
    atoms: list[Atom] = []
    opened: list[str] = []
    first = 0
    for match in _INLINE.finditer(text):
        atoms.append(Atom(WORDS, text[first : match.start()], text[first : match.start()]))
        atoms += _atoms_of(match, text, opened)
        first = match.end()
    atoms.append(Atom(WORDS, text[first:], text[first:]))
    return [atom for atom in atoms if atom.raw]


def _atoms_of(match: re.Match[str], text: str, opened: list[str]) -> list[Atom]:
    """Return the atoms of one match; ``opened``: emphases that are not closed."""
    raw, kind = match[0], match.lastgroup
    if match["ticks"]:
        return [Atom(THING, raw, match["code"].strip() or raw)]
    if match["link"]:
        return [Atom(OPEN, "["), *_inline(match["label"]), Atom(CLOSE, match["target"])]
    if kind == "escaped":
        return [Atom(THING, raw, raw[1:])]
    if kind == "auto":
        return [Atom(THING, raw, raw[1:-1])]
    if kind == "entity":
        return _entities(raw)
    if kind == "thing":
        return [Atom(THING, raw, raw)]
    if kind == "hard":
        return [Atom("hard", raw)]
    if kind == "tag":
        closes, name = raw.startswith("</"), _name(raw)
        return [Atom((CLOSE if closes else OPEN) if name in _IN_LINE else POINT, raw)]
    if kind == "emphasis":
        return [_emphasis(match, text, opened)]
    return [Atom(POINT, raw)]


def _emphasis(match: re.Match[str], text: str, opened: list[str]) -> Atom:
    """Return an emphasis's mark, or words where it is none."""
    raw = match[0]
    left, right = text[: match.start()][-1:], text[match.end() :][:1]
    can_open, can_close = not right.isspace() and right != "", not left.isspace() and left != ""
    if raw.startswith("_") and left.isalnum() and right.isalnum():
        return Atom(WORDS, raw, raw)
    if can_close and raw in opened:
        opened.remove(raw)
        return Atom(CLOSE, raw)
    if can_open:
        opened.append(raw)
        return Atom(OPEN, raw)
    return Atom(CLOSE, raw) if can_close else Atom(WORDS, raw, raw)
