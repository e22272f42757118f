"""Statistics of raw times: medians with their spread, and ratios within a round.

All functions take seconds as ``rounds[r][i]``: round r, item i (a sentence, or a batch). Compared
decoders take turns at each item of a round, so a busy moment of the machine slows all of them.
Ratios are taken within a round, and the median of the rounds is reported.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Rounds = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Spread:
    """A median over rounds with the lowest and the highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value per round."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int, unit: str = "") -> str:
        """Return, for example, ``1.52x (1.50-1.53)``."""
        median, low, high = (f"{v:.{digits}f}" for v in (self.median, self.low, self.high))
        return f"{median}{unit} ({low}-{high})"


def speed_up(baseline: Rounds, system: Rounds, items: Sequence[int] | None = None) -> Spread:
    """Return a system's speed-up: the baseline's total time over the system's."""
    return Spread.of(
        [
            total(ours, items) / total(theirs, items)
            for ours, theirs in zip(baseline, system, strict=True)
        ]
    )


def total(times: Sequence[float], items: Sequence[int] | None = None) -> float:
    """Return the time of all or some items of a round."""
    return sum(times if items is None else (times[i] for i in items))


def round_medians(rounds: Rounds) -> Spread:
    """Return the median time of an item per round, summarised over the rounds."""
    return Spread.of([statistics.median(times) for times in rounds])


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
