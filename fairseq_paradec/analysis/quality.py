"""Quality of outputs, one interface for all kinds, with paired-bootstrap intervals of differences.

Translations have BLEU and chrF by sacreBLEU, summaries ROUGE by rouge-score, images PSNR. The
bootstrap is that of Koehn (2004), "Statistical Significance Tests for Machine Translation
Evaluation", section 3, with sacreBLEU's default seed; scores of translations are resampled by
sacreBLEU's own statistics, the others are means over outputs.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics import BLEU, CHRF

from ..errors import UsageError, option_error
from ..images import PEAK, Pixels, Size, image, psnr

RESAMPLES, SEED = 1000, 12345

# Where a summary's sentences end, in plain text; <q> is a mark that See et al.'s data may have.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*<q>\s*")

Floats = npt.NDArray[np.float64]


class Quality(ABC):
    """Scores the outputs for one test set and compares them.

    Args:
        references: one text per output.
        resamples: of the test set, with replacement, for the intervals.

    Attributes:
        metrics: their names, in the order of tables.
        compared: what with what, for a note below the numbers.
    """

    metrics: tuple[str, ...]
    compared: str

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        self.references = list(references)
        self.counts = resampled(len(references), resamples)
        self._known: dict[tuple[str, ...], dict[str, tuple[float, Floats]]] = {}

    def scores(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the scores of a system, by metric.

        Args:
            texts: one per reference.
        """
        return {name: score for name, (score, _) in self._measured(texts).items()}

    def differences(
        self, texts: Sequence[str], baseline: Sequence[str]
    ) -> dict[str, tuple[float, float, float]]:
        """Compare a system with a baseline by paired bootstrap.

        Args:
            texts: the system's, one per reference.
            baseline: the baseline's.

        Returns:
            By metric: the difference of the scores, and the ends of its 95% interval.
        """
        ours, theirs = self._measured(texts), self._measured(baseline)
        found = {}
        for name, (score, samples) in ours.items():
            other, other_samples = theirs[name]
            low, high = np.percentile(samples - other_samples, (2.5, 97.5)).tolist()
            found[name] = (score - other, low, high)
        return found

    @abstractmethod
    def signatures(self) -> dict[str, str]:
        """Return how each metric is computed, by metric; valid once something was scored."""

    @abstractmethod
    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        """Return, by metric, the score of all outputs and that of each resample."""

    def _measured(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        """Return the same, computed once: a baseline is compared with often."""
        key = tuple(texts)
        if key not in self._known:
            self._known[key] = self._measure(texts)
        return self._known[key]

    def _means(self, each: Floats) -> tuple[float, Floats]:
        """Return the mean over outputs, and that of each resample."""
        return float(each.mean()), self.counts @ each / len(each)


class TranslationQuality(Quality):
    """BLEU and chrF of the corpus, of cased and detokenised text."""

    metrics = ("BLEU", "chrF")
    compared = "Cased, detokenised text against raw references"

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        super().__init__(references, resamples)
        # `force`: translations without detokenisation are the user's to judge, not to be warned of.
        self._scorers: dict[str, Any] = {"BLEU": BLEU(force=True), "chrF": CHRF()}

    def signatures(self) -> dict[str, str]:
        """Return sacreBLEU's signatures, by metric; valid once something was scored."""
        return {name: str(scorer.get_signature()) for name, scorer in self._scorers.items()}

    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        found = {}
        for name, scorer in self._scorers.items():
            score = scorer.corpus_score(list(texts), [self.references]).score
            # What sacreBLEU sums over sentences (n-gram matches, lengths); its own significance
            # tests use these two methods in the same way.
            each = np.array(scorer._extract_corpus_statistics(list(texts), [self.references]))
            sums = (self.counts @ each).tolist()
            samples = np.array([scorer._compute_score_from_stats(row).score for row in sums])
            found[name] = score, samples
        return found


class SummaryQuality(Quality):
    """ROUGE-1, -2, -L and, by sentences, -Lsum: F1 in %, the mean over summaries (Lin 2004).

    Raises:
        UsageError: the package finds nothing to count in any of the references.
    """

    metrics = ("ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum")
    compared = "Detokenised text against raw references, a-z and 0-9 in lower case"

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        from . import rouge  # it takes a second to load, of which no other kind has use

        self._rouge = rouge
        super().__init__(references, resamples)
        if not any(map(rouge.is_counted, references)):
            raise option_error("references", "none", "texts with a to z or 0 to 9, for ROUGE")

    def signatures(self) -> dict[str, str]:
        """Return package, version and options, by metric; where sentences end, of ROUGE-Lsum."""
        common = f"F1|mean|stems:no|rouge-score:{metadata.version('rouge-score')}"
        ends = {"ROUGE-Lsum": "|sentences end:.!? or <q>"}
        return {name: common + ends.get(name, "") for name in self.metrics}

    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        ours, theirs = by_sentences(texts), by_sentences(self.references)
        each = self._rouge.each(ours, theirs, self._rouge.BY_SENTENCES)
        return {name: self._means(f1) for name, (_, _, f1) in each.items()}


class ImageQuality(Quality):
    """PSNR in dB, the mean over images.

    That of an image without any error is infinite; it counts as if one intensity were off by one,
    the best that any other image can have.

    Args:
        references: of each image the intensities as text.
        size: of all images.
        resamples: as in ``Quality``.

    Raises:
        UsageError: a reference is no image of that size; ``scores`` says so of an output.
    """

    metrics = ("PSNR",)
    compared = "Images against the large ones of the data"

    def __init__(self, references: Sequence[str], size: Size, resamples: int = RESAMPLES) -> None:
        self.size = size
        super().__init__(references, resamples)
        self.best = float(10 * np.log10(PEAK**2 * size.num_tokens))
        self._wanted = self._images("reference", references)

    def signatures(self) -> dict[str, str]:
        """Return what images there are, and what one without error counts."""
        size = self.size
        shape = f"{size.height}x{size.width}x{size.channels}"
        return {"PSNR": f"dB|mean|peak:{PEAK}|images:{shape}|no error:{self.best:.2f}"}

    def each(self, texts: Sequence[str]) -> Floats:
        """Return the PSNR of each image.

        Args:
            texts: of each output the intensities, one per reference.

        Raises:
            UsageError: one is no image of the size.
        """
        pairs = zip(self._images("output", texts), self._wanted, strict=True)
        return np.array([min(psnr(ours, wanted), self.best) for ours, wanted in pairs])

    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        return {"PSNR": self._means(self.each(texts))}

    def _images(self, what: str, texts: Sequence[str]) -> list[Pixels]:
        """Arrange texts as images."""
        found = []
        for number, text in enumerate(texts, start=1):
            try:
                found.append(image([intensity(word) for word in text.split()], self.size))
            except UsageError as error:
                raise UsageError(f"{what} {number}: {error}") from None
        return found


def by_sentences(texts: Sequence[str]) -> list[str]:
    """Write each sentence of summaries on a line of its own, without the mark between them."""
    return [SENTENCE_END.sub("\n", text) for text in texts]


def intensity(word: str) -> int:
    """Read an intensity.

    Raises:
        UsageError: it is no whole number of up to three digits.
    """
    if re.fullmatch("[0-9]{1,3}", word) is None:
        raise option_error("intensity", word[:20], f"0 to {PEAK}")
    return int(word)


def resampled(size: int, resamples: int = RESAMPLES) -> npt.NDArray[np.int64]:
    """Draw resamples of a test set with replacement, the same each time.

    Args:
        size: of the test set.
        resamples: how many.

    Returns:
        How often each output is in each resample: ``resamples`` × ``size``.
    """
    draws = np.random.default_rng(SEED)
    return np.stack(
        [np.bincount(draws.integers(size, size=size), minlength=size) for _ in range(resamples)]
    )
