"""Rows of a table in which every two levels of two factors meet, and not every combination."""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Hashable]],
    allowed: Callable[[Row], bool] = lambda row: True,
    varied: str = "",
) -> list[Row]:
    """A few rows that hold every allowed pair of levels; the same rows each time.

    Rows that agree in all factors but the `varied` one, if there is one, stand together, and there
    are few such groups: what depends on the other factors alone is worked out once for each.
    """
    pairs = {
        ((a, x), (b, y)): None
        for a, b in itertools.combinations(factors, 2)
        for x, y in itertools.product(factors[a], factors[b])
        if allowed({a: x, b: y})
    }
    groups: dict[tuple[tuple[str, Hashable], ...], list[Row]] = {}
    while pairs:
        start: Row = dict(next(iter(pairs)))
        row = dict(start)
        for name in factors:
            if name not in row:
                row[name] = _best(row, name, factors[name], pairs, allowed)
        tried = [{name: row[name] for name in factors}]
        if varied in start:  # in a group of before, if as many pairs meet there
            asked = [item for item in start.items() if item[0] != varied]
            for group in groups:
                if all(item in group for item in asked):
                    other = dict(group) | {varied: start[varied]}
                    tried.append({name: other[name] for name in factors})
        counted = [sum(pair in pairs for pair in _pairs(one)) for one in tried]
        fit = [i for i in range(1, len(tried)) if counted[i] >= counted[0] and allowed(tried[i])]
        row = tried[max(fit, key=lambda i: counted[i], default=0)]
        groups.setdefault(tuple(item for item in row.items() if item[0] != varied), []).append(row)
        for pair in _pairs(row):
            pairs.pop(pair, None)
    return [row for rows in groups.values() for row in rows]


def _pairs(row: Row) -> Iterator[Any]:
    return itertools.combinations(row.items(), 2)


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
