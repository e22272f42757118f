"""How many steps the drafts of a beam have: as many as pay, by what rounds cost here.

A round with drafts of d steps costs d passes of the drafter and one of the model, over all nodes:
a straight line over d. It replaces as many passes of the plain search as it takes steps. Where the
i-th drafted step is kept with chance r_i, given those before it, a round takes
1 + r_1 + r_1·r_2 + ... + r_1·…·r_d.
"""

import itertools
import logging
import operator
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
#: How many observations of one place in a draft weigh as much as those of all places together.
WEIGHT = 4
#: So many batches of a size are decoded with drafts, and so many without, to see what is faster.
BATCHES = 4


class Costs(NamedTuple):
    """What searches cost in batches of a size."""

    step: float  # seconds of a step of the plain search
    # of a round with short drafts: how many steps were drafted, and its seconds
    few: tuple[float, float]
    many: tuple[float, float]  # of one with long drafts

    def rounds(self, deepest: int = DEEPEST) -> list[float]:
        """Return the seconds of a round by its depth; at 0 of a step of the plain search.

        A round of fewer steps than the short drafts had costs what theirs did.
        """
        (short, low), (long, high) = self.few, self.many
        slope = max(0.0, high - low) / (long - short) if long > short else 0.0
        return [self.step, *(low + slope * max(0.0, d - short) for d in range(1, deepest + 1))]


class Spent(NamedTuple):
    """What the first batches of a size have taken."""

    batches: int = 0
    seconds: float = 0.0
    steps: int = 0  # of the search

    def step(self) -> float:
        """Return the seconds of a step."""
        return self.seconds / self.steps


def steps_kept(rates: Iterable[float]) -> list[float]:
    """Return how many steps a round takes, by its depth from 0.

    Args:
        rates: how often the first drafted step is kept; the second, where the first is; and so on.
    """
    return list(itertools.accumulate(itertools.accumulate([1.0, *rates], operator.mul)))


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
    counted over all batches so far. Where drafts should pay, the first batches of a size are
    decoded with drafts and without in turn; if drafts were not faster, no later batch has any.

    Attributes:
        costs: what was measured, by size of batch.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.costs: dict[int, Costs] = {}
        self._kept, self._tried = [0] * DEEPEST, [0] * DEEPEST  # drafted steps, by their place
        self._spent: dict[tuple[int, bool], Spent] = {}  # by size, and whether there were drafts
        self._said = False

    def knows(self, sentences: int) -> bool:
        """Return whether searches of batches of this size have been measured."""
        return _size(sentences) in self.costs

    def learn(self, sentences: int, costs: Costs) -> None:
        """Take what searches cost in batches of this size."""
        self.costs[_size(sentences)] = costs

    def choose(self, sentences: int) -> int:
        """Return the depth for a batch of a known size; 0: the plain search is to decode it."""
        size = _size(sentences)
        depth = choose_depth(self.costs[size].rounds(), steps_kept(self.rates()))
        if depth > 0:
            plain, drafted = (self._spent.get((size, drafts), Spent()) for drafts in (False, True))
            if plain.batches < min(drafted.batches, BATCHES):
                return 0
            if drafted.batches >= BATCHES and drafted.step() > MAX_RATIO * plain.step():
                depth = 0
        if depth == 0 and not self._said:
            self._said = True
            logger.info(
                "%s: the plain search decodes batches of %d, where no draft pays here (about %.0f%%"
                " of drafted steps are kept); --block-size drafts nevertheless",
                self._name,
                sentences,
                100 * self._rate(),
            )
        return depth

    def rates(self) -> list[float]:
        """Return how often drafted steps are kept where those before them are, by their place.

        A place that was seldom tried has nearly the rate of all.
        """
        rate = self._rate()
        both = zip(self._kept, self._tried, strict=True)
        return [(kept + WEIGHT * rate) / (tried + WEIGHT) for kept, tried in both]

    def _rate(self) -> float:
        """Return how often a drafted step is kept, wherever it is."""
        return (STEPS[0] + sum(self._kept)) / (STEPS[1] + sum(self._tried))

    def observe(self, rounds: Iterable[tuple[int, int]]) -> None:
        """Count rounds: of each the drafted steps, and those that it took."""
        for depth, steps in rounds:
            for place in range(min(steps, depth, DEEPEST)):  # the first wrong one is the last
                self._tried[place] += 1
                self._kept[place] += place < steps - 1

    def took(self, sentences: int, depth: int, seconds: float, steps: int) -> None:
        """Count one of the first batches: its drafts' depth, its time, and the search's steps."""
        which = _size(sentences), depth > 0
        before = self._spent.get(which, Spent())
        if before.batches < BATCHES:
            self._spent[which] = Spent(
                before.batches + 1, before.seconds + seconds, before.steps + steps
            )


def _size(sentences: int) -> int:
    """Return the smallest power of two that is at least ``sentences``."""
    return 1 << (sentences - 1).bit_length()
