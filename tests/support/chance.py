"""Whether counts are a matter of chance."""

from collections.abc import Sequence


def assert_drawn(counts: Sequence[int], shares: Sequence[float], sigmas: float = 3.09) -> None:
    """Pearson's chi-square test (Wilson-Hilferty), rare cells pooled; 3.09 sigmas: 1 in 1,000."""
    cells, count, expected = [], 0, 0.0
    for share, number in sorted(zip(shares, counts, strict=True)):
        count, expected = count + number, expected + share * sum(counts)
        if expected >= 5:
            cells.append((count, expected))
            count, expected = 0, 0.0
    free = len(cells) - 1
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    bound = free * (1 - 2 / (9 * free) + sigmas * (2 / (9 * free)) ** 0.5) ** 3
    assert statistic < bound, (cells, statistic, bound)


def assert_uniform(counts: Sequence[int]) -> None:
    """`assert_drawn` with equal shares."""
    assert_drawn(counts, [1 / len(counts)] * len(counts))
