"""Rows of a table in which every two levels of two factors meet, and not every combination."""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Hashable]], allowed: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """A few rows that hold every allowed pair of levels; the same rows each time."""
    pairs = {
        ((a, x), (b, y)): None
        for a, b in itertools.combinations(factors, 2)
        for x, y in itertools.product(factors[a], factors[b])
        if allowed({a: x, b: y})
    }
    rows = []
    while pairs:
        row: Row = dict(next(iter(pairs)))
        for name in factors:
            if name not in row:
                row[name] = _best(row, name, factors[name], pairs, allowed)
        rows.append({name: row[name] for name in factors})
        for pair in itertools.combinations(rows[-1].items(), 2):
            pairs.pop(pair, None)
    return rows


def _best(
    row: Row, name: str, levels: Sequence[Hashable], pairs: Any, allowed: Callable[[Row], bool]
) -> Hashable:
    """The level that meets most levels of the row for the first time; of equals, one by turns."""
    best, most = None, -1
    turn = len(pairs) % len(levels)
    for level in (*levels[turn:], *levels[:turn]):
        if allowed(row | {name: level}):
            met = [
                ((name, level), one) in pairs or (one, (name, level)) in pairs
                for one in row.items()
            ]
            if sum(met) > most:
                best, most = level, sum(met)
    assert most >= 0, f"no level of {name} goes with {row}"
    return best
