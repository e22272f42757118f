"""How auto_fast decides: which candidates go on being measured, and which one is chosen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .candidates import BEAM, GREEDY, LOSSLESS, RELAXED
from .profile import Measured

# Another candidate is chosen over greedy if its time over greedy's is at most this.
MAX_RATIO = 0.98
# A candidate's ratio is the one that this share of the batches reach. Sentences differ: a candidate
# that is faster in every other batch only may be slower in the next thousand.
RATIO_SHARE = 2 / 3
# A bin is measured on so many batches, or for about so many seconds.
BATCHES, SECONDS = 16, 10.0
# A candidate drops out that takes this many times as long as greedy in both of the first two
# batches, or, after so many batches, this many times as long as the best one.
FIRST_LIMIT = 1.5
LATER_LIMITS = ((3, 1.3), (5, 1.1))


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
        label: the candidate.
        reason: for the log.
        in_budget: whether it is within the latency budget, if there is one.
    """

    label: str
    reason: str
    in_budget: bool = True


def choose(
    ratios: Mapping[str, float],
    ms: Mapping[str, float],
    quality: Mapping[str, int],
    budget: float | None = None,
) -> Choice:
    """Choose a decoder by what was measured.

    Without a budget: of the lossless candidates the fastest, if it beats greedy by ``MAX_RATIO``.
    With one: the best quality within it, and of one quality first the choice without a budget.

    Args:
        ratios: by candidate, its time over greedy's.
        ms: by candidate, its milliseconds per sentence.
        quality: by candidate, ``BEAM``, ``LOSSLESS`` or ``RELAXED``.
        budget: ``--latency-budget-ms``.
    """
    by_quality: list[list[str]] = [
        [label for label in ratios if quality[label] == wanted]
        for wanted in (BEAM, LOSSLESS, RELAXED)
    ]
    lossless = by_quality[LOSSLESS]
    others = [label for label in lossless if label != GREEDY]
    rival = min(others, key=ratios.__getitem__, default=GREEDY)
    label = rival if ratios[rival] <= MAX_RATIO else GREEDY
    if budget is None:
        if label == GREEDY and rival != GREEDY:
            reason = f"greedy; the next best, {rival}, is {1 / ratios[rival]:.2f}x as fast"
            return Choice(label, reason)
        return Choice(label, f"{label}, {1 / ratios[label]:.2f}x greedy")
    by_quality[LOSSLESS] = [label, *sorted(lossless, key=ms.__getitem__)]
    ranked = [label for labels in by_quality for label in labels]
    within = [label for label in ranked if ms[label] <= budget]
    label = within[0] if within else min(ranked, key=ms.__getitem__)
    reason = f"{label}, {ms[label]:.2f} ms per sentence of {budget:g} allowed"
    return Choice(label, reason, bool(within))


@dataclass
class Trial:
    """A bin while it is measured.

    Attributes:
        running: the candidates that have not dropped out.
        ratios: of each, its time over greedy's, batch by batch.
        ms: of each, its milliseconds per sentence.
        batches: how many were measured.
        greedy: seconds and passes of greedy search, all batches together.
        seconds: spent on other candidates than greedy.
    """

    running: list[str]
    ratios: dict[str, list[float]] = field(default_factory=dict)
    ms: dict[str, list[float]] = field(default_factory=dict)
    batches: int = 0
    greedy: tuple[float, int] = (0.0, 0)
    seconds: float = 0.0

    def add(self, seconds: dict[str, float], sentences: int, passes: int) -> None:
        """Take the seconds that each candidate needed for one batch, and greedy's passes."""
        self.greedy = (self.greedy[0] + seconds[GREEDY], self.greedy[1] + passes)
        greedy = max(seconds[GREEDY], 1e-9)
        for label, taken in seconds.items():
            self.ratios.setdefault(label, []).append(max(taken, 1e-9) / greedy)
            self.ms.setdefault(label, []).append(1000 * max(taken, 1e-9) / sentences)
        self.batches += 1
        self.seconds += sum(seconds.values()) - seconds[GREEDY]

    def median(self, label: str) -> float:
        """Return a candidate's median ratio to greedy."""
        return statistics.median(self.ratios[label])

    def measured(self, without: set[str]) -> Measured:
        """Return the figures of all candidates but some."""
        labels = [label for label in self.ratios if label not in without]
        return Measured(
            self.batches,
            self.seconds,
            {label: _percentile(self.ratios[label], RATIO_SHARE) for label in labels},
            {label: _percentile(self.ms[label], 0.9) for label in labels},
            max(self.greedy[0] / max(1, self.greedy[1]), 1e-9),
        )

    def in_turn(self, labels: Sequence[str]) -> list[str]:
        """Return the order of the next batch: forwards, backwards, then from the next one on."""
        turn = self.batches // 2 % len(labels)
        order = [*labels[turn:], *labels[:turn]]
        return order[::-1] if self.batches % 2 else order

    def drop(self, labels: Iterable[str]) -> None:
        """Drop those of these candidates that fall behind."""
        labels = list(labels)
        best = min([1.0, *map(self.median, labels)])
        for label in labels:
            ratios = self.ratios[label]
            limits = [limit * best for after, limit in LATER_LIMITS if len(ratios) >= after]
            behind = bool(limits) and self.median(label) > min(limits)
            if behind or (len(ratios) > 1 and min(ratios) > FIRST_LIMIT):
                self.running.remove(label)

    @property
    def is_done(self) -> bool:
        """Whether enough was measured."""
        late = self.seconds > SECONDS and self.batches >= LATER_LIMITS[0][0]
        alone = len(self.running) <= 1 and self.batches >= LATER_LIMITS[-1][0]
        return self.batches >= BATCHES or late or alone or self.running == [GREEDY]


@dataclass
class Watch:
    """What a bin's decoder took since it was chosen, and greedy search would have, in seconds."""

    batches: int = 0
    seconds: float = 0.0
    greedy: float = 0.0

    def add(self, seconds: float, greedy: float) -> None:
        """Count a batch."""
        self.batches += 1
        self.seconds += seconds
        self.greedy += greedy

    @property
    def greedy_is_faster(self) -> bool:
        """Whether, after enough batches, greedy search would have been the faster one."""
        return self.batches >= BATCHES and self.seconds > self.greedy


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
