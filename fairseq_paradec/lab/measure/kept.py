"""The rows of untimed presets on disk: finished ones are kept, and the table is written."""

import hashlib
import json
from typing import Any

from ..data import documents
from ..data.journal import Journal
from ..data.table import Table
from ..settings import Made
from .presets import Comparison


def key(*made_of: Any) -> str:
    """Return the key of a result: a checksum of everything that it depends on."""
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def open_journal(asked: Comparison) -> Journal:
    """Return what is made so far."""
    assert asked.out is not None
    head = {"schema": asked.preset, "version": 1}
    return Journal(asked.out.with_suffix(".partial.jsonl"), head)


def save(asked: Comparison, title: str, table: Table) -> None:
    """Write the table."""
    assert asked.out is not None
    documents.save_made(Made(asked.argv, asked.out, title), table)
