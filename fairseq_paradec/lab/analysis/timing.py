"""Statistics of raw times: medians with their spread.

All functions take seconds as ``rounds[r][i]``: round r, item i (a sentence, or a batch).
"""

import statistics
from collections.abc import Sequence

import numpy as np

from ..data.samples import Rounds
from ..data.table import Value


def milliseconds(rounds: Rounds) -> Value:
    """Return the median time of an item per round, in ms, summarised over the rounds."""
    return Value.of([statistics.median(times) for times in rounds]).times(1000)


def percentile(rounds: Rounds, percent: float) -> float:
    """Return a percentile over the items' median times."""
    return float(np.percentile(np.median(np.array(rounds), axis=0), percent))


def length_bins(lengths: Sequence[int], count: int) -> dict[str, list[int]]:
    """Split items by length into bins of about the same size.

    Args:
        lengths: of each item.
        count: of bins; fewer result if many lengths are equal.

    Returns:
        The items of each bin, by its name, for example ``8-11``.
    """
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, count + 1)[1:], method="inverted_cdf"))
    bins: dict[str, list[int]] = {}
    low = min(lengths)
    for high in edges.tolist():
        name = str(high) if low == high else f"{low}-{high}"
        bins[name] = [i for i, length in enumerate(lengths) if low <= length <= high]
        low = high + 1
    return {name: items for name, items in bins.items() if items}
