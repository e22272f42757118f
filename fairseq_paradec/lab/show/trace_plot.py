"""A picture of a sentence that several methods decoded: the pass and the origin of each token.

Each method has a strip, side by side if there is room: passes from top to bottom, positions of the
output from left to right. The cell in which a token is committed shows the token's origin by colour
and by a mark. The states are those of ``trace_view``, as in the terminal and on pages.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from . import plot
from .sheet import (
    FAINT,
    FONT,
    HEAD,
    MARGIN,
    TEXT,
    TITLE,
    Pair,
    Sheet,
    labels_height,
    source_lines,
    wrap,
)
from .symbols import typed
from .trace_view import MEANINGS, ORIGINS, Sentence, State, source_of

#: Colours of the origins of committed tokens, distinct for colour-blind readers (Okabe and Ito).
COLOURS: dict[str, str] = {
    State.ACCEPTED: "#56b4e9",
    State.GIVEN: "#cc79a7",
    State.RESCUED: "#0072b2",
    State.BIFURCATION: "#d55e00",
    State.BONUS: "#009e73",
}
#: Other cells, pale.
PALE: dict[str, str] = {
    State.PREVIOUS: "#f7f0d4",
    State.DISCARDED: "#dfdfdf",
    State.PENDING: "#cde6ea",
}
NOTHING = "#ffffff"
#: Colours of directions, by name.
DIRECTIONS = ("#00876c", "#a8558a", "#b8860b", "#5c6bc0")
#: Marks of cells besides the colour.
MARKS: dict[str, str] = {
    State.GIVEN: "=",
    State.RESCUED: "*",
    State.BIFURCATION: "[]",
    State.BONUS: "+",
}

#: Inches: largest sizes of all matrices together and of a cell; gap between strips.
MATRIX, CELL, BETWEEN = (34.0, 34.0), (0.32, 0.2), 0.3
#: Inches: width of the sheet unless a strip is wider; least width of a strip; room for numbers.
WIDTH, NARROWEST, NUMBERS = 14.0, 3.6, 0.35
SMALL = 7.5


@plot.drawing()
def draw(sentences: Sequence[Sentence], path: Path, files: Sequence[str] = ()) -> list[str]:
    """Write the picture of one sentence; return the characters that no font has."""
    colours = _colours(sentences)
    tokens = max([1, *(len(sentence.output) for sentence in sentences)])
    passes = max(1, sum(len(sentence.passes) for sentence in sentences))
    cell = (min(CELL[0], MATRIX[0] / tokens), min(CELL[1], MATRIX[1] / passes))
    strip = max(NUMBERS + tokens * cell[0], NARROWEST)
    across = max(1, int((WIDTH - 2 * MARGIN + BETWEEN) // (strip + BETWEEN)))
    across = min(across, len(sentences))
    sheet = Sheet(max(2 * MARGIN + across * (strip + BETWEEN) - BETWEEN, 8.0))
    source = source_lines(source_of(sentences), sheet.room)
    sheet.head(wrap(sentences[0].name.split(), TITLE, sheet.room), source)
    room = strip if across > 1 else sheet.room
    titles = _titles(sentences, files)
    strips = [
        (sentence, _heads(sentence, title, room)) for sentence, title in zip(sentences, titles)
    ]
    for first in range(0, len(strips), across):
        row = strips[first : first + across]
        heights = [
            HEAD * len(heads) + labels_height(sentence.output, cell[0]) for sentence, heads in row
        ]
        top = sheet.y + max(heights)
        for i, (sentence, heads) in enumerate(row):
            x = MARGIN + i * (strip + BETWEEN)
            for line, (head, size, colour) in enumerate(heads):
                sheet.text(x, sheet.y + (line + 0.5) * HEAD, head, size, color=colour)
            if sentence.output:
                _draw_strip(sheet, sentence, (x + NUMBERS, top), cell, colours)
        sheet.y = top + max(len(sentence.passes) for sentence, _ in row) * cell[1] + BETWEEN
    sheet.legend({_meaning(kind): colour for kind, colour in colours.items()})
    return sheet.save(path)


def _titles(sentences: Sequence[Sentence], files: Sequence[str]) -> list[str]:
    """Return the sentences' methods, with the file where a method occurs twice."""
    counts = Counter(sentence.decoding for sentence in sentences)
    return [
        sentence.decoding + (f" ({file})" if file and counts[sentence.decoding] > 1 else "")
        for sentence, file in zip(sentences, files or [""] * len(sentences), strict=True)
    ]


def _heads(sentence: Sentence, title: str, room: float) -> list[tuple[str, float, str]]:
    """Return a strip's lines with their sizes and colours: method, counts, and flags.

    Of a drafter's path the flags have the file's name.
    """
    flags = sentence.flags | {
        name: str(value).replace("\\", "/").rsplit("/", 1)[-1]
        for name, value in sentence.flags.items()
        if name == "drafter_path" and value is not None
    }
    texts = [(title, FONT, TEXT)]
    texts += [(text, SMALL, FAINT) for text in (sentence.summary, " ".join(typed(flags))) if text]
    return [
        (line, size, colour)
        for text, size, colour in texts
        for line in wrap(text.split(), size, room)
    ]


# ---- cells -------------------------------------------------------------------------------------


def _kinds(sentence: Sentence) -> list[list[str]]:
    """Return for each pass and position a state, a direction, or an empty string."""
    rows = []
    for each in sentence.passes:
        row = []
        for position, origin in enumerate(sentence.origins):
            if origin.pass_number == each.number:
                row.append(origin.direction or origin.state)
            elif origin.pass_number < each.number:
                row.append(State.PREVIOUS)
            elif position < len(each.draft):
                state = each.draft[position].state
                row.append(State.PENDING if state == State.PENDING else State.DISCARDED)
            else:
                row.append("")
        rows.append(row)
    return rows


def _colours(sentences: Sequence[Sentence]) -> dict[str, str]:
    """Return the colours of the kinds that occur, in the legend's order."""
    kinds = {kind for sentence in sentences for row in _kinds(sentence) for kind in row if kind}
    directions = sorted(kinds - set(COLOURS) - set(PALE))
    ways = {kind: DIRECTIONS[i % len(DIRECTIONS)] for i, kind in enumerate(directions)}
    return {kind: colour for kind, colour in (COLOURS | ways | PALE).items() if kind in kinds}


def _meaning(kind: str) -> str:
    """Return the text of the legend."""
    if kind == State.DISCARDED:
        return "drafted, not used"
    mark = f" ({MARKS[kind]})" if kind in MARKS else ""
    return ORIGINS.get(kind, MEANINGS.get(kind, f"written in direction {kind}")) + mark


def _draw_strip(
    sheet: Sheet, sentence: Sentence, corner: Pair, cell: Pair, colours: dict[str, str]
) -> None:
    """Draw one method's matrix, the tokens above it, and its marks."""
    cells = [[colours.get(kind, NOTHING) for kind in row] for row in _kinds(sentence)]
    marks = {
        (origin.pass_number - 1, position): (origin.direction or MARKS[origin.state], "white")
        for position, origin in enumerate(sentence.origins)
        if origin.direction or origin.state in MARKS
    }
    sheet.matrix(corner, cell, cells, sentence.output, marks)
