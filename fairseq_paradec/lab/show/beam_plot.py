"""A picture of a beam's tree: what was drafted, what the search kept, and which pass read it.

``beam_tree.places`` is its layout.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...records import Record
from . import fonts
from .beam_tree import BEST, KEPT, NEVER, Node, best_path, places, state
from .sheet import FAINT, Sheet, label, legend_height, source_lines

#: Of what became of a node.
COLOURS = {BEST: "#56b4e9", KEPT: "#cde6ea", NEVER: "#dfdfdf"}

#: Inches: margin; size of a node's box and distance of boxes.
MARGIN, BOX, APART = 0.25, (0.98, 0.17), (1.1, 0.21)
HEAD, FONT, SMALL = 0.24, 10.0, 6.5


def texts(record: Record, nodes: Sequence[Node]) -> list[str]:
    """Return the texts of the picture, for ``fonts.choose``."""
    return [*(one.word for one in nodes), *(record.get("source") or ()), *COLOURS]


def draw(record: Record, nodes: Sequence[Node], path: Path) -> None:
    """Write the picture."""
    with fonts.drawing(texts(record, nodes)):
        _draw(record, nodes, path)


def _draw(record: Record, nodes: Sequence[Node], path: Path) -> None:
    best = best_path(nodes, record["output"])
    where = places(nodes, best)
    width = max(8.0, 2 * MARGIN + (1 + max(column for column, _ in where)) * APART[0])
    room = width - 2 * MARGIN
    kept, passes = sum(one.kept for one in nodes), nodes[-1].number
    title = (
        f"{record['decoding']}: {len(nodes)} tokens read in {passes} "
        f"pass{'es' if passes > 1 else ''}, {kept} of them needed"
    )
    lines: list[Any] = [title, *source_lines(record.get("source"), FONT, room)]
    top = MARGIN + HEAD * len(lines) + 0.1
    below = top + (1 + max(row for _, row in where)) * APART[1] + 0.1
    sheet = Sheet(width, below + legend_height(COLOURS, room) + MARGIN)
    for i, line in enumerate(lines):
        sheet.text(MARGIN, MARGIN + (i + 0.5) * HEAD, line, FONT if i else 12)
    corners = [(MARGIN + column * APART[0], top + row * APART[1]) for column, row in where]
    for one, (x, y) in zip(nodes, corners, strict=True):
        if one.parent >= 0:
            left, above = corners[one.parent]
            middle = y + BOX[1] / 2
            ends = ([left + BOX[0], x - 0.05, x], [above + BOX[1] / 2, middle, middle])
            sheet.axes.plot(*ends, color=FAINT, linewidth=0.6)
    for number, (one, (x, y)) in enumerate(zip(nodes, corners, strict=True)):
        colour = COLOURS[state(nodes, number, best)]
        sheet.box(x, y, *BOX, facecolor=colour, edgecolor="white")
        sheet.text(x + 0.04, y + BOX[1] / 2, label(one.word), SMALL)
        sheet.text(x + BOX[0] - 0.03, y + BOX[1] / 2, str(one.number), 5.5, ha="right", color=FAINT)
    sheet.legend(MARGIN, below, room, COLOURS)
    sheet.save(path)
