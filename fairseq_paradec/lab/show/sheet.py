"""A sheet to draw tokens and cells on, measured in inches from its upper left corner.

It grows downwards as it is drawn: ``y`` is where the next part begins. Cells keep a legible size at
any length of a sentence.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

from ...output import printable
from . import plot
from .symbols import is_rtl, wide_letters

#: Points in an inch; fonts are measured in points.
POINTS = 72
#: Inches: around all that is drawn; height of a line of a heading, of a legend.
MARGIN, HEAD, LEGEND = 0.25, 0.24, 0.22
#: Sizes of fonts: of titles, of other texts.
TITLE, FONT = 12.0, 10.0
#: Longest drawn token in characters, including the ellipsis of a cut one.
LONGEST = 24
#: Smaller texts, in points, are left out.
SMALLEST = 3.5
#: Lines of a text that is wrapped, at most.
MOST_LINES = 4
#: Widening of a text in a PNG, whose letters begin at whole pixels.
WIDER = 1.03

#: Unicode's controls: right-to-left mark; an isolated text, and its end.
RIGHT_TO_LEFT, ISOLATE, POP = "\u200f", "\u2068", "\u2069"

TEXT, FAINT, EDGE = "#1a1a1a", "#5f5f5f", "#9a9a9a"

#: Width and height, or left and upper edge.
Pair = tuple[float, float]


class Sheet:
    """One picture; places are those of left and upper edges."""

    def __init__(self, width: float) -> None:
        self.width, self.y = width, MARGIN
        self.figure = Figure(facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    @property
    def room(self) -> float:
        """The width without the margins."""
        return self.width - 2 * MARGIN

    def text(self, x: float, y: float, text: str, size: float, **how: Any) -> None:
        """Write a line; ``y`` is its middle, ``x`` its left end unless ``how`` says otherwise."""
        options = {"color": TEXT, "va": "center", "ha": "left"} | how
        self.axes.text(x, y, text, fontsize=size, **options)

    def head(self, title: Iterable[str], lines: Iterable[str]) -> None:
        """Write the lines of a title, and others below it."""
        sizes = {TITLE: title, FONT: lines}
        for size, line in [(size, line) for size, lines in sizes.items() for line in lines]:
            self.text(MARGIN, self.y + HEAD / 2, line, size)
            self.y += HEAD
        self.y += 0.1

    def rectangle(self, corner: Pair, size: Pair, **how: Any) -> None:
        """Draw a rectangle from its upper left corner."""
        self.axes.add_patch(Rectangle(corner, *size, **({"linewidth": 0.5} | how)))

    def box(self, corner: Pair, size: Pair, text: str, font: float, **how: Any) -> None:
        """Draw a rectangle with a token in its middle, or at its left with ``ha="left"``."""
        (x, y), (width, height) = corner, size
        ha = how.pop("ha", "center")
        self.rectangle(corner, size, **how)
        left = x + (0.04 if ha == "left" else width / 2)
        self.text(left, y + height / 2, label(text), font, ha=ha, zorder=how.get("zorder", 1) + 1)

    def matrix(
        self,
        corner: Pair,
        cell: Pair,
        colours: Sequence[Sequence[str]],
        tokens: Sequence[str],
        marks: Mapping[tuple[int, int], tuple[str, str]],
    ) -> None:
        """Draw passes by positions, as one image, with white lines between large cells.

        Args:
            corner: of the cells; tokens stand above it, numbers of passes left of it.
            cell: its size.
            colours: of the cells, row by row.
            tokens: of the columns.
            marks: text and colour of what stands in a cell, by row and column.
        """
        (x, y), (width, height) = corner, cell
        rows, columns = len(colours), len(tokens)
        right, bottom = x + columns * width, y + rows * height
        image = np.array([[to_rgb(colour) for colour in row] for row in colours])  # R×C×3
        image = np.rint(255 * image).astype(np.uint8)
        extent = (x, right, bottom, y)
        self.axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
        if min(cell) > 0.08:
            lines: dict[str, Any] = {"colors": "white", "linewidth": 0.6}
            self.axes.vlines([x + i * width for i in range(1, columns)], y, bottom, **lines)
            self.axes.hlines([y + i * height for i in range(1, rows)], x, right, **lines)
        self.rectangle(corner, (right - x, bottom - y), fill=False, edgecolor=EDGE)
        size, every = _label_font(width)
        for i in range(0, columns, every):
            upright = {"rotation": 90, "va": "bottom", "ha": "center"}
            self.text(x + (i + 0.5) * width, y - 0.05, label(tokens[i]), size, **upright)
        beside = {"ha": "right", "color": FAINT}
        self.text(x - 0.06, y - 0.14, "pass", 7, **beside)
        size, every = _label_font(height)
        for i in range(0, rows, every):
            self.text(x - 0.06, y + (i + 0.5) * height, str(i + 1), size, **beside)
        size = min(8.0, width * POINTS / 2.6, 0.75 * height * POINTS)
        for (row, column), (text, colour) in marks.items() if size >= SMALLEST else ():
            place = x + (column + 0.5) * width, y + (row + 0.5) * height
            self.text(*place, text, size, ha="center", color=colour)

    def legend(self, colours: Mapping[str, str]) -> None:
        """Draw a legend of colours by meaning, over the whole width."""
        x = MARGIN
        for name, colour in colours.items():
            taken = 0.5 + text_width(name, 8)
            if x > MARGIN and x + taken > self.width - MARGIN:
                x, self.y = MARGIN, self.y + LEGEND
            middle = self.y + LEGEND / 2
            self.rectangle((x, middle - 0.06), (0.16, 0.12), facecolor=colour, edgecolor=EDGE)
            self.text(x + 0.22, middle, name, 8)
            x += taken
        self.y += LEGEND

    def save(self, path: Path) -> list[str]:
        """Write the picture; see ``plot.save``."""
        height = self.y + MARGIN
        self.figure.set_size_inches(self.width, height)
        self.axes.set(xlim=(0, self.width), ylim=(height, 0), aspect="auto")
        return plot.save(self.figure, path)


def label(token: str) -> str:
    """Return a token as it is drawn: controls spelled out, long ones cut."""
    shown = printable(token)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def text_width(text: str, size: float) -> float:
    """Return about the width of a text in inches, of a size in points.

    A letter that the usual font lacks, such as a Chinese one, is as wide as it is high.
    """
    width = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0]
    return (WIDER * float(width) + 0.4 * size * wide_letters(text)) / POINTS


def _label_font(width: float) -> tuple[float, int]:
    """Return the font size of labels of columns or rows, and n: every n-th has a label.

    Args:
        width: of a column, or height of a row.
    """
    size = max(5.0, min(9.0, 0.85 * width * POINTS))
    return size, max(1, math.ceil(size / (width * POINTS)))


def labels_height(tokens: Iterable[str], width: float) -> float:
    """Return the height of the tokens above a matrix, whose columns have this width."""
    size, _ = _label_font(width)
    return max((text_width(label(token), size) for token in tokens), default=0) + 0.12


def wrap(tokens: Iterable[str], size: float, width: float) -> list[str]:
    """Break tokens, of a size in points, into lines; a text of too many ends in an ellipsis."""
    lines: list[list[str]] = [[]]
    space, used = text_width("x x", size) - text_width("xx", size), 0.0
    for token in map(label, tokens):
        taken = text_width(token, size) + space
        if lines[-1] and used + taken > width:
            if len(lines) == MOST_LINES:
                lines[-1].append("…")
                break
            lines.append([])
            used = 0.0
        lines[-1].append(token)
        used += taken
    return list(map(_line, lines))


def source_lines(source: Sequence[str] | None, width: float) -> list[str]:
    """Break a source into lines, like ``wrap``, after the word "source"."""
    tokens = ["(not in the trace)"] if source is None else source
    lines = wrap(["source:", *tokens], FONT, width)
    return [RIGHT_TO_LEFT + line for line in lines] if is_rtl(tokens) else lines


def _line(tokens: Sequence[str]) -> str:
    """Join tokens; beside right-to-left ones, others such as ``</s>`` keep their direction."""
    if any(map(is_rtl, tokens)):
        tokens = [f"{ISOLATE}{token}{POP}" for token in tokens]
    return " ".join(tokens)
