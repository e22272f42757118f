"""A sheet to draw tokens and cells on, measured in inches from its upper left corner.

Cells keep a legible size at any length of a sentence; the sheet grows instead.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

from ...output import printable
from . import plot
from .symbols import is_rtl

#: Points in an inch; fonts are measured in points.
POINTS = 72
#: Longest drawn token in characters, including the ellipsis of a cut one.
LONGEST = 24
#: Smaller texts, in points, are left out.
SMALLEST = 3.5
#: Lines of a text that is wrapped, at most.
MOST_LINES = 4
#: Height of a line of text, in font sizes.
LINE = 1.45
#: Widening of a text in a PNG, whose letters begin at whole pixels.
WIDER = 1.03

#: matplotlib lays out right-to-left text from 3.11 on; earlier ones would draw these characters.
SHAPES = tuple(map(int, matplotlib.__version__.split(".")[:2])) >= (3, 11)
#: Unicode's controls: right-to-left mark; an isolated text, and its end.
RIGHT_TO_LEFT, ISOLATE, POP = "\u200f", "\u2068", "\u2069"

TEXT, FAINT, EDGE = "#1a1a1a", "#5f5f5f", "#9a9a9a"


class Sheet:
    """One picture; sizes are in inches, and places are those of left and upper edges."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height), facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.limits = ((0, width), (height, 0))
        self.axes.set(xlim=self.limits[0], ylim=self.limits[1])

    def text(self, x: float, y: float, text: str, size: float, **how: Any) -> None:
        """Write a line; ``y`` is its middle, ``x`` its left end unless ``how`` says otherwise."""
        options = {"color": TEXT, "va": "center", "ha": "left"} | how
        self.axes.text(x, y, text, fontsize=size, **options)

    def box(self, x: float, y: float, width: float, height: float, **how: Any) -> None:
        """Draw a rectangle from its upper left corner."""
        self.axes.add_patch(Rectangle((x, y), width, height, **({"linewidth": 0.5} | how)))

    def cells(
        self, x: float, y: float, size: tuple[float, float], colours: Sequence[Sequence[str]]
    ) -> None:
        """Draw a matrix of coloured cells as one image, with white lines between large cells."""
        known = {name: to_rgb(name) for name in {name for row in colours for name in row}}
        parts = np.array([[known[name] for name in row] for row in colours])
        image = np.rint(255 * parts).astype(np.uint8)  # R×C×3
        rows, columns = image.shape[:2]
        right, bottom = x + columns * size[0], y + rows * size[1]
        extent = (x, right, bottom, y)
        self.axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
        self.axes.set(xlim=self.limits[0], ylim=self.limits[1])  # imshow changes them
        if min(size) > 0.08:
            lines: dict[str, Any] = {"colors": "white", "linewidth": 0.6}
            self.axes.vlines([x + i * size[0] for i in range(1, columns)], y, bottom, **lines)
            self.axes.hlines([y + i * size[1] for i in range(1, rows)], x, right, **lines)
        self.box(x, y, right - x, bottom - y, fill=False, edgecolor=EDGE)

    def columns(self, x: float, y: float, width: float, tokens: Sequence[str]) -> None:
        """Write tokens upright above the columns of a matrix, as many as are legible."""
        size, every = column_font(width)
        for i in range(0, len(tokens), every):
            place = x + (i + 0.5) * width
            how = {"rotation": 90, "va": "bottom", "ha": "center"}
            self.text(place, y - 0.05, label(tokens[i]), size, **how)

    def rows(self, x: float, y: float, height: float, count: int) -> None:
        """Number the rows of a matrix from 1, left of ``x``, as many as are legible."""
        size, every = column_font(height)
        for i in range(0, count, every):
            self.text(x - 0.06, y + (i + 0.5) * height, str(i + 1), size, ha="right", color=FAINT)

    def legend(self, x: float, y: float, width: float, names: Mapping[str, str]) -> None:
        """Draw a legend of colours, with the lines that ``legend_height`` counts."""
        for row, line in enumerate(_legend(names, width)):
            for place, name in line:
                left, middle = x + place, y + (row + 0.5) * 0.22
                self.box(left, middle - 0.06, 0.16, 0.12, facecolor=names[name], edgecolor=EDGE)
                self.text(left + 0.22, middle, name, 8)

    def save(self, path: Path) -> None:
        """Write the picture as PNG or SVG, by the file's name."""
        plot.save(self.figure, path)


def label(token: str) -> str:
    """Return a token as it is drawn: controls spelled out, long ones cut."""
    shown = printable(token)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def text_width(text: str, size: float) -> float:
    """Return a text's width in inches, of a size in points, in the fonts of ``fonts.drawing``."""
    width = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0]
    return WIDER * float(width) / POINTS


def column_font(width: float) -> tuple[float, int]:
    """Return the font size of labels of columns or rows, and n: every n-th has a label.

    Args:
        width: of a column in inches.
    """
    size = max(5.0, min(9.0, 0.85 * width * POINTS))
    return size, max(1, math.ceil(size / (width * POINTS)))


def columns_height(tokens: Iterable[str], width: float) -> float:
    """Return the height of ``Sheet.columns`` above a matrix, in inches."""
    size, _ = column_font(width)
    return max((text_width(label(token), size) for token in tokens), default=0) + 0.12


def cell_font(width: float, height: float) -> float | None:
    """Return the font size of a number in a cell, whose size is in inches; None if none fits."""
    size = min(8.0, width * POINTS / 2.6, 0.75 * height * POINTS)
    return size if size >= SMALLEST else None


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


def source_lines(source: Sequence[str] | None, size: float, width: float) -> list[str]:
    """Break a source into lines, like ``wrap``, after the word "source"."""
    tokens = ["(not in the trace)"] if source is None else source
    lines = wrap(["source:", *tokens], size, width)
    return [RIGHT_TO_LEFT + line for line in lines] if is_rtl(tokens) and SHAPES else lines


def _line(tokens: Sequence[str]) -> str:
    """Join tokens; beside right-to-left ones, others such as ``</s>`` keep their direction."""
    if SHAPES and any(map(is_rtl, tokens)):
        tokens = [f"{ISOLATE}{token}{POP}" for token in tokens]
    return " ".join(tokens)


def legend_height(names: Iterable[str], width: float) -> float:
    """Return the height of ``Sheet.legend``, in inches."""
    return 0.22 * len(_legend(names, width))


def _legend(names: Iterable[str], width: float) -> list[list[tuple[float, str]]]:
    """Return the place of each name of a legend, by line."""
    lines: list[list[tuple[float, str]]] = [[]]
    place = 0.0
    for name in names:
        taken = 0.5 + text_width(name, 8)
        if lines[-1] and place + taken > width:
            lines.append([])
            place = 0.0
        lines[-1].append((place, name))
        place += taken
    return lines
