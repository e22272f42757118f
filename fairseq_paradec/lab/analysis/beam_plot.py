"""A picture of a beam's tree: what was drafted, what the search kept, and which pass read it.

Positions of the output go from left to right; a token stands behind the one that it continues. Of
a token's continuations the one that the search kept is straight behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...records import Record, field
from . import fonts
from .sheet import FAINT, Sheet, label, legend_height, source_lines

#: What became of a node, and its colour: of the best output, of another hypothesis, of none.
BEST, KEPT, NEVER = "of the best output", "of another live hypothesis", "drafted, never needed"
COLOURS = {BEST: "#56b4e9", KEPT: "#cde6ea", NEVER: "#dfdfdf"}

#: Inches: margin; size of a node's box and distance of boxes.
MARGIN, BOX, APART = 0.25, (0.98, 0.17), (1.1, 0.21)
HEAD, FONT, SMALL = 0.24, 10.0, 6.5


@dataclass(frozen=True)
class Node:
    """A token of the tree.

    Attributes:
        word: the token.
        parent: the number of the node before; -1: none, of the decoder's first input.
        kept: whether a live hypothesis of the search had it.
        number: of the pass that read it, from 1.
    """

    word: str
    parent: int
    kept: bool
    number: int


def read_tree(record: Record, where: str) -> list[Node]:
    """Return the nodes of a trace's record, in the order in which they were read.

    Args:
        record: of a sentence.
        where: which one, for errors.

    Raises:
        UsageError: it has no tree, or one that contradicts itself.
    """
    found: list[Node] = []
    for number, entry in enumerate(record.get("trace") or [], start=1):
        if "tree" not in entry:
            raise UsageError(f"{where}: --tree needs a trace of a decoder that drafts with --beam")
        for one in field(entry, "tree", list, where):
            fits = isinstance(one, list) and list(map(type, one)) == [str, int, bool]
            if not fits or not (-1 <= one[1] < len(found)) or (one[1] < 0 and found):
                raise UsageError(f"{where}, pass {number}: got {one!r}; allowed: a node of a tree")
            word, parent, kept = one
            found.append(Node(word, parent, kept, number))
    return found


def best_path(nodes: Sequence[Node], output: Sequence[str]) -> set[int]:
    """Return the nodes of an output, with the first input's."""
    at, found = 0, {0}
    for word in output:
        behind = (n for n, one in enumerate(nodes) if one.parent == at and one.word == word)
        at = next(behind, -1)
        if at < 0:
            break
        found.add(at)
    return found


def places(nodes: Sequence[Node], first: set[int]) -> list[tuple[int, int]]:
    """Return column and row of each node.

    Args:
        nodes: the tree.
        first: nodes that are straight behind the one before them.
    """
    behind: list[list[int]] = [[] for _ in nodes]
    for number, one in enumerate(nodes):
        if one.parent >= 0:
            behind[one.parent].append(number)
    found, rows, stack = [(0, 0)] * len(nodes), 0, [(0, 0, 0)]
    while stack:
        node, column, row = stack.pop()
        if row < 0:
            rows += 1
            row = rows
        found[node] = (column, row)
        order = sorted(behind[node], key=lambda n: (n not in first, not nodes[n].kept, n))
        # The first one stays in this row; the others begin rows below all that is behind it.
        stack += [(n, column + 1, row if i == 0 else -1) for i, n in enumerate(order)][::-1]
    return found


def texts(record: Record, nodes: Sequence[Node]) -> list[str]:
    """Return the texts of the picture, for ``fonts.choose``."""
    return [*(one.word for one in nodes), *(record.get("source") or ()), *COLOURS]


def draw(record: Record, nodes: Sequence[Node], path: Path) -> None:
    """Write the picture.

    Args:
        record: of the sentence.
        nodes: its tree.
        path: a PNG or SVG file.
    """
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
        state = BEST if number in best else KEPT if one.kept else NEVER
        sheet.box(x, y, *BOX, facecolor=COLOURS[state], edgecolor="white")
        sheet.text(x + 0.04, y + BOX[1] / 2, label(one.word), SMALL)
        sheet.text(x + BOX[0] - 0.03, y + BOX[1] / 2, str(one.number), 5.5, ha="right", color=FAINT)
    sheet.legend(MARGIN, below, room, COLOURS)
    sheet.save(path)
