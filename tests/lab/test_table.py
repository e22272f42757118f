"""Typed tables: how cells are shown, written and read; speed-ups of samples by hand."""

import json
from typing import Any

import pytest

from fairseq_paradec.lab.data.samples import series, speed_ups
from fairseq_paradec.lab.data.table import Cell, Column, Table, Value, column, from_json, to_json
from fairseq_paradec.lab.show.table import markdown_table, terminal_table


@pytest.mark.parametrize(
    ("shown", "cell", "text"),
    [
        (column("a"), None, "-"),
        (column("a"), True, "yes"),
        (column("a"), "a word", "a word"),
        (column("a"), 1.5, "1.5"),
        (column("a", form=".2f"), 1, "1.00"),
        (column("a", unit="x", form=".2f"), 1.518, "1.52x"),
        (column("x_a", unit="x", form=".2f"), 1.518, "1.52"),  # its heading has the unit
        (column("a", "a, %", "%"), 57.5, "57.5"),
        (column("a", "above 1x", "%", ".1f"), 57.5, "57.5%"),
        (column("a", unit="ms", form=".1f"), 57.54, "57.5"),
        (column("a", unit="FLOP", form=".3e"), 2.4568e14, "2.457e+14"),
        (column("a", unit="x", form=".2f"), Value(1.518, 1.5, 1.53), "1.52x (1.50-1.53)"),
        (column("a", form="+.2f"), Value(-0.5, -1, 0.0), "-0.50 [-1.00, +0.00]"),
        (column("a"), Value.share(57, 100), "57/100"),
        (column("a", unit="%", form=".0f"), (25.4, 18, 56.6), "25 18 57"),
    ],
)
def test_a_cell_is_shown_by_its_column(shown: Column, cell: Cell, text: str) -> None:
    assert shown.text(cell) == text


def rows() -> list[dict[Any, Cell]]:
    """Two rows with cells of each kind, and a column that pages leave out."""
    gain, made = column("gain", unit="x", form=".1f"), column("made_by", hidden=True)
    return [
        {"label": "a|b", "ms_a_text": 1.25, gain: Value(2, 1, 3, 4), made: "x", "shares": (1.0, 2)},
        {"label": "c", "ms_a_text": 1.0, gain: None, made: None, "shares": None},
    ]


def test_a_table_is_read_as_it_was_written() -> None:
    found = Table.of(rows())
    again = from_json(json.loads(json.dumps(to_json(found))))
    assert (again.columns, again.rows) == (found.columns, found.rows)
    assert to_json(found)["rows"][0]["gain"] == {"middle": 2, "low": 1, "high": 3, "count": 4}
    assert to_json(found)["columns"][3] == {"key": "made_by", "name": "made by", "hidden": True}


def test_rows_have_the_same_columns() -> None:
    with pytest.raises(ValueError, match="rows of several columns"):
        Table.of([{"a": 1}, {"b": 1}])


def test_pages_and_terminals_show_the_same_cells() -> None:
    found = Table.of(rows())
    assert markdown_table(found).splitlines() == [
        "| label | ms a text | gain | shares |",
        "| --- | --: | --- | --- |",
        "| a\\|b | 1.25 | 2.0x (1.0-3.0) | 1.0 2 |",
        "| c | 1.0 | - | - |",
    ]
    assert terminal_table(found).splitlines()[2:] == [
        "a|b         1.25  2.0x (1.0-3.0)   1.0 2",
        "c           1.00               -       -",
    ]
    assert list(found.numbers()) == ["1.25", "2.0", "1.0", "3.0", "1.0", "2", "1.0"]


def test_speed_ups_by_hand() -> None:
    """Of the slow one 6/3 and 8/4 in batches, alone 1/2; a group without the baseline has none."""
    samples = [
        *series("base", [[2, 4], [4, 4]], batch=2),
        *series("fast", [[1, 2], [2, 2]], batch=2),
        *series("base", [[1]]),
        *series("fast", [[2]]),
        *series("fast", [[2]], batch=9),
    ]
    by_batch = {"base": {1: Value(1, 1, 1, 1), 2: Value(1, 1, 1, 2)}}
    by_batch["fast"] = {1: Value(0.5, 0.5, 0.5, 1), 2: Value(2, 2, 2, 2)}
    wanted = {(name, size): one for name, ones in by_batch.items() for size, one in ones.items()}
    assert speed_ups(samples, "base", lambda one: one.batch) == wanted
    # A round's total times: 7/5 and, without the ones alone, 8/4.
    assert speed_ups(samples[:-1], "base")["fast", None] == Value(1.7, 1.4, 2.0, 2)
