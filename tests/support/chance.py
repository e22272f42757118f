"""Whether counts are a matter of chance."""

from __future__ import annotations

from collections.abc import Sequence


def assert_uniform(counts: Sequence[int]) -> None:
    """Pearson's chi-square test; chance alone fails it once in a thousand (Wilson-Hilferty)."""
    free = len(counts) - 1
    expected = sum(counts) / len(counts)
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    bound = free * (1 - 2 / (9 * free) + 3.09 * (2 / (9 * free)) ** 0.5) ** 3
    assert statistic < bound, (list(counts), statistic, bound)
