"""Long texts and markup: a text becomes sentences, and their translations the text again.

``Document(text, format, language).sentences`` are what a model translates, ``join`` puts their
translations into the text. Nothing of the markup is lost: each mark and each thing of
``markup.py`` stands in the result byte for byte, and what had to be placed without knowing where
is said in the notes.
"""

import difflib
import html
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..utf8 import without_marks
from .markup import CLOSE, OPEN, THING, WORDS, Atom, Block, has_words, parse
from .sentences import split

#: Words, signs, and letters of scripts without spaces.
_TOKENS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")


#: Words and signs of a sentence in which equal ones are looked for.
MOST_TOKENS = 1000


class Text(NamedTuple):
    """A translated text."""

    text: str  # in the format of the source
    # what could not be placed by what it stands beside, or not translated; a line each
    notes: list[str]


class Mark(NamedTuple):
    """What stands at a place of a sentence."""

    at: int  # the place in the sentence's text
    kind: str  # as of atoms, but ``WORDS``
    raw: str  # as in the text
    plain: str = ""  # of a thing: what stands for it in the sentence's text

    @property
    def end(self) -> int:
        """The place behind it."""
        return self.at + len(self.plain)


class Sentence(NamedTuple):
    """A sentence."""

    plain: str  # its text, without marks
    marks: list[Mark]  # in order, things among them
    raw: str  # it as it stands in the text, with space and marks
    before: str  # the space before it
    after: str  # the space behind it
    number: int  # of its first translation
    has_words: bool  # whether it is translated: there is more than things and signs

    @property
    def things(self) -> list[Mark]:
        """The things."""
        return [mark for mark in self.marks if mark.kind == THING]


class Document:
    """A text, its sentences, and what stands between and in them.

    Args:
        text: of any length.
        format: ``text``, ``html`` or ``markdown``.
        language: of the text, such as ``en``; for the ends of sentences.

    Attributes:
        sentences: to be translated. A sentence with things comes twice, with them and without: the
            second translation is used where the first has lost one.

    Raises:
        UsageError: there is no such format.
    """

    def __init__(self, text: str, format: str, language: str) -> None:
        self.format = format
        self.language = language
        self.sentences: list[str] = []
        self.pieces: list[str | Sentence] = []
        for piece in parse(without_marks(text), format):
            if isinstance(piece, str):
                self.pieces.append(piece)
            else:
                self._add(piece)

    def _add(self, block: Block) -> None:
        """Part a block into sentences."""
        plain = "".join(atom.plain for atom in block)
        ends = [*accumulate(len(atom.plain) for atom in block)]
        whole = [  # places in what cannot be parted
            place
            for atom, end in zip(block, ends, strict=True)
            if atom.kind == THING or atom.plain != atom.raw
            for place in range(end - len(atom.plain) + 1, end)
        ]
        left, begin = list(block), 0
        for end in self._bounds(plain, {*whole}):
            own, left = _parted(left, end - begin, end == len(plain))
            self._sentence(own)
            begin = end

    def _bounds(self, plain: str, whole: set[int]) -> list[int]:
        """Return where the sentences of a block end; ``whole``: where none may."""
        ends = accumulate(map(len, split(re.sub(r"\s", " ", plain), self.language)))
        return [end for end in ends if end not in whole]

    def _sentence(self, atoms: Sequence[Atom]) -> None:
        """Add a sentence; what has no words is not translated."""
        marks, at = [], 0
        for atom in atoms:
            if atom.kind != WORDS:
                marks.append(Mark(at, *atom))
            at += len(atom.plain)
        text = "".join(atom.plain for atom in atoms)
        things = [mark for mark in marks if mark.kind == THING]
        begin = min([len(text) - len(text.lstrip()), *(mark.at for mark in things)])
        end = max([len(text.rstrip()), *(mark.end for mark in things)])
        marks = [mark._replace(at=min(max(mark.at, begin), end) - begin) for mark in marks]
        raw, number = "".join(atom.raw for atom in atoms), len(self.sentences)
        sentence = Sentence(text[begin:end], marks, raw, text[:begin], text[end:], number, True)
        bare = without_things(sentence)[0] if things else sentence.plain
        sentence = sentence._replace(has_words=has_words(bare))
        self.pieces.append(sentence)
        if sentence.has_words:
            self.sentences += [sentence.plain, bare] if things else [sentence.plain]

    def drafts(self, earlier: str) -> list[str]:
        """Return drafts of the sentences from an earlier translation of the whole text.

        Its sentences belong to those of the text by their order: those of the first half counted
        from the beginning, the others from the end.
        """
        old = Document(earlier, self.format, self.language).pieces
        known = [piece.plain for piece in old if isinstance(piece, Sentence) and piece.has_words]
        own = [piece for piece in self.pieces if isinstance(piece, Sentence) and piece.has_words]
        drafts: list[str] = []
        for i, sentence in enumerate(own):
            at = i if 2 * i < len(own) else len(known) - (len(own) - i)
            draft = known[at] if 0 <= at < len(known) else ""
            drafts += [draft] * (2 if sentence.things else 1)
        return drafts

    def join(self, translations: Sequence[str | None]) -> Text:
        """Put translations in the place of the sentences.

        Args:
            translations: one for each of ``sentences``; None: none, and the sentence stays.
        """
        notes: list[str] = []
        parts = [self.written(piece, translations, notes) for piece in self.pieces]
        return Text("".join(parts), notes)

    def written(
        self, piece: str | Sentence, translations: Sequence[str | None], notes: list[str]
    ) -> str:
        """Return a piece of the translated text, a sentence's with its marks."""
        if isinstance(piece, str):
            return piece
        whole = translations[piece.number] if piece.has_words else piece.plain
        if whole == piece.plain:
            return piece.raw
        if not whole:
            notes.append(f"not translated: {_short(piece.plain)}")
            return piece.raw
        places = places_of(piece.things, whole)
        if places is not None:
            return (
                piece.before
                + self._with(piece.plain, whole, piece.marks, places, notes)
                + piece.after
            )
        bare, marks = without_things(piece)
        target = translations[piece.number + 1] or whole
        notes += [f"placed by position: {thing.raw} in {_short(target)}" for thing in piece.things]
        return piece.before + self._with(bare, target, marks, [], notes) + piece.after

    def _with(
        self,
        source: str,
        target: str,
        marks: Sequence[Mark],
        things: Sequence[Mark],
        notes: list[str],
    ) -> str:
        """Write a translation with its marks."""
        placed = [mark for mark in marks if not (things and mark.kind == THING)]
        where = place([(mark.at, mark.kind) for mark in placed], source, target)
        for raw in _emptied(placed, source, where, target):
            notes.append(f"around no word: {raw} in {_short(target)}")
        order = sorted(things)
        parts, at, last = [], 0, ""

        def write_to(end: int) -> None:  # a thing that begins before it, whole
            nonlocal at, last
            while order and order[0].at < end:
                thing = order.pop(0)
                parts.append(self._escaped(target[at : thing.at], source) + thing.raw)
                at = thing.end
            if end > at:
                parts.append(self._escaped(target[at:end], source))
                at, last = end, ""

        for mark, end in zip(placed, where, strict=True):
            write_to(max(end, at))
            before = parts[-1] if last == THING else target[:at]
            parts.append(_spaced(mark, before[-1:], target[at : at + 1]))
            last = mark.kind
        write_to(len(target))
        return "".join(parts)

    def _escaped(self, text: str, source: str) -> str:
        """Write words so that they are words in the format."""
        if self.format == "html":
            return html.escape(text, quote=False)
        if self.format == "markdown":  # signs that the source has, it has as words
            text = re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")
            return re.sub(r"[*_`\[\]\\]", lambda c: c[0] if c[0] in source else "\\" + c[0], text)
        return text


def _parted(atoms: Sequence[Atom], size: int, last: bool) -> tuple[list[Atom], list[Atom]]:
    """Part atoms behind so many letters.

    Marks that stand there belong to those behind; all belong to the ``last``.
    """
    at = 0
    for k, atom in enumerate(atoms):
        length = len(atom.plain)
        if at + length > size:
            cut = size - at
            if cut == 0:
                return list(atoms[:k]), list(atoms[k:])
            first = Atom(WORDS, atom.raw[:cut], atom.plain[:cut])
            second = Atom(WORDS, atom.raw[cut:], atom.plain[cut:])
            return [*atoms[:k], first], [second, *atoms[k + 1 :]]
        if at == size and not last:
            return list(atoms[:k]), list(atoms[k:])
        at += length
    return list(atoms), []


def _short(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= 60 else text[:57] + "..."


def _spaced(mark: Mark, before: str, after: str) -> str:
    """Return a mark; a thing with space around it, but inside of brackets and before signs."""
    if mark.kind != THING:
        return mark.raw
    left = "" if not before.strip() or before in "([{«„“‘" else " "
    right = "" if not after.strip() or after in ".,;:!?)]}»”’…" else " "
    return left + mark.raw + right


def without_things(sentence: Sentence) -> tuple[str, list[Mark]]:
    """Return a sentence without its things, and the marks at their places in it."""
    inside = {at for thing in sentence.things for at in range(thing.at, thing.end)}
    new: list[int] = []
    kept = ""
    for at, char in enumerate(sentence.plain):
        new.append(len(kept))
        doubled = char.isspace() and (not kept or kept[-1].isspace())
        if at not in inside and not doubled:
            kept += char
    new.append(len(kept))
    bare = kept.rstrip()
    return bare, [mark._replace(at=min(new[mark.at], len(bare))) for mark in sentence.marks]


def places_of(things: Sequence[Mark], target: str) -> list[Mark] | None:
    """Return the places of things in a translation; None: it has more or fewer of one.

    Of equal things the first is the first.
    """
    texts = Counter(thing.plain for thing in things)
    starts: dict[str, list[int]] = {}
    for text, count in texts.items():
        starts[text] = [match.start() for match in re.finditer(re.escape(text), target)]
        if len(starts[text]) != count:
            return None
    placed = [thing._replace(at=starts[thing.plain].pop(0)) for thing in things]
    ordered = sorted(placed)
    apart = all(a.end <= b.at for a, b in zip(ordered, ordered[1:], strict=False))
    return placed if apart else None


def _emptied(
    marks: Sequence[Mark], source: str, where: Sequence[int], target: str
) -> Iterator[str]:
    """Yield each mark that opens before words of a sentence, and before none of its translation."""
    opened: list[tuple[Mark, int]] = []
    for mark, end in zip(marks, where, strict=True):
        if mark.kind == OPEN:
            opened.append((mark, end))
        elif mark.kind == CLOSE and opened:
            first, begin = opened.pop()
            if source[first.at : mark.at].strip() and not target[begin:end].strip():
                yield first.raw


def place(marks: Sequence[tuple[int, str]], source: str, target: str) -> list[int]:
    """Return places in a translation for marks of a sentence, in the same order.

    Words that are equal in both are fixed points, and so are both ends; between them a mark keeps
    its share of the words. What opens stands before a word, what closes behind one, and marks with
    words between them have a word between them, if there are enough. A mark in a word stands
    where it stood if the word is the same, else around the whole word.
    """
    if not marks:
        return []
    ours, theirs = ([match.span() for match in _TOKENS.finditer(text)] for text in (source, target))
    fixed = _fixed([source[a:b] for a, b in ours], [target[a:b] for a, b in theirs])
    starts, ends = [a for a, _ in ours], [b for _, b in ours]
    before = [  # of each mark, how many of the source's words
        bisect_left(starts, at) if kind == CLOSE else bisect_right(ends, at) for at, kind in marks
    ]
    words = [n - (kind == CLOSE) for n, (_, kind) in zip(before, marks, strict=True)]
    before = [*accumulate(before, max)]  # of two pairs in a word the first gets it
    gaps = [  # and of the target's
        _mapped(n - 1, fixed) + 1 if kind == CLOSE else _mapped(n, fixed)
        for n, (_, kind) in zip(before, marks, strict=True)
    ]
    apart = [0, *(int(b > a) for a, b in zip(before, before[1:], strict=False))]
    most = len(theirs)
    for k in reversed(range(len(gaps))):
        gaps[k] = max(0, min(gaps[k], most))
        most = gaps[k] - apart[k]
    same = {
        i: theirs[j][0]
        for i, j in fixed[1:-1]
        if source[slice(*ours[i])] == target[slice(*theirs[j])]
    }
    places: list[int] = []
    for gap, word, (at, kind) in zip(gaps, words, marks, strict=True):
        if word in same and starts[word] < at < ends[word]:
            there = same[word] + at - starts[word]
        elif kind == CLOSE:
            there = theirs[gap - 1][1] if gap > 0 else 0
        else:
            there = theirs[gap][0] if gap < len(theirs) else len(target)
        places.append(max(there, places[-1] if places else 0))
    return places


def _fixed(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of words that are equal, in the order of both, and the ends."""
    small = [[word.casefold() for word in words] for words in (ours, theirs)]
    if max(map(len, small)) > MOST_TOKENS:  # the comparison takes the square of it
        return [(-1, -1), (len(ours), len(theirs))]
    blocks = difflib.SequenceMatcher(None, small[0], small[1], autojunk=False).get_matching_blocks()
    pairs = [(i + k, j + k) for i, j, count in blocks for k in range(count)]
    return [(-1, -1), *pairs, (len(ours), len(theirs))]


def _mapped(i: int, fixed: Sequence[tuple[int, int]]) -> int:
    """Return the number of the target's word that stands for the source's word i."""
    k = bisect_left(fixed, (i, -2))
    if fixed[k][0] == i:
        return fixed[k][1]
    (i0, j0), (i1, j1) = fixed[k - 1], fixed[k]
    return min(max(j0 + round((i - i0) * (j1 - j0) / (i1 - i0)), j0 + 1), max(j1 - 1, j0))
