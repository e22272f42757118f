"""A beam's tree, of a trace: its nodes, what became of them, and where they stand on a page.

Positions of the output go from left to right; a token stands behind the one that it continues. Of
a token's continuations the one that the search kept is straight behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UsageError
from ...records import Record, field

#: What became of a node: of the best output, of another hypothesis, of none.
BEST, KEPT, NEVER = "of the best output", "of another live hypothesis", "drafted, never needed"


@dataclass(frozen=True)
class Node:
    """A token of the tree."""

    word: str  # the token
    parent: int  # the number of the node before; -1: none, of the decoder's first input
    kept: bool  # whether a live hypothesis of the search had it
    number: int  # of the pass that read it, from 1


def read_tree(record: Record, where: str) -> list[Node]:
    """Return the nodes of a trace's record, in the order in which they were read.

    Raises:
        UsageError: it has no tree, or one that contradicts itself.
    """
    nodes: list[Node] = []
    for number, entry in enumerate(record.get("trace") or [], start=1):
        if "tree" not in entry:
            raise UsageError(
                f"{where}: --kind tree needs a trace of a decoder that drafts with --beam"
            )
        for item in field(entry, "tree", list, where):
            fits = isinstance(item, list) and list(map(type, item)) == [str, int, bool]
            if not fits or not (-1 <= item[1] < len(nodes)) or (item[1] < 0 and nodes):
                raise UsageError(f"{where}, pass {number}: got {item!r}; allowed: a node of a tree")
            word, parent, kept = item
            nodes.append(Node(word, parent, kept, number))
    return nodes


def best_path(nodes: Sequence[Node], output: Sequence[str]) -> set[int]:
    """Return the nodes of an output, with the first input's."""
    at, path = 0, {0}
    for word in output:
        behind = (n for n, node in enumerate(nodes) if node.parent == at and node.word == word)
        at = next(behind, -1)
        if at < 0:
            break
        path.add(at)
    return path


def places(nodes: Sequence[Node], first: set[int]) -> list[tuple[int, int]]:
    """Return column and row of each node.

    Args:
        nodes: the tree.
        first: nodes that are straight behind the one before them.
    """
    behind: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node.parent >= 0:
            behind[node.parent].append(number)
    corners, rows, stack = [(0, 0)] * len(nodes), 0, [(0, 0, 0)]
    while stack:
        number, column, row = stack.pop()
        if row < 0:
            rows += 1
            row = rows
        corners[number] = (column, row)
        order = sorted(behind[number], key=lambda n: (n not in first, not nodes[n].kept, n))
        # The first one stays in this row; the others begin rows below all that is behind it.
        stack += [(n, column + 1, row if i == 0 else -1) for i, n in enumerate(order)][::-1]
    return corners


def state(nodes: Sequence[Node], number: int, best: set[int]) -> str:
    """Return what became of a node: ``BEST``, ``KEPT`` or ``NEVER``."""
    return BEST if number in best else KEPT if nodes[number].kept else NEVER
