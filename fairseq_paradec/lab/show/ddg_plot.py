"""The picture of a decoding dependency graph: waves of tokens on top, passes and positions below.

Source: Santilli et al. 2023, Figures 4 and 6. The graph on top lacks edges that follow from others
and highlights tokens that were decoded in parallel. Below it, each row is a pass, each column a
position, with the probability of a token where it became final.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import fonts
from .ddg import DependencyGraph, heading
from .sheet import (
    EDGE,
    FAINT,
    LINE,
    POINTS,
    Sheet,
    cell_font,
    columns_height,
    label,
    legend_height,
    source_lines,
    text_width,
    wrap,
)

# States of the matrix's cells. A token became final in the cell with a number.
ALONE, PARALLEL = "#3f6fa5", "#f2a33a"
AFTER_ALONE, AFTER_PARALLEL = "#d5e1ee", "#fbe5c4"
LOST, WRONG, NOTHING = "#b3b3b3", "#e9e9e9", "#ffffff"

#: Inches: margin; height of a line of the title; largest sizes of a matrix and its cells.
MARGIN, HEAD = 0.25, 0.24
MATRIX = (34.0, 26.0)
CELL = (0.52, 0.3)
#: Inches, of the graph: its least width before it is folded, a token's height, the room for arrows,
#: and the gaps between columns of one wave and between lines.
FOLD, TOKEN, ARROWS, BESIDE, BELOW = 14.0, 0.3, 0.36, 0.08, 0.42
#: Tokens of a wave in one column.
TALLEST = 12
FONT = 9.0


@dataclass(frozen=True)
class _Place:
    """The place of a token of the graph, in inches."""

    line: int  # of the graph, from 0
    x: float  # its left edge
    y: float  # its middle, from the top of the line
    width: float  # of its box


def draw(graph: DependencyGraph, path: Path, source: Sequence[str] | None = None) -> None:
    """Write the picture of a graph."""
    with fonts.drawing(texts(graph, source)):
        _draw(graph, path, source)


def texts(graph: DependencyGraph, source: Sequence[str] | None = None) -> list[str]:
    """Return the tokens and names in the picture, for ``fonts.choose``."""
    return [*graph.tokens, *(source or ()), heading(graph)]


def _draw(graph: DependencyGraph, path: Path, source: Sequence[str] | None) -> None:
    """Place the parts below each other, and draw them."""
    names = _legend(graph)
    cell = _cell(graph)
    left = MARGIN + 0.35  # of the matrix: passes are numbered beside it
    matrix = (len(graph.tokens) * cell[0], graph.num_passes * cell[1])
    width = max(left + matrix[0], MARGIN + min(_graph_width(graph), FOLD), 7) + MARGIN
    room = width - 2 * MARGIN
    titles = wrap(heading(graph).split(), 12, room)
    lines = [graph.summary, *([] if source is None else source_lines(source, FONT, room))]
    places, heights = _places(graph, room)
    above = columns_height(graph.tokens, cell[0])
    graph_top = MARGIN + HEAD * (1 + len(titles) + len(lines)) + 0.1
    matrix_top = graph_top + sum(heights) + above + 0.1
    legend_top = matrix_top + matrix[1] + 0.15
    sheet = Sheet(width, legend_top + legend_height(names, room) + MARGIN)
    for i, line in enumerate([*titles, *lines]):
        sheet.text(MARGIN, MARGIN + (i + 0.5) * HEAD, line, 12 if i < len(titles) else FONT)
    _draw_graph(sheet, graph, places, [graph_top + sum(heights[:i]) for i in range(len(heights))])
    _draw_matrix(sheet, graph, left, matrix_top, cell)
    sheet.legend(MARGIN, legend_top, room, names)
    sheet.save(path)


def _cell(graph: DependencyGraph) -> tuple[float, float]:
    """Return width and height of a cell of the matrix; longer outputs have smaller cells."""
    return (min(CELL[0], MATRIX[0] / len(graph.tokens)), min(CELL[1], MATRIX[1] / graph.num_passes))


# ---- the graph ---------------------------------------------------------------------------------


def _columns(wave: Sequence[int], widths: Sequence[float]) -> list[Sequence[int]]:
    """Return a wave's positions in columns of about the same height, that fit side by side."""
    widest = max(widths[position] for position in wave) + BESIDE
    most = max(1, int((FOLD - 3 * ARROWS) / widest))
    count = min(math.ceil(len(wave) / TALLEST), most)
    size = math.ceil(len(wave) / count)
    return [wave[i : i + size] for i in range(0, len(wave), size)]


def _widths(graph: DependencyGraph) -> list[float]:
    """Return the width of each token's box."""
    return [text_width(label(token), FONT) + 0.14 for token in graph.tokens]


def _wave_width(wave: Sequence[int], widths: Sequence[float]) -> float:
    """Return the width of a wave's columns side by side."""
    columns = _columns(wave, widths)
    return sum(max(widths[p] for p in one) for one in columns) + BESIDE * (len(columns) - 1)


def _graph_width(graph: DependencyGraph) -> float:
    """Return the width of the graph in one line."""
    widths = _widths(graph)
    return sum(_wave_width(wave, widths) + ARROWS for wave in graph.waves) + ARROWS


def _places(graph: DependencyGraph, room: float) -> tuple[list[_Place], list[float]]:
    """Place the waves from left to right, folded to ``room``; a wider wave gets its own line.

    Returns:
        The place of each position, and the height of each line.
    """
    widths = _widths(graph)
    lines: list[list[tuple[float, list[int]]]] = [[]]
    x = ARROWS
    for wave in graph.waves:
        taken = _wave_width(wave, widths) + ARROWS
        if lines[-1] and x + taken > room + 0.01:  # inches, for rounding
            lines.append([])
            x = ARROWS
        lines[-1].append((x, wave))
        x += taken
    places: dict[int, _Place] = {}
    heights = []
    for number, line in enumerate(lines):
        tallest = max(len(_columns(wave, widths)[0]) for _, wave in line)
        heights.append(tallest * TOKEN + BELOW)
        for x, wave in line:
            for column in _columns(wave, widths):
                for i, position in enumerate(column):
                    y = BELOW + (tallest / 2 + i - (len(column) - 1) / 2) * TOKEN
                    places[position] = _Place(number, MARGIN + x, y, widths[position])
                x += max(widths[position] for position in column) + BESIDE
    return [places[position] for position in range(len(graph.tokens))], heights


def _draw_graph(
    sheet: Sheet, graph: DependencyGraph, places: Sequence[_Place], tops: Sequence[float]
) -> None:
    """Draw tokens, the pass above each wave, and arrows to the tokens that a token depends on."""
    _draw_arrows(sheet, graph, places, tops)
    for position, (token, place) in enumerate(zip(graph.tokens, places)):
        y = tops[place.line] + place.y
        colour = AFTER_PARALLEL if graph.parallel[position] else AFTER_ALONE
        edge = PARALLEL if graph.parallel[position] else ALONE
        upper = y - 0.42 * TOKEN
        sheet.box(
            place.x, upper, place.width, 0.84 * TOKEN, facecolor=colour, edgecolor=edge, zorder=2
        )
        sheet.text(place.x + place.width / 2, y, label(token), FONT, ha="center", zorder=3)
    for wave in graph.waves:
        first = places[wave[0]]
        y = tops[first.line] + first.y - 0.5 * TOKEN - 0.1
        sheet.text(first.x, y, f"pass {graph.final_pass[wave[0]]}", 6.5, color=FAINT)


def _draw_arrows(
    sheet: Sheet, graph: DependencyGraph, places: Sequence[_Place], tops: Sequence[float]
) -> None:
    """Draw an arrow per edge; across a fold, only its two ends."""
    ends = []
    for position, earlier in graph.edges:
        here, there = places[position], places[earlier]
        start = (here.x - 0.02, tops[here.line] + here.y)
        end = (there.x + there.width + 0.02, tops[there.line] + there.y)
        if here.line == there.line:
            ends.append((start, end))
        else:
            ends.append((start, (start[0] - 0.8 * ARROWS, start[1])))
            ends.append(((end[0] + 0.8 * ARROWS, end[1]), end))
    if not ends:
        return
    xs, ys = [start[0] for start, _ in ends], [start[1] for start, _ in ends]
    us, vs = ([end[i] - start[i] for start, end in ends] for i in (0, 1))
    sheet.axes.quiver(
        xs,
        ys,
        us,
        vs,
        angles="xy",
        scale_units="xy",
        scale=1,
        units="inches",
        width=0.009,
        headwidth=7,
        headlength=8,
        headaxislength=7,
        color=EDGE,
        zorder=1,
    )


# ---- the matrix --------------------------------------------------------------------------------


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


def _legend(graph: DependencyGraph) -> dict[str, str]:
    """Return the colours of the picture by meaning."""
    meanings = {
        ALONE: "final from this pass on, with its probability",
        PARALLEL: "final together with others (decoded in parallel)",
        AFTER_ALONE: "final since an earlier pass",
        AFTER_PARALLEL: "the same, in parallel",
        LOST: "right, but lost again",
        WRONG: "another token predicted",
    }
    shown = {
        _state(graph, number, position)
        for number in range(1, graph.num_passes + 1)
        for position in range(len(graph.tokens))
    }
    return {name: colour for colour, name in meanings.items() if colour in shown}


def _draw_matrix(
    sheet: Sheet, graph: DependencyGraph, left: float, top: float, cell: tuple[float, float]
) -> None:
    """Draw pass by position, with the probability where a token became final."""
    width, height = cell
    positions = range(len(graph.tokens))
    colours = [
        [_state(graph, number, position) for position in positions]
        for number in range(1, graph.num_passes + 1)
    ]
    sheet.cells(left, top, cell, colours)
    sheet.columns(left, top, width, graph.tokens)
    sheet.rows(left, top, height, graph.num_passes)
    sheet.text(left - 0.06, top - LINE * 7 / POINTS, "pass", 7, ha="right", color=FAINT)
    size = cell_font(width, height)
    if size is None:
        return
    for position in positions:
        x, y = left + (position + 0.5) * width, top + (graph.final_pass[position] - 0.5) * height
        colour = "black" if graph.parallel[position] else "white"
        probability = f"{math.exp(graph.log_probs[position]):.2f}"
        sheet.text(x, y, probability, size, ha="center", color=colour)
