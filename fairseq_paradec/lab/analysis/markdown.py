"""Tables as Markdown."""

import re
from collections.abc import Sequence
from typing import Any


def shown(value: object) -> str:
    """Return a cell's value as text; None means ``not run``."""
    if value is None:
        return "not run"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def cell(value: object) -> str:
    """Return a cell's value as text for a Markdown table."""
    return " ".join(shown(value).split()).replace("|", "\\|")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows; columns of numbers are aligned to the right."""
    columns = list(rows[0])
    cells = [[cell(row[column]) for column in columns] for row in rows]
    numeric = [
        all(re.fullmatch(r"[-+]?[\d.]+|-|not run", one) for one in column) for column in zip(*cells)
    ]
    lines = [
        [cell(column) for column in columns],
        ["--:" if right else "---" for right in numeric],
        *cells,
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown(found: Sequence[dict[str, Any]]) -> str:
    """Join tables to Markdown."""
    parts = []
    for one in found:
        parts += [
            one["title"] and f"## {one['title']}",
            "\n".join(f"- {note}" for note in one["notes"]),
        ]
        parts.append(table(one["rows"]))
    return "\n\n".join(part for part in parts if part) + "\n"
