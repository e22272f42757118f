"""Tables as Markdown."""

from collections.abc import Sequence

from ..data.table import Table, Value


def cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def _is_plain(found: Table, key: str) -> bool:
    """Return whether a column has numbers alone."""
    return found.is_numeric(key) and not any(isinstance(r[key], Value | tuple) for r in found.rows)


def table(found: Table) -> str:
    """Format a table; columns of plain numbers are aligned to the right."""
    lines = [
        [cell(one.name) for one in found.shown],
        ["--:" if _is_plain(found, one.key) else "---" for one in found.shown],
        *([cell(text) for text in line] for line in found.text()),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown(found: Sequence[Table]) -> str:
    """Join tables to Markdown."""
    parts = []
    for one in found:
        notes = "\n".join(f"- {note}" for note in one.notes)
        parts += [one.title and f"## {one.title}", notes, table(one)]
    return "\n\n".join(part for part in parts if part) + "\n"
