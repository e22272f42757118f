"""Tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any


def aligned(lines: Sequence[Sequence[str]], heads: int = 1) -> str:
    """Format lines of cells: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    found = []
    for first, *rest in lines:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        found.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    found.insert(heads, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(found)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows with the same columns; a column's numbers have the same number of digits."""
    columns = []
    for name in rows[0]:
        values = [row[name] for row in rows]
        digits = max(len(str(value).partition(".")[2]) for value in values)
        cells = [f"{v:.{digits}f}" if type(v) is float else str(v) for v in values]
        columns.append([name, *cells])
    return aligned(list(zip(*columns, strict=True)))
