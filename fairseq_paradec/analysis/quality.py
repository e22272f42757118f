"""Translation quality: BLEU and chrF by sacreBLEU, and paired-bootstrap intervals of differences.

The bootstrap is that of Koehn (2004), "Statistical Significance Tests for Machine Translation
Evaluation", section 3, with sacreBLEU's own statistics and its default seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

RESAMPLES, SEED = 1000, 12345


class Quality:
    """Scores translations of one test set and compares them.

    Args:
        references: one plain text per sentence, cased and detokenised.
        resamples: of the test set, with replacement, for the intervals.
    """

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        self.references = [list(references)]
        # `force`: translations without detokenisation are the user's to judge, not to be warned of.
        self.metrics: dict[str, Any] = {"BLEU": BLEU(force=True), "chrF": CHRF()}
        size = len(references)
        draws = np.random.default_rng(SEED).choice(size, size=(resamples, size), replace=True)
        # How often each sentence is in each resample: resamples x sentences.
        self.counts = np.stack([np.bincount(draw, minlength=size) for draw in draws])

    def scores(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the corpus scores of a system, by metric.

        Args:
            texts: one per reference.
        """
        return {
            name: metric.corpus_score(list(texts), self.references).score
            for name, metric in self.metrics.items()
        }

    def signatures(self) -> dict[str, str]:
        """Return sacreBLEU's signatures, by metric; valid once something was scored."""
        return {name: str(metric.get_signature()) for name, metric in self.metrics.items()}

    def differences(
        self, texts: Sequence[str], baseline: Sequence[str]
    ) -> dict[str, tuple[float, float, float]]:
        """Compare a system with a baseline by paired bootstrap.

        Args:
            texts: the system's, one per reference.
            baseline: the baseline's.

        Returns:
            By metric: the difference of the corpus scores, and the ends of its 95% interval.
        """
        ours, theirs = self.scores(texts), self.scores(baseline)
        found = {}
        for name in self.metrics:
            sampled = self._resampled(name, texts) - self._resampled(name, baseline)
            low, high = np.percentile(sampled, (2.5, 97.5)).tolist()
            found[name] = (ours[name] - theirs[name], low, high)
        return found

    def _resampled(self, name: str, texts: Sequence[str]) -> np.ndarray:
        """Return the corpus score of each resample."""
        metric = self.metrics[name]
        # What sacreBLEU sums over sentences (n-gram matches, lengths); its own significance tests
        # use these two methods in the same way.
        each = np.array(metric._extract_corpus_statistics(list(texts), self.references))
        sums = self.counts @ each
        return np.array([metric._compute_score_from_stats(row.tolist()).score for row in sums])
