"""How many steps the drafts of a beam have: as many as pay, by what rounds cost here.

A round with drafts of d steps costs d passes of the drafter and one of the model, over all nodes:
a straight line over d. It replaces as many passes of the plain search as it takes steps. A drafted
step is kept with about the same chance wherever it is, so a round takes 1 + r + r^2 + ... + r^d.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

logger = logging.getLogger(__name__)

#: The most steps of a draft whose depth is chosen by cost.
DEEPEST = 12
#: A depth is chosen over the plain search if its time for a step is at most this share of its.
MAX_RATIO = 0.98
#: Before anything is observed: of 12 drafted steps 11 are kept, as with the small pair's model in
#: int8 (docs/experiments.md).
STEPS = (11, 12)


class Costs(NamedTuple):
    """What searches cost in batches of a size."""

    step: float  # seconds of a step of the plain search
    # of a round with short drafts: how many steps were drafted, and its seconds
    few: tuple[float, float]
    many: tuple[float, float]  # of one with long drafts

    def rounds(self, deepest: int = DEEPEST) -> list[float]:
        """Return the seconds of a round by its depth; at 0 of a step of the plain search."""
        (short, low), (long, high) = self.few, self.many
        slope = max(0.0, high - low) / (long - short) if long > short else 0.0
        return [self.step, *(max(0.0, low + slope * (d - short)) for d in range(1, deepest + 1))]


def steps_kept(rate: float, deepest: int = DEEPEST) -> list[float]:
    """Return how many steps a round takes, by its depth from 0.

    Args:
        rate: how often a drafted step is kept, where those before it are.
        deepest: the last depth.
    """
    return [sum(rate**i for i in range(depth + 1)) for depth in range(deepest + 1)]


def choose_depth(costs: Sequence[float], kept: Sequence[float]) -> int:
    """Return the depth whose steps take the least time; 0: the plain search's do, or nearly.

    Args:
        costs: seconds of a round, by its depth; at 0 of a step of the plain search.
        kept: the steps that a round takes, by its depth; at 0 one.
    """
    each = [cost / steps for cost, steps in zip(costs, kept, strict=True)]
    best = min(range(len(each)), key=each.__getitem__)
    return best if each[best] <= MAX_RATIO * each[0] else 0


class Depths:
    """The depths for one decoder's batches.

    Costs are measured once for each size of batch, a power of two; how many steps are kept is
    counted over all batches so far.

    Attributes:
        costs: what was measured, by size of batch.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.costs: dict[int, Costs] = {}
        self._kept, self._drafted = STEPS
        self._said = False

    def knows(self, sentences: int) -> bool:
        """Return whether searches of batches of this size have been measured."""
        return _size(sentences) in self.costs

    def learn(self, sentences: int, costs: Costs) -> None:
        """Take what searches cost in batches of this size."""
        self.costs[_size(sentences)] = costs

    def choose(self, sentences: int) -> int:
        """Return the depth for a batch of a known size; 0: the plain search is to decode it."""
        rate = self._kept / self._drafted
        depth = choose_depth(self.costs[_size(sentences)].rounds(), steps_kept(rate))
        if depth == 0 and not self._said:
            self._said = True
            logger.info(
                "%s: the plain search decodes batches of %d, where no draft pays here (about %.0f%%"
                " of drafted steps are kept); --block-size drafts nevertheless",
                self._name,
                sentences,
                100 * rate,
            )
        return depth

    def observe(self, rounds: Iterable[tuple[int, int]]) -> None:
        """Count rounds: of each the drafted steps, and those that it took."""
        for depth, steps in rounds:
            self._kept += steps - 1
            self._drafted += min(steps, depth)  # the first wrong one is the last that was tried


def _size(sentences: int) -> int:
    """Return the smallest power of two that is at least ``sentences``."""
    return 1 << (sentences - 1).bit_length()
