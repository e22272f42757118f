"""How many steps the drafts of a beam have: as many as pay, by what passes cost here.

A round with drafts of d steps costs d passes of the drafter and one of the model, over all nodes.
It replaces as many passes of the plain search as it takes steps. A drafted step is kept with about
the same chance wherever it is, so a round takes 1 + r + r^2 + ... + r^d steps.
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
#: Before anything is observed: of 12 drafted steps 11 are kept, and of (d + 1) B nodes 3 in 4 are
#: read, as with the small pair's model in int8 (docs/experiments.md).
STEPS, NODES = (11.0, 12.0), (3.0, 4.0)


class Passes(NamedTuple):
    """What passes cost in batches of a size.

    Attributes:
        beam: the rows of a step, B a sentence: a plain step's, and those of a drafter's pass.
        draft: seconds of the drafter's pass over them.
        verify: rows and seconds of the model's passes, ascending; the first has ``beam`` rows.
    """

    beam: int
    draft: float
    verify: Sequence[tuple[int, float]]

    def verifying(self, rows: float) -> float:
        """Return the seconds of the model's pass over rows: straight lines between the measured."""
        if len(self.verify) == 1 or rows <= self.verify[0][0]:
            return self.verify[0][1] * max(1.0, rows / self.verify[0][0])
        above = (i for i, (n, _) in enumerate(self.verify) if n >= rows)
        i = next(above, len(self.verify) - 1)
        (n, low), (m, high) = self.verify[i - 1 : i + 1]
        return max(low, low + (high - low) * (rows - n) / (m - n))

    def rounds(self, share: float, deepest: int = DEEPEST) -> list[float]:
        """Return the seconds of a round by its depth; at 0 of a step of the plain search.

        Args:
            share: how many of a round's (d + 1) B nodes the model reads.
            deepest: the last depth.
        """
        drafted = (
            d * self.draft + self.verifying(max(1.0, share * (d + 1)) * self.beam)
            for d in range(1, deepest + 1)
        )
        return [self.verify[0][1], *drafted]


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

    Costs are measured once for each size of batch, a power of two; how many steps are kept, and how
    many nodes are read, is counted over all batches so far.

    Args:
        name: of the decoder, for the log.
        beam: B.
    """

    def __init__(self, name: str, beam: int) -> None:
        self._name, self._beam = name, beam
        self._passes: dict[int, Passes] = {}
        self._steps, self._nodes = STEPS, NODES
        self._said = False

    def knows(self, sentences: int) -> bool:
        """Return whether passes of batches of this size have been measured."""
        return _size(sentences) in self._passes

    def learn(self, sentences: int, passes: Passes) -> None:
        """Take what passes cost in batches of this size."""
        self._passes[_size(sentences)] = passes

    def choose(self, sentences: int) -> int:
        """Return the depth for a batch of a known size; 0: the plain search is to decode it."""
        (kept, drafted), (read, possible) = self._steps, self._nodes
        costs = self._passes[_size(sentences)].rounds(read / possible)
        depth = choose_depth(costs, steps_kept(kept / drafted))
        if depth == 0 and not self._said:
            self._said = True
            logger.info(
                "%s: the plain search decodes batches of %d, where no draft pays here (about %.0f%%"
                " of drafted steps are kept); --block-size drafts nevertheless",
                self._name,
                sentences,
                100 * kept / drafted,
            )
        return depth

    def observe(self, rounds: Iterable[tuple[int, int, int]]) -> None:
        """Count rounds: of each the drafted steps, those that it took, and the nodes it read."""
        (kept, drafted), (read, possible) = self._steps, self._nodes
        for depth, steps, nodes in rounds:
            kept += steps - 1
            drafted += min(steps, depth)  # the first wrong one is the last that was tried
            read += nodes
            possible += (depth + 1) * self._beam
        self._steps, self._nodes = (kept, drafted), (read, possible)


def _size(sentences: int) -> int:
    """Return the smallest power of two that is at least ``sentences``."""
    return 1 << (sentences - 1).bit_length()
