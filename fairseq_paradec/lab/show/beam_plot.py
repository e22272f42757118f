"""A picture of a beam's tree: what was drafted, what the search kept, and which pass read it.

``beam_tree.places`` is its layout.
"""

from collections.abc import Sequence
from pathlib import Path

from ...records import Record
from . import plot
from .beam_tree import BEST, KEPT, NEVER, Node, best_path, places, state
from .sheet import FAINT, MARGIN, Sheet, source_lines

#: Of what became of a node.
COLOURS = {BEST: "#56b4e9", KEPT: "#cde6ea", NEVER: "#dfdfdf"}

#: Inches: size of a node's box and distance of boxes.
BOX, APART = (0.98, 0.17), (1.1, 0.21)


@plot.drawing()
def draw(record: Record, nodes: Sequence[Node], path: Path) -> list[str]:
    """Write the picture; return the characters that no font has."""
    best = best_path(nodes, record["output"])
    where = places(nodes, best)
    sheet = Sheet(max(8.0, 2 * MARGIN + (1 + max(column for column, _ in where)) * APART[0]))
    kept, passes = sum(node.kept for node in nodes), nodes[-1].number
    title = (
        f"{record['decoding']}: {len(nodes)} tokens read in {passes} "
        f"pass{'es' if passes > 1 else ''}, {kept} of them needed"
    )
    sheet.head([title], source_lines(record.get("source"), sheet.room))
    corners = [(MARGIN + column * APART[0], sheet.y + row * APART[1]) for column, row in where]
    for number, (node, (x, y)) in enumerate(zip(nodes, corners, strict=True)):
        middle = y + BOX[1] / 2
        if node.parent >= 0:
            left, above = corners[node.parent]
            ends = ([left + BOX[0], x - 0.05, x], [above + BOX[1] / 2, middle, middle])
            sheet.axes.plot(*ends, color=FAINT, linewidth=0.6, zorder=1)
        style = {"facecolor": COLOURS[state(nodes, number, best)], "edgecolor": "white"}
        sheet.box((x, y), BOX, node.word, 6.5, ha="left", zorder=2, **style)
        sheet.text(x + BOX[0] - 0.03, middle, str(node.number), 5.5, ha="right", color=FAINT)
    sheet.y += (1 + max(row for _, row in where)) * APART[1] + 0.1
    sheet.legend(COLOURS)
    return sheet.save(path)
