"""From how many tokens a pass drafting pays: interpolation between measured points.

Pure functions of the rows of ``paradec profile breakeven``. A curve is the points of one engine,
decoder and block size. A sentence takes the encoder's time and that of its passes: so between two
points time is a straight line over passes a token, and reciprocals are interpolated.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..data.table import Value, column

# What a row is, besides a mark: a point of a curve; a trained drafter's own drafts; the curve's
# point with as many tokens a pass as those.
MEASURED, OWN, PREDICTED = "measured", "own drafts", "own drafts, predicted"
# The row of a curve's break-even. Where the curve does not cross 1, its tokens a pass are the first
# or last measured ones.
PAYS_WORDS = PAYS, PAYS_BELOW, PAYS_NOWHERE = "pays from", "pays from below", "pays nowhere up to"


# The column of speed-ups.
SPEED_UP = column("speed_up", "speed-up", form=".3f")


class Mark(NamedTuple):
    """Where a trained pair stands."""

    name: str  # for the table and the picture
    decoder: str  # the decoder's name
    block_size: int  # its block size
    tokens: float  # that a pass writes

    @property
    def curve(self) -> tuple[str, int]:
        """The decoder and its block size."""
        return self.decoder, self.block_size


class Point(NamedTuple):
    """A point of a curve."""

    tokens: float  # that a pass writes
    speed_up: float  # against greedy search in the same engine, the median of the rounds
    low: float  # the lowest round's
    high: float  # the highest round's

    @classmethod
    def of(cls, tokens: float, gain: Value) -> "Point":
        """Return the point of a speed-up."""
        assert gain.low is not None and gain.high is not None
        return cls(tokens, gain.middle, gain.low, gain.high)

    @property
    def gain(self) -> Value:
        """The speed-up."""
        return Value(self.speed_up, self.low, self.high)


def at(points: Sequence[Point], tokens: float) -> Point | None:
    """Return a curve's point at a number of tokens a pass; None outside what was measured."""
    ordered = sorted(points)
    for first, second in zip(ordered, ordered[1:], strict=False):
        if first.tokens <= tokens <= second.tokens and first.tokens < second.tokens:
            return _between(first, second, _share(first.tokens, tokens, second.tokens))
    return next((point for point in ordered if point.tokens == tokens), None)


def pays_from(points: Sequence[Point]) -> tuple[str, Point]:
    """Return from where on a curve stays at 1 or above: in words, and the point."""
    ordered = sorted(points)
    if ordered[-1].speed_up < 1:
        return PAYS_NOWHERE, ordered[-1]
    for first, second in reversed(list(zip(ordered, ordered[1:], strict=False))):
        if first.speed_up < 1:
            return PAYS, _between(first, second, _share(first.speed_up, 1, second.speed_up))
    return PAYS_BELOW, ordered[0]


def _share(first: float, value: float, second: float) -> float:
    """Return how far a value's reciprocal is from the first one's to the second one's."""
    return (1 / first - 1 / value) / (1 / first - 1 / second)


def _between(first: Point, second: Point, share: float) -> Point:
    """Return the point at a share of the way between two."""
    return Point(*(1 / ((1 - share) / a + share / b) for a, b in zip(first, second, strict=True)))
