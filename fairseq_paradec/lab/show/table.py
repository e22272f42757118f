"""Tables as text: for a terminal, and in Markdown. ``page.py`` has those of pages."""

from collections.abc import Sequence

from ..data.table import Column, Table, Value


def aligned(lines: Sequence[Sequence[str]], ruled: bool = True, left: Sequence[int] = (0,)) -> str:
    """Format lines of cells, that of the headings first.

    Args:
        lines: all lines.
        ruled: whether a rule is below the headings.
        left: columns that are aligned to the left; the others are to the right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    if ruled:
        shown.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(shown)


def terminal_table(table: Table) -> str:
    """Format a table for a terminal; a column's numbers have the same number of digits."""
    columns = [[column.name, *_cells(table, column)] for column in table.shown]
    return aligned(list(zip(*columns, strict=True)))


def _cells(table: Table, column: Column) -> list[str]:
    """Return the cells of a column, its plain numbers with the same number of digits."""
    cells = [row[column.key] for row in table.rows]
    floats = [cell for cell in cells if isinstance(cell, float)]
    digits = max((len(str(cell).partition(".")[2]) for cell in floats), default=0)
    return [
        f"{cell:.{digits}f}" if isinstance(cell, float) and not column.form else column.text(cell)
        for cell in cells
    ]


def markdown(tables: Sequence[Table]) -> str:
    """Join tables, their titles and notes to Markdown."""
    parts = []
    for table in tables:
        notes = "\n".join(f"- {note}" for note in table.notes)
        parts += [table.title and f"## {table.title}", notes, markdown_table(table)]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """Format a table in Markdown; columns of plain numbers are aligned to the right."""
    rows = [
        [column.name for column in table.shown],
        ["--:" if _is_plain(table, column.key) else "---" for column in table.shown],
        *table.text(),
    ]
    return "\n".join("| " + " | ".join(map(markdown_cell, row)) + " |" for row in rows)


def markdown_cell(content: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return " ".join(content.split()).replace("|", "\\|")


def _is_plain(table: Table, key: str) -> bool:
    """Return whether a column has numbers alone."""
    return table.is_numeric(key) and not any(
        isinstance(row[key], Value | tuple) for row in table.rows
    )
