"""Every table and figure of the five papers beside ours: pure functions of papers.toml and results.

``lab/papers.toml`` has a row for each numbered table and figure. A row's figures are cells of
results, by name, condition and column, or the sum (``plus``), ratio (``over``) or difference
(``less``) of two. Its claims compare figures with each other or with numbers; a verdict stands on
claims that hold. A claim that a figure's spread does not bear out is marked.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ..data.table import Cell, Result, Row, Table, Value
from ..show.table import markdown_table
from . import Fields

Results = Mapping[str, Result]

#: What is found, as the page says it; the first two stand on claims.
VERDICTS = {
    "same": "same direction",
    "other": "other direction",
    "shown": "nothing measured",
    "cannot": "cannot be run here",
    "not yet": "not yet run",
}
MEASURED = ("same", "other")

OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}

HEAD = """\
# Every table and figure of the papers

`paradec papers --page` renders this page from `fairseq_paradec/lab/papers.toml` and \
[the results](../results/README.md). `paradec papers xia-3 DATA --path MODEL` runs the commands \
of a row on your models; without DATA and models, on those that are written there.

- **Compared** are ratios, orders, signs and differences, never absolute times: the papers' \
figures first, ours behind the arrow. Their corpora and models are others: ours are the tiny and \
the small pair of [experiments.md](experiments.md).
- **A verdict** is checked: each "same direction" has claims that hold in the JSON files of its \
results, or the page does not render.
- **Names without a link** are lines of [experiments.queue](../scripts/experiments.queue): \
`papers-...` are not yet run, the others are the paper's own setting and need an accelerator.
- **(within the spread)**: the order or sign that the verdict names is inside the rounds' range or \
the 95% interval, or a difference of BLEU is below {bleu}, an interval's usual half. Each model \
here was trained with one seed; **(one seed)** marks what may hang on it, its spread unknown."""

#: Half of what a difference of two BLEU without an interval may be off: paired intervals of 1,000
#: captions reach 0.6 to 1.2 to each side.
BLEU_SPREAD = 0.9


def value(cell: Sequence[Any], results: Results) -> float:
    """Return the number in a cell of a result.

    Args:
        cell: the result's name, a condition (column: value; ``*`` stands for any text), a column;
            both columns by their keys. The first table with that column and a fitting row is meant.
        results: all of them, by name.

    Raises:
        UsageError: there is no such cell, there are several, or it holds no number.
    """
    found = _cell(cell, results)
    if isinstance(found, Value):
        return found.middle
    if isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    name, condition, key = cell
    raise UsageError(f"papers.toml: {name}, {condition}, {key} is {found!r}, not a number")


def _cell(cell: Sequence[Any], results: Results) -> Cell:
    """Return what stands in a cell; see ``value``."""
    name, condition, key = cell
    if name not in results:
        raise UsageError(f"papers.toml: got {name!r}; allowed: a result")
    for one in results[name].tables:
        rows = [row for row in one.rows if key in row and _fits(one, row, condition)]
        if len(rows) > 1:
            raise UsageError(f"papers.toml: {name} has {len(rows)} rows with {condition}")
        if rows:
            return rows[0][key]
    raise UsageError(f"papers.toml: {name} has no row with {condition} and column {key!r}")


def figure(one: Fields, results: Results) -> float:
    """Return a figure: a cell, or a sum of two; its ratio to another, or its difference from it."""
    found = value(one["of"], results)
    if "plus" in one:
        found += value(one["plus"], results)
    if "over" in one:
        return found / value(one["over"], results)
    if "less" in one:
        return found - value(one["less"], results)
    return found


def spread(one: Fields, results: Results) -> tuple[float, float]:
    """Return the least and the largest that a figure may be, by the intervals in its cells.

    Cells that hold none are taken as they are, but for a difference of two BLEU.
    """
    low, high = _interval(one["of"], results)
    if "plus" in one:
        more = _interval(one["plus"], results)
        low, high = low + more[0], high + more[1]
    if "over" in one:
        least, most = _interval(one["over"], results)
        return low / most, high / least
    if "less" in one:
        least, most = _interval(one["less"], results)
        low, high = low - most, high - least
        if one["of"][2] == "BLEU" and 0 != low == high:
            return low - BLEU_SPREAD, high + BLEU_SPREAD
    return low, high


def unsure(row: Fields, results: Results) -> set[str]:
    """Return the figures that begin a claim which does not hold all over the spreads."""
    spreads = {key: spread(one, results) for key, one in row.get("figures", {}).items()}
    found = set()
    for left, sign, right in row.get("claims", []):
        ends = spreads[right] if isinstance(right, str) else (right, right)
        if sign != "==" and not all(
            OPERATORS[sign](mine, other) for mine in spreads[left] for other in ends
        ):
            found.add(left)
    return found


def checked(row: Fields, results: Results) -> dict[str, float]:
    """Return a row's figures, its claims checked.

    Raises:
        UsageError: a claim does not hold, a verdict stands on none, or names what is not there.
    """
    figures = {key: figure(one, results) for key, one in row.get("figures", {}).items()}
    if row["verdict"] not in VERDICTS:
        raise UsageError(f"{row['id']}: got {row['verdict']!r}; allowed: {', '.join(VERDICTS)}")
    claims = row.get("claims", [])
    if (row["verdict"] in MEASURED) != bool(claims):
        raise UsageError(f"{row['id']}: {row['verdict']!r} with {len(claims)} claims")
    if row["verdict"] in ("other", "cannot", "not yet") and not row.get("why"):
        raise UsageError(f"{row['id']}: {row['verdict']!r} without a why")
    for left, sign, right in claims:
        bound = figures[right] if isinstance(right, str) else right
        if not OPERATORS[sign](figures[left], bound):
            raise UsageError(
                f"{row['id']}: {left} {sign} {right} does not hold: {figures[left]:.3f}, {bound}"
            )
    return figures


def overview(rows: Sequence[Fields]) -> list[str]:
    """Return what ``paradec papers`` prints: each row, and the number of each verdict."""
    lines = [f"{row['id']:11}  {VERDICTS[row['verdict']]:18}  {row['asks']}" for row in rows]
    return [*lines, "", "; ".join(f"{text}: {number}" for text, number in counts(rows).items())]


def counts(rows: Sequence[Fields]) -> dict[str, int]:
    """Return how many rows have each verdict, in the words of the page."""
    return {
        text: sum(row["verdict"] == verdict for row in rows) for verdict, text in VERDICTS.items()
    }


def page(data: Mapping[str, Any], results: Results) -> str:
    """Render docs/papers.md.

    Args:
        data: papers.toml: ``papers``, each with ``title``, ``short`` and perhaps ``picture``, and
            ``rows``.
        results: all of them, by name.

    Raises:
        UsageError: a verdict does not stand; see ``checked``.
    """
    said = counts(data["rows"])
    head = HEAD.format(bleu=BLEU_SPREAD)
    parts = [head, "Rows: " + "; ".join(f"{text} {number}" for text, number in said.items()) + "."]
    for key, paper in data["papers"].items():
        rows = [row for row in data["rows"] if row["id"].startswith(f"{key}-")]
        parts.append(f"## {paper['short']}\n\n{paper['title']}")
        parts.append(markdown_table(Table.of([_line(row, results) for row in rows])))
        if "picture" in paper:
            path, text = paper["picture"]
            parts.append(f"![{text}]({path})\n\n{text}")
    return "\n\n".join(parts) + "\n"


def _line(row: Fields, results: Results) -> Row:
    """Return a row of the page's table."""
    ones = row.get("figures", {})
    numbers = {
        key: f"{number:.{ones[key].get('digits', 2)}f}"
        for key, number in checked(row, results).items()
    }
    marks = {key: f" ({one['mark']})" for key, one in ones.items() if "mark" in one}
    marks |= dict.fromkeys(unsure(row, results), " (within the spread)")
    shown = [
        f"{one['name']}: {one['paper'] + ' → ' if 'paper' in one else ''}**{numbers[key]}**"
        + marks.get(key, "")
        for key, one in ones.items()
    ]
    found = list(dict.fromkeys(cell[0] for cell in _cells(row)))
    queued = [name for name in row.get("lines", []) if name.startswith("papers-")]
    queued = [name for name in queued if name not in results]
    verdict = f"**{VERDICTS[row['verdict']]}**"
    if "why" in row:
        verdict += f": {row['why'].format(**numbers)}"
    more = [f"[{name}](../results/{name}.md)" for name in found]
    more += [f"`{name}`" for name in (*queued, *row.get("paper_lines", []))]
    return {
        "": f"{number_of(row['id'])}<br>`{row['id']}`",
        "asks": row["asks"],
        "paper → ours": "<br>".join(shown) or None,
        "verdict": "<br>".join([verdict, ", ".join(more)]) if more else verdict,
    }


def number_of(name: str) -> str:
    """Return what a row's id names: ``xia-3`` is Table 3, ``xia-f4`` Figure 4."""
    number = name.rpartition("-")[2]
    return f"Figure {number[1:]}" if number.startswith("f") else f"Table {number}"


def _cells(row: Fields) -> list[Sequence[Any]]:
    """Return all cells that a row's figures read."""
    return [
        one[part]
        for one in row.get("figures", {}).values()
        for part in ("of", "plus", "over", "less")
        if part in one
    ]


def _fits(table: Table, row: Row, condition: Mapping[str, Any]) -> bool:
    """Return whether a table's row fits a condition."""
    texts = {one.key: one.text(row[one.key]) for one in table.columns if one.key in condition}
    return all(
        key in texts
        and re.fullmatch(re.escape(str(wanted)).replace(r"\*", ".*"), texts[key]) is not None
        for key, wanted in condition.items()
    )


def _interval(cell: Sequence[Any], results: Results) -> tuple[float, float]:
    """Return the ends of a cell's number."""
    found = _cell(cell, results)
    if isinstance(found, Value) and found.low is not None and found.high is not None:
        return found.low, found.high
    only = value(cell, results)
    return only, only
