"""A picture of a sentence that several methods decoded: the pass and the origin of each token.

Each method has a strip, side by side if there is room: passes from top to bottom, positions of the
output from left to right. The cell in which a token is committed shows the token's origin by colour
and by a mark. The states are those of ``trace_view``, as in the terminal and on pages.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...output import printable
from . import fonts
from .sheet import (
    FAINT,
    LINE,
    POINTS,
    Sheet,
    cell_font,
    columns_height,
    legend_height,
    source_lines,
    text_width,
    wrap,
)
from .symbols import typed
from .trace_view import MEANINGS, ORIGINS, Sentence, State

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

#: Inches: margin; largest sizes of all matrices together and of a cell; gap between strips.
MARGIN, MATRIX, CELL, BETWEEN = 0.25, (34.0, 34.0), (0.32, 0.2), 0.3
#: Inches: width of the sheet unless a strip is wider; least width of a strip; room for numbers.
WIDTH, NARROWEST, NUMBERS = 14.0, 3.6, 0.35
HEAD, FONT, SMALL = 0.24, 10.0, 7.5


def draw(sentences: Sequence[Sentence], path: Path, files: Sequence[str] = ()) -> None:
    """Write the picture of one sentence."""
    if files:
        decodings = [one.decoding for one in sentences]
        sentences = [
            replace(one, decoding=f"{one.decoding} ({file})")
            if decodings.count(one.decoding) > 1
            else one
            for one, file in zip(sentences, files, strict=True)
        ]
    with fonts.drawing(texts(sentences)):
        _draw(sentences, path)


def texts(sentences: Sequence[Sentence]) -> list[str]:
    """Return the texts of the picture, for ``fonts.choose``."""
    tokens = [token for one in sentences for token in one.output]
    titles = [text for one in sentences for text in (one.name, one.decoding, *typed(one.flags))]
    return [*tokens, *(_source(sentences) or ()), *titles, *map(_meaning, _colours(sentences))]


def _draw(sentences: Sequence[Sentence], path: Path) -> None:
    """Place the strips in rows, and draw them."""
    colours = _colours(sentences)
    legend = {_meaning(kind): colour for kind, colour in colours.items()}
    tokens = max([1, *(len(one.output) for one in sentences)])
    passes = max(1, sum(len(one.passes) for one in sentences))
    cell = (min(CELL[0], MATRIX[0] / tokens), min(CELL[1], MATRIX[1] / passes))
    strip = max(NUMBERS + tokens * cell[0], NARROWEST)
    across = max(1, int((WIDTH - 2 * MARGIN + BETWEEN) // (strip + BETWEEN)))
    across = min(across, len(sentences))
    width = max(2 * MARGIN + across * (strip + BETWEEN) - BETWEEN, 8.0)
    room = width - 2 * MARGIN
    lines = source_lines(_source(sentences), FONT, room)
    heads = [_heads(one, strip if across > 1 else room) for one in sentences]
    above = [
        HEAD * len(head) + columns_height(one.output, cell[0])
        for one, head in zip(sentences, heads)
    ]
    top = MARGIN + HEAD * (1 + len(lines)) + 0.1
    places = []  # the corner of each strip, and the distance from it to its matrix
    for first in range(0, len(sentences), across):
        row = range(first, min(first + across, len(sentences)))
        deepest = max(above[i] for i in row)
        places += [(MARGIN + (i - first) * (strip + BETWEEN), top, deepest) for i in row]
        top += deepest + max(len(sentences[i].passes) for i in row) * cell[1] + BETWEEN
    sheet = Sheet(width, top + legend_height(legend, room) + MARGIN)
    for i, line in enumerate([_fitting(sentences[0].name, 12, room), *lines]):
        sheet.text(MARGIN, MARGIN + (i + 0.5) * HEAD, line, 12 if i == 0 else FONT)
    for one, head, (x, y, deepest) in zip(sentences, heads, places):
        for i, line in enumerate(head):
            size, colour = (FONT, "black") if i == 0 else (SMALL, FAINT)
            sheet.text(x, y + (i + 0.5) * HEAD, line, size, color=colour)
        if one.output:
            _draw_strip(sheet, one, (x + NUMBERS, y + deepest), cell, colours)
    sheet.legend(MARGIN, top, room, legend)
    sheet.save(path)


def _source(sentences: Sequence[Sentence]) -> list[str] | None:
    """Return the source's tokens, which are equal for all methods; None if no record has them."""
    return next((one.source for one in sentences if one.source is not None), None)


def _heads(sentence: Sentence, room: float) -> list[str]:
    """Return a strip's lines: method, counts, and flags with the drafter's file name."""
    flags = sentence.flags | {
        name: str(value).replace("\\", "/").rsplit("/", 1)[-1]
        for name, value in sentence.flags.items()
        if name == "drafter_path" and value is not None
    }
    lines = [sentence.summary.split(), " ".join(typed(flags)).split()]
    wrapped = [line for words in lines if words for line in wrap(words, SMALL, room)]
    return [_fitting(sentence.decoding, FONT, room), *wrapped]


def _fitting(text: str, size: float, room: float) -> str:
    """Return a line of text, with its middle cut if it exceeds ``room`` inches."""
    shown = printable(text)
    kept = len(shown)
    while kept > 2 and text_width(shown, size) > room:
        kept -= 1
        shown = f"{printable(text)[: kept // 2]}…{printable(text)[-(kept // 2) :]}"
    return shown


# ---- cells -------------------------------------------------------------------------------------


def _kinds(sentence: Sentence) -> list[list[str]]:
    """Return for each pass and position a state, a direction, or an empty string."""
    rows = []
    for one in sentence.passes:
        row = []
        for position, origin in enumerate(sentence.origins):
            if origin.pass_number == one.number:
                row.append(origin.direction or origin.by)
            elif origin.pass_number < one.number:
                row.append(State.PREVIOUS)
            elif position < len(one.draft):
                state = one.draft[position].state
                row.append(State.PENDING if state == State.PENDING else State.DISCARDED)
            else:
                row.append("")
        rows.append(row)
    return rows


def _colours(sentences: Sequence[Sentence]) -> dict[str, str]:
    """Return the colours of the kinds that occur, in the legend's order."""
    found = {kind for one in sentences for row in _kinds(one) for kind in row if kind}
    known = {kind: colour for kind, colour in COLOURS.items() if kind in found}
    directions = sorted(found - set(COLOURS) - set(PALE))
    known |= {kind: DIRECTIONS[i % len(DIRECTIONS)] for i, kind in enumerate(directions)}
    return known | {kind: colour for kind, colour in PALE.items() if kind in found}


def _meaning(kind: str) -> str:
    """Return the text of the legend."""
    if kind == State.DISCARDED:
        return "drafted, not used"
    mark = f" ({MARKS[kind]})" if kind in MARKS else ""
    return ORIGINS.get(kind, MEANINGS.get(kind, f"written in direction {kind}")) + mark


def _draw_strip(
    sheet: Sheet,
    sentence: Sentence,
    place: tuple[float, float],
    cell: tuple[float, float],
    colours: dict[str, str],
) -> None:
    """Draw one method's matrix, the tokens above it, and its marks."""
    left, top = place
    kinds = _kinds(sentence)
    sheet.cells(left, top, cell, [[colours.get(kind, NOTHING) for kind in row] for row in kinds])
    sheet.columns(left, top, cell[0], sentence.output)
    sheet.rows(left, top, cell[1], len(kinds))
    sheet.text(left - 0.06, top - LINE * 7 / POINTS, "pass", 7, ha="right", color=FAINT)
    size = cell_font(*cell)
    if size is None:
        return
    for position, origin in enumerate(sentence.origins):
        mark = origin.direction or MARKS.get(origin.by)
        if mark is not None:
            x, y = left + (position + 0.5) * cell[0], top + (origin.pass_number - 0.5) * cell[1]
            sheet.text(x, y, mark, size, ha="center", color="white")
