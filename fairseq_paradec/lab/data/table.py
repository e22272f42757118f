"""Typed tables: a cell holds what was found, a column says how it is shown.

Cells are addressed by a column's key, never by its heading.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Units that stand behind a number, unless the heading has them.
SUFFIXES = ("x", "%")
#: What stands where there is no number.
NONE = "-"


@dataclass(frozen=True)
class Value:
    """A number that was measured several times, or of several things."""

    middle: float  # the median, the estimate, or the share
    low: float | None = None  # the lowest, or the lower end of an interval; None of a share
    high: float | None = None
    count: int | None = None  # of what it is made, such as rounds; None: not recorded

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Value":
        """Return the median of some numbers, with the lowest and the highest."""
        return cls(statistics.median(numbers), min(numbers), max(numbers), len(numbers))

    @classmethod
    def share(cls, part: int, whole: int) -> "Value":
        """Return a part of things that were counted."""
        return cls(part / whole, count=whole)

    def times(self, factor: float) -> "Value":
        """Return the same in another unit."""
        assert self.low is not None and self.high is not None
        return Value(factor * self.middle, factor * self.low, factor * self.high, self.count)


#: None: there is nothing to show. A tuple: a distribution.
Cell = bool | int | float | str | Value | tuple[float, ...] | None
Row = dict[str, Cell]


@dataclass(frozen=True)
class Column:
    """What the cells of a column have in common."""

    key: str  # its address
    name: str  # its heading
    unit: str = ""
    form: str = ""  # how a number is shown, as ``format`` takes it; empty: as it is
    hidden: bool = False  # whether pages leave the column out

    @property
    def _suffix(self) -> str:
        shown = self.unit in SUFFIXES and self.unit not in re.split(r"[\s,]+", self.name)
        return self.unit if shown else ""

    def numbers(self, cell: Cell) -> list[str]:
        """Return the numbers of a cell as they are shown, without units."""
        if isinstance(cell, Value):
            if cell.count is not None and cell.low is None:
                return [str(round(cell.middle * cell.count)), str(cell.count)]
            ends = [end for end in (cell.low, cell.high) if end is not None]
            return self.numbers((cell.middle, *ends))
        if cell is None or isinstance(cell, bool | str):
            return []
        return [format(n, self.form) for n in (cell if isinstance(cell, tuple) else (cell,))]

    def text(self, cell: Cell) -> str:
        """Return a cell as it is shown: ``1.52x (1.50-1.53)``, ``57/100``.

        Differences, whose form has a sign, end in brackets: ``-0.71 [-1.38, -0.07]``.
        """
        if cell is None:
            return NONE
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        if isinstance(cell, str):
            return cell
        numbers = self.numbers(cell)
        if isinstance(cell, tuple):
            return " ".join(numbers)
        if not isinstance(cell, Value):
            return numbers[0] + self._suffix
        if cell.low is None:
            return "/".join(numbers)
        middle, low, high = numbers
        ends = f"[{low}, {high}]" if self.form.startswith("+") else f"({low}-{high})"
        return f"{middle}{self._suffix} {ends}"


def column(
    key: str, name: str | None = None, unit: str = "", form: str = "", hidden: bool = False
) -> Column:
    """Return a column; without a name its heading is the words of its key."""
    return Column(key, key.replace("_", " ") if name is None else name, unit, form, hidden)


#: A row by column, or by the key of a plain one.
Cells = dict[Column | str, Cell]


@dataclass(frozen=True)
class Table:
    """Rows with the same columns."""

    columns: Sequence[Column]
    rows: Sequence[Row]  # cells by the columns' keys
    title: str = ""
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[Any, Cell]],
        title: str = "",
        notes: Sequence[str] = (),
    ) -> "Table":
        """Make a table of rows by column: a ``Column``, or the key of a plain one."""
        heads = rows[0] if rows else ()
        columns = [head if isinstance(head, Column) else column(head) for head in heads]
        by_key = [{_key(head): cell for head, cell in row.items()} for row in rows]
        if any(list(row) != [column.key for column in columns] for row in by_key):
            raise ValueError(f"rows of several columns: {by_key}")
        return cls(columns, by_key, title, list(notes))

    @property
    def shown(self) -> list[Column]:
        """The columns that pages show."""
        return [column for column in self.columns if not column.hidden]

    def text(self) -> list[list[str]]:
        """Return all cells as they are shown, without the headings."""
        return [[column.text(row[column.key]) for column in self.shown] for row in self.rows]

    def is_numeric(self, key: str) -> bool:
        """Return whether a column has no cell in words."""
        return not any(isinstance(row[key], str | bool) for row in self.rows)

    def numbers(self) -> Iterator[str]:
        """Yield all numbers as they are shown."""
        for row in self.rows:
            for column in self.shown:
                yield from column.numbers(row[column.key])


def _key(head: Column | str) -> str:
    return head.key if isinstance(head, Column) else head


@dataclass(frozen=True)
class Result:
    """What a JSON file holds."""

    name: str  # of the file
    content: Mapping[str, Any]  # the JSON, checked
    tables: Sequence[Table]  # its own, or those of its raw samples

    @property
    def kind(self) -> str:
        """``table``, ``benchmark`` or ``passes``."""
        return str(self.content["schema"]).rpartition(".")[2]


# ---- as JSON ------------------------------------------------------------------------------------


def to_json(table: Table) -> dict[str, Any]:
    """Return the columns and rows as a JSON file has them."""
    columns = [
        {name: fact for name, fact in vars(column).items() if fact or name == "name"}
        for column in table.columns
    ]
    rows = [{key: _plain(cell) for key, cell in row.items()} for row in table.rows]
    return {"columns": columns, "rows": rows}


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Value):
        return {name: number for name, number in vars(cell).items() if number is not None}
    return cell


def from_json(document: Mapping[str, Any]) -> Table:
    """Return the table of what ``to_json`` made."""
    rows = [{key: _typed(cell) for key, cell in row.items()} for row in document["rows"]]
    return Table([Column(**facts) for facts in document["columns"]], rows)


def _typed(cell: Any) -> Cell:
    if isinstance(cell, dict):
        return Value(**cell)
    typed: Cell = tuple(cell) if isinstance(cell, list) else cell
    return typed
