"""The picture of a decoding dependency graph: waves of tokens on top, passes and positions below.

Source: Santilli et al. 2023, Figures 4 and 6. The graph on top lacks edges that follow from others
and highlights tokens that were decoded in parallel. Below it, each row is a pass, each column a
position, with the probability of a token where it became final.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import plot
from .ddg import DependencyGraph, heading
from .sheet import (
    EDGE,
    FAINT,
    MARGIN,
    TITLE,
    Sheet,
    label,
    labels_height,
    source_lines,
    text_width,
    wrap,
)

# States of the matrix's cells. A token became final in the cell with a number.
ALONE, PARALLEL = "#3f6fa5", "#f2a33a"
AFTER_ALONE, AFTER_PARALLEL = "#d5e1ee", "#fbe5c4"
LOST, WRONG, NOTHING = "#b3b3b3", "#e9e9e9", "#ffffff"

#: The meanings of the colours, in the legend's order.
MEANINGS = {
    ALONE: "final from this pass on, with its probability",
    PARALLEL: "final together with others (decoded in parallel)",
    AFTER_ALONE: "final since an earlier pass",
    AFTER_PARALLEL: "the same, in parallel",
    LOST: "right, but lost again",
    WRONG: "another token predicted",
}

#: Inches: largest sizes of a matrix and its cells; room for the numbers of passes.
MATRIX, CELL, NUMBERS = (34.0, 26.0), (0.52, 0.3), 0.35
#: Inches, of the graph: its least width before it is folded, a token's height, the room for arrows,
#: and the gaps between columns of one wave and between lines.
FOLD, TOKEN, ARROWS, BESIDE, BELOW = 14.0, 0.3, 0.36, 0.08, 0.42
#: Tokens of a wave in one column.
TALLEST = 12
FONT = 9.0


@plot.drawing()
def draw(graph: DependencyGraph, path: Path, source: Sequence[str] | None = None) -> list[str]:
    """Write the picture of a graph; return the characters that no font has."""
    count = len(graph.tokens)
    cell = (min(CELL[0], MATRIX[0] / count), min(CELL[1], MATRIX[1] / graph.num_passes))
    waves = [_Wave.of(graph, wave) for wave in graph.waves]
    graph_width = sum(wave.width + ARROWS for wave in waves) + ARROWS
    matrix_width = NUMBERS + count * cell[0]
    sheet = Sheet(max(matrix_width, min(graph_width, FOLD), 7) + 2 * MARGIN)
    titles = wrap(heading(graph).split(), TITLE, sheet.room)
    sheet.head(
        titles, [graph.summary, *([] if source is None else source_lines(source, sheet.room))]
    )
    _draw_graph(sheet, graph, waves)
    sheet.y += labels_height(graph.tokens, cell[0]) + 0.1
    cells = [
        [_state(graph, number, position) for position in range(count)]
        for number in range(1, graph.num_passes + 1)
    ]
    marks = {
        (graph.final_pass[position] - 1, position): (
            f"{math.exp(graph.log_probs[position]):.2f}",
            "black" if graph.parallel[position] else "white",
        )
        for position in range(count)
    }
    sheet.matrix((MARGIN + NUMBERS, sheet.y), cell, cells, graph.tokens, marks)
    sheet.y += graph.num_passes * cell[1] + 0.15
    kinds = {colour for row in cells for colour in row}
    sheet.legend({name: colour for colour, name in MEANINGS.items() if colour in kinds})
    return sheet.save(path)


def _state(graph: DependencyGraph, number: int, position: int) -> str:
    """Return the colour of a cell."""
    final, parallel = graph.final_pass[position], graph.parallel[position]
    if number == final:
        return PARALLEL if parallel else ALONE
    if number > final:
        return AFTER_PARALLEL if parallel else AFTER_ALONE
    if graph.is_right(number, position):
        return LOST
    return NOTHING if graph.predictions[number - 1][position] is None else WRONG


# ---- the graph ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wave:
    """The tokens that became final in one pass."""

    columns: list[list[int]]  # their positions, in columns of about the same height
    widths: list[float]  # of the columns

    @classmethod
    def of(cls, graph: DependencyGraph, wave: Sequence[int]) -> "_Wave":
        """Divide a wave into columns that fit side by side."""
        widths = {position: _box_width(graph, position) for position in wave}
        most = max(1, int((FOLD - 3 * ARROWS) / (max(widths.values()) + BESIDE)))
        size = math.ceil(len(wave) / min(math.ceil(len(wave) / TALLEST), most))
        columns = [list(wave[i : i + size]) for i in range(0, len(wave), size)]
        return cls(columns, [max(widths[position] for position in column) for column in columns])

    @property
    def width(self) -> float:
        """Of the columns side by side."""
        return sum(self.widths) + BESIDE * (len(self.widths) - 1)


@dataclass(frozen=True)
class _Place:
    """The place of a token of the graph, in inches."""

    line: int  # of the folded graph
    left: float
    right: float
    middle: float  # its height


def _box_width(graph: DependencyGraph, position: int) -> float:
    """Return the width of a token's box."""
    return text_width(label(graph.tokens[position]), FONT) + 0.14


def _draw_graph(sheet: Sheet, graph: DependencyGraph, waves: Sequence[_Wave]) -> None:
    """Draw tokens, the pass above each wave, and arrows to the tokens that a token depends on."""
    places: dict[int, _Place] = {}
    for number, line in enumerate(_folded(waves, sheet.room)):
        tallest = max(len(wave.columns[0]) for _, wave in line)
        for x, wave in line:
            for column, width in zip(wave.columns, wave.widths, strict=True):
                for i, position in enumerate(column):
                    middle = sheet.y + BELOW + (tallest / 2 + i - (len(column) - 1) / 2) * TOKEN
                    right = x + _box_width(graph, position)
                    places[position] = _Place(number, x, right, middle)
                x += width + BESIDE
        sheet.y += tallest * TOKEN + BELOW
    _draw_arrows(sheet, graph, places)
    for position, place in places.items():
        parallel = graph.parallel[position]
        style = {
            "facecolor": AFTER_PARALLEL if parallel else AFTER_ALONE,
            "edgecolor": PARALLEL if parallel else ALONE,
        }
        corner, size = (place.left, place.middle - 0.42 * TOKEN), 0.84 * TOKEN
        box = (place.right - place.left, size)
        sheet.box(corner, box, graph.tokens[position], FONT, zorder=2, **style)
    for wave in waves:
        first = wave.columns[0][0]
        x, y = places[first].left, places[first].middle - 0.5 * TOKEN - 0.1
        sheet.text(x, y, f"pass {graph.final_pass[first]}", 6.5, color=FAINT)


def _folded(waves: Sequence[_Wave], room: float) -> list[list[tuple[float, _Wave]]]:
    """Place the waves from left to right, in lines that fit; a wider wave has its own line."""
    lines: list[list[tuple[float, _Wave]]] = [[]]
    x = ARROWS
    for wave in waves:
        if lines[-1] and x + wave.width + ARROWS > room + 0.01:  # inches, for rounding
            lines.append([])
            x = ARROWS
        lines[-1].append((MARGIN + x, wave))
        x += wave.width + ARROWS
    return lines


def _draw_arrows(sheet: Sheet, graph: DependencyGraph, places: dict[int, _Place]) -> None:
    """Draw an arrow per edge; across a fold, only its two ends."""
    arrows = []  # x, y, and how far it goes
    for position, earlier in graph.edges:
        here, there = places[position], places[earlier]
        x, end = here.left - 0.02, there.right + 0.02
        if here.line == there.line:
            arrows.append((x, here.middle, end - x, there.middle - here.middle))
        else:
            arrows.append((x, here.middle, -0.8 * ARROWS, 0.0))
            arrows.append((end + 0.8 * ARROWS, there.middle, -0.8 * ARROWS, 0.0))
    heads = {"headwidth": 7, "headlength": 8, "headaxislength": 7, "color": EDGE, "zorder": 1}
    inches = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "inches", "width": 0.009}
    if arrows:
        sheet.axes.quiver(*zip(*arrows, strict=True), **inches, **heads)
