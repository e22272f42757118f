"""docs/papers.md: every table and figure of the five papers beside ours.

``papers.toml`` of the package has a row for each numbered table and figure, the one here its
figures: cells of results, by name, condition and column, or the sum (``plus``), ratio (``over``) or
difference (``less``) of two. Its claims compare figures with each other or with numbers; a verdict
stands on claims that hold. A claim that a figure's spread does not bear out is marked.
"""

import operator
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis import Fields
from fairseq_paradec.lab.commands import papers
from fairseq_paradec.lab.commands.papers import VERDICTS
from fairseq_paradec.lab.data.table import Cell, Row, Table, Value
from fairseq_paradec.lab.show.table import markdown_table

from .published import Results

#: Verdicts that stand on claims.
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

`make docs` renders this page from `tools/site/papers.toml` and \
[the results](../results/README.md). `paradec papers xia-3 DATA --path MODEL` runs the commands \
of a row on your models; without DATA and models, on those that `fairseq_paradec/lab/papers.toml` \
names.

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


def load() -> dict[str, Any]:
    """Return both files called papers.toml as one: ``papers`` by key, and ``rows``."""
    shown = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    rows = [row | shown["rows"].get(row["id"], {}) for row in papers.load()["rows"]]
    return {"papers": shown["papers"], "rows": rows}


# ---- figures -------------------------------------------------------------------------------------


def number(cell: Sequence[Any], results: Results) -> Value:
    """Return the number in a cell of a result; without a spread both ends are the number.

    Args:
        cell: the result's name, a condition (column: value; ``*`` stands for any text), a column;
            both columns by their keys. The first table with that column and a fitting row is meant.
        results: all of them, by name.

    Raises:
        UsageError: there is no such cell, there are several, or it holds no number.
    """
    name, condition, key = cell
    content = _content(name, condition, key, results)
    if isinstance(content, Value):
        if content.low is not None and content.high is not None:
            return content
        content = content.middle
    if isinstance(content, int | float) and not isinstance(content, bool):
        return Value(float(content), float(content), float(content))
    raise UsageError(f"papers.toml: {name}, {condition}, {key} is {content!r}, not a number")


def _content(name: str, condition: Mapping[str, Any], key: str, results: Results) -> Cell:
    """Return what stands in a cell; see ``number``."""
    if name not in results:
        raise UsageError(f"papers.toml: got {name!r}; allowed: a result")
    for candidate in results[name].tables:
        rows = [row for row in candidate.rows if key in row and _fits(candidate, row, condition)]
        if len(rows) > 1:
            raise UsageError(f"papers.toml: {name} has {len(rows)} rows with {condition}")
        if rows:
            return rows[0][key]
    raise UsageError(f"papers.toml: {name} has no row with {condition} and column {key!r}")


def _fits(candidate: Table, row: Row, condition: Mapping[str, Any]) -> bool:
    """Return whether a table's row fits a condition."""
    texts = {head.key: head.text(row[head.key]) for head in candidate.columns}
    return all(
        key in texts
        and re.fullmatch(re.escape(str(wanted)).replace(r"\*", ".*"), texts[key]) is not None
        for key, wanted in condition.items()
    )


def evaluate(figure: Fields, results: Results) -> Value:
    """Return a figure: a cell, or a sum of two; its ratio to another, or its difference from it.

    Its ends are the least and the largest that it may be by the spreads of its cells. A difference
    of two BLEU without spreads has ``BLEU_SPREAD``.
    """
    middle, low, high = _ends(figure["of"], results)
    if "plus" in figure:
        more, least, most = _ends(figure["plus"], results)
        middle, low, high = middle + more, low + least, high + most
    if "over" in figure:
        base, least, most = _ends(figure["over"], results)
        return Value(middle / base, low / most, high / least)
    if "less" in figure:
        base, least, most = _ends(figure["less"], results)
        middle, low, high = middle - base, low - most, high - least
        if figure["of"][2] == "BLEU" and 0 != low == high:
            low, high = low - BLEU_SPREAD, high + BLEU_SPREAD
    return Value(middle, low, high)


def _ends(cell: Sequence[Any], results: Results) -> tuple[float, float, float]:
    """Return the middle and both ends of a cell."""
    value = number(cell, results)
    assert value.low is not None and value.high is not None
    return value.middle, value.low, value.high


def unsure(row: Fields, values: Mapping[str, Value]) -> set[str]:
    """Return the figures that begin a claim which does not hold all over the spreads."""

    def ends(side: str | float) -> tuple[Any, Any]:
        return (values[side].low, values[side].high) if isinstance(side, str) else (side, side)

    return {
        left
        for left, sign, right in row.get("claims", [])
        if sign != "==" and not all(OPERATORS[sign](a, b) for a in ends(left) for b in ends(right))
    }


def check(row: Fields, results: Results) -> dict[str, Value]:
    """Return a row's figures, its claims checked.

    Raises:
        UsageError: a claim does not hold, a verdict stands on none, or names what is not there.
    """
    name, verdict, claims = row["id"], row["verdict"], row.get("claims", [])
    values = {key: evaluate(figure, results) for key, figure in row.get("figures", {}).items()}
    if verdict not in VERDICTS:
        raise UsageError(f"{name}: got {verdict!r}; allowed: {', '.join(VERDICTS)}")
    if (verdict in MEASURED) != bool(claims):
        raise UsageError(f"{name}: {verdict!r} with {len(claims)} claims")
    if verdict in ("other", "cannot", "not yet") and not row.get("why"):
        raise UsageError(f"{name}: {verdict!r} without a why")
    for left, sign, right in claims:
        mine = values[left].middle
        bound = values[right].middle if isinstance(right, str) else right
        if not OPERATORS[sign](mine, bound):
            raise UsageError(f"{name}: {left} {sign} {right} does not hold: {mine:.3f}, {bound}")
    return values


# ---- the page ------------------------------------------------------------------------------------


def page(data: Mapping[str, Any], results: Results) -> str:
    """Render docs/papers.md.

    Args:
        data: ``papers``, each with ``title``, ``short`` and perhaps ``picture``, and ``rows``.
        results: all of them, by name.

    Raises:
        UsageError: a verdict does not stand; see ``check``.
    """
    verdicts = "; ".join(f"{text} {count}" for text, count in papers.counts(data["rows"]).items())
    parts = [HEAD.format(bleu=BLEU_SPREAD), f"Rows: {verdicts}."]
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
    values, figures = check(row, results), row.get("figures", {})
    within = unsure(row, values)
    texts = {
        key: f"{values[key].middle:.{figure.get('digits', 2)}f}" for key, figure in figures.items()
    }
    shown = []
    for key, figure in figures.items():
        theirs = f"{figure['paper']} → " if "paper" in figure else ""
        mark = "within the spread" if key in within else figure.get("mark")
        shown.append(f"{figure['name']}: {theirs}**{texts[key]}**" + (f" ({mark})" if mark else ""))
    verdict = f"**{VERDICTS[row['verdict']]}**"
    if "why" in row:
        verdict += f": {row['why'].format(**texts)}"
    cells = [
        figure[part]
        for figure in figures.values()
        for part in ("of", "plus", "over", "less")
        if part in figure
    ]
    lines = [line for line in row.get("lines", []) if line.startswith("papers-")]
    sources = [f"[{name}](../results/{name}.json)" for name in dict.fromkeys(c[0] for c in cells)]
    sources += [f"`{line}`" for line in lines if line not in results]
    sources += [f"`{line}`" for line in row.get("paper_lines", [])]
    return {
        "": f"{number_of(row['id'])}<br>`{row['id']}`",
        "asks": row["asks"],
        "paper → ours": "<br>".join(shown) or None,
        "verdict": "<br>".join([verdict, ", ".join(sources)]) if sources else verdict,
    }


def number_of(name: str) -> str:
    """Return what a row's id names: ``xia-3`` is Table 3, ``xia-f4`` Figure 4."""
    end = name.rpartition("-")[2]
    return f"Figure {end[1:]}" if end.startswith("f") else f"Table {end}"
