"""Tables for the terminal."""

from collections.abc import Sequence

from ..data.table import Column, Table


def aligned(lines: Sequence[Sequence[str]], heads: int = 1) -> str:
    """Format lines of cells: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    found = []
    for first, *rest in lines:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        found.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    found.insert(heads, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(found)


def table(found: Table) -> str:
    """Format a table; a column's numbers have the same number of digits."""
    columns = [[one.name, *_cells(found, one)] for one in found.shown]
    return aligned(list(zip(*columns, strict=True)))


def _cells(found: Table, column: Column) -> list[str]:
    """Return the cells of a column, its plain numbers with the same number of digits."""
    cells = [row[column.key] for row in found.rows]
    digits = max(
        (len(str(one).partition(".")[2]) for one in cells if isinstance(one, float)), default=0
    )
    return [
        f"{one:.{digits}f}" if isinstance(one, float) and not column.form else column.text(one)
        for one in cells
    ]
