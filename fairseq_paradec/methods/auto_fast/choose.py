"""The decisions of auto_fast: which candidates it keeps measuring, and which one it chooses."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...registry import METHODS
from .candidates import BEAM, GREEDY, LOSSLESS, RELAXED
from .profile import Measured

Hypos = Sequence[Sequence[Mapping[str, Any]]]  # of a batch: each sentence's, best first

# A candidate is chosen over greedy search if its time over greedy's is at most this.
MAX_RATIO = 0.98
# A bin is measured on this many batches, or for about this many seconds.
BATCHES, SECONDS = 16, 10.0
# A candidate drops out if, for (n, limit) of EVERY_LIMITS, it took more than ``limit`` times as
# long as greedy search in every one of at least n batches; or, for (n, limit) of LATER_LIMITS,
# ``limit`` times as long as the best candidate after n batches.
EVERY_LIMITS = ((2, 1.5), (4, 1.0))
LATER_LIMITS = ((3, 1.3), (8, 1.1))


class Choice(NamedTuple):
    """The chosen candidate."""

    label: str  # its label
    reason: str  # the reason, for the log
    in_budget: bool = True  # whether it is within the latency budget, if there is one


def choose(
    ratios: Mapping[str, float],
    ms: Mapping[str, float],
    quality: Mapping[str, int],
    tokens: Mapping[str, float],
    budget: float | None = None,
    base: str = GREEDY,
) -> Choice:
    """Choose a decoder by its measured times.

    Without a budget: the fastest lossless candidate, if its ratio is at most ``MAX_RATIO``, else
    greedy search. With a budget: the best quality within it; among lossless candidates the choice
    without a budget comes first.

    Args:
        ratios: by candidate, its time over greedy's.
        ms: by candidate, its milliseconds per sentence.
        quality: by candidate, ``BEAM``, ``LOSSLESS`` or ``RELAXED``.
        tokens: by candidate, the tokens that a pass writes. A pass costs the same however many of
            its guesses are right, so a candidate breaks even at ``tokens`` times its ratio.
        budget: ``--latency-budget-ms``.
        base: what stands for greedy search: with ``--beam`` the plain beam search.
    """
    by_quality: list[list[str]] = [
        [label for label in ratios if quality[label] == wanted]
        for wanted in (BEAM, LOSSLESS, RELAXED)
    ]
    lossless = by_quality[LOSSLESS]
    others = [label for label in lossless if label != base]
    rival = min(others, key=ratios.__getitem__, default=base)
    label = rival if ratios[rival] <= MAX_RATIO else base
    if budget is None:
        if label == base and rival != base:
            pays_from = tokens[rival] * ratios[rival]
            reason = f"{base}; the next best, {rival}, is {1 / ratios[rival]:.2f}x as fast"
            if not METHODS[rival.split()[0]].by_token:  # else a pass costs more, the more it drafts
                reason += (
                    f": its passes write {tokens[rival]:.2f} tokens, and pay from about "
                    f"{pays_from:.2f}"
                )
            return Choice(label, reason)
        return Choice(label, f"{label}, {1 / ratios[label]:.2f}x {base}")
    by_quality[LOSSLESS] = [label, *sorted(lossless, key=ms.__getitem__)]
    ranked = [label for labels in by_quality for label in labels]
    within = [label for label in ranked if ms[label] <= budget]
    label = within[0] if within else min(ranked, key=ms.__getitem__)
    reason = f"{label}, {ms[label]:.2f} ms per sentence of {budget:g} allowed"
    return Choice(label, reason, bool(within))


@dataclass
class Trial:
    """The measurement of a bin."""

    running: list[str]  # the candidates that have not dropped out
    # by candidate, its time over greedy's, batch by batch
    ratios: dict[str, list[float]] = field(default_factory=dict)
    # by candidate, its milliseconds per sentence, batch by batch
    ms: dict[str, list[float]] = field(default_factory=dict)
    batches: int = 0  # the number of measured batches
    greedy: tuple[float, int] = (0.0, 0)  # seconds and passes of greedy search, summed over batches
    # by candidate, its tokens and passes, summed over sentences
    written: dict[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0  # the time of all candidates other than greedy search
    base: str = GREEDY  # what stands for greedy search; see ``choose``

    def add(self, seconds: dict[str, float], hypos: Mapping[str, Hypos], passes: int) -> None:
        """Add one batch: each candidate's seconds and outputs, and greedy search's passes."""
        sentences = len(hypos[self.base])
        self.greedy = (self.greedy[0] + seconds[self.base], self.greedy[1] + passes)
        greedy = max(seconds[self.base], 1e-9)
        for label, taken in seconds.items():
            self.ratios.setdefault(label, []).append(max(taken, 1e-9) / greedy)
            self.ms.setdefault(label, []).append(1000 * max(taken, 1e-9) / sentences)
            tokens, steps = self.written.get(label, (0, 0))
            tokens += sum(len(best["tokens"]) for best, *_ in hypos[label])
            self.written[label] = tokens, steps + sum(best["steps"] for best, *_ in hypos[label])
        self.batches += 1
        self.seconds += sum(seconds.values()) - seconds[self.base]

    def median(self, label: str) -> float:
        """Return a candidate's median ratio to greedy."""
        return statistics.median(self.ratios[label])

    def measured(self, without: set[str]) -> Measured:
        """Return the results: of greedy search and the candidates that have not dropped out.

        If all have dropped out, of all: the log names the best of them.
        """
        labels = [label for label in self.ratios if label not in without]
        left = [label for label in labels if label in {self.base, *self.running}]
        labels = left if len(left) > 1 else labels
        written = {label: self.written[label] for label in labels}
        return Measured(
            self.batches,
            self.seconds,
            {label: _at_most(self.ratios[label]) for label in labels},
            {label: _percentile(self.ms[label], 0.9) for label in labels},
            max(self.greedy[0] / max(1, self.greedy[1]), 1e-9),
            {label: tokens / max(1, passes) for label, (tokens, passes) in written.items()},
        )

    def in_turn(self, labels: Sequence[str]) -> list[str]:
        """Return the order of candidates for the next batch.

        The order alternates between forwards and backwards, and starts one candidate later after
        every two batches.
        """
        turn = self.batches // 2 % len(labels)
        order = [*labels[turn:], *labels[:turn]]
        return order[::-1] if self.batches % 2 else order

    def drop(self, labels: Iterable[str]) -> None:
        """Drop the slow ones of these candidates; see ``EVERY_LIMITS`` and ``LATER_LIMITS``."""
        labels = list(labels)
        best = min([1.0, *map(self.median, labels)])
        for label in labels:
            ratios = self.ratios[label]
            limits = [limit * best for after, limit in LATER_LIMITS if len(ratios) >= after]
            behind = bool(limits) and self.median(label) > min(limits)
            worse = any(min(ratios) > limit for n, limit in EVERY_LIMITS if len(ratios) >= n)
            if behind or worse:
                self.running.remove(label)

    @property
    def is_done(self) -> bool:
        """Whether the measurement is complete."""
        late = self.seconds > SECONDS and self.batches >= LATER_LIMITS[0][0]
        late = late and all(len(self.ratios.get(label, ())) > 1 for label in self.running)
        alone = len(self.running) <= 1 and self.batches >= LATER_LIMITS[-1][0]
        return self.batches >= BATCHES or late or alone or self.running == [self.base]


@dataclass
class Watch:
    """The time of a bin's decoder since its choice, and the estimate for greedy search, seconds."""

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
        """Whether, after enough batches, the estimate for greedy search is the shorter time."""
        return self.batches >= BATCHES and self.seconds > self.greedy


def _at_most(values: Sequence[float]) -> float:
    """Return the mean plus its standard error: few batches that differ much prove little.

    One in eight of the highest and of the lowest values count as the next ones: the machine stalls
    now and then.
    """
    ascending, odd = sorted(values), len(values) // 8
    low, high = ascending[odd], ascending[-1 - odd]
    kept = [min(max(value, low), high) for value in ascending]
    mean = statistics.fmean(kept)
    return mean + statistics.stdev(kept, mean) / math.sqrt(len(kept)) if len(kept) > 1 else mean


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
