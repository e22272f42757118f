"""The rows of untimed presets on disk: finished ones are kept, and the table is written."""

import hashlib
import json
from typing import Any

from ..data import documents
from ..data.journal import Journal
from ..data.table import Table
from ..settings import Made
from ..show.table import terminal_table
from .presets import Comparison


def key(*made_of: Any) -> str:
    """Return the key of a result: a checksum of everything that it depends on."""
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def open_journal(asked: Comparison) -> Journal:
    """Return what is made so far."""
    assert asked.out is not None
    head = {"schema": asked.preset, "version": 1}
    return Journal(asked.out.with_suffix(".partial.jsonl"), head)


def save(asked: Comparison, table: Table, shown: Table | None = None) -> None:
    """Write the table, and print it; ``shown``: print this instead."""
    assert asked.out is not None
    documents.save_made(Made(asked.argv, asked.out, asked.title or table.title), table)
    print(terminal_table(shown or table))
