"""Quality of outputs of all kinds, with paired-bootstrap intervals of differences.

Translations have BLEU and chrF by sacreBLEU, summaries ROUGE by rouge-score, images PSNR. The
bootstrap is that of Koehn (2004), "Statistical Significance Tests for Machine Translation
Evaluation", section 3, with sacreBLEU's default seed. Resampled scores of translations are computed
from sacreBLEU's statistics; the others are means over outputs.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics import BLEU, CHRF

from ...errors import UsageError, option_error
from ...images import PEAK, Pixels, Size, image, psnr

RESAMPLES, SEED = 1000, 12345

# Ends of a summary's sentences in plain text; <q> is the mark in See et al.'s data.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*<q>\s*")

Floats = npt.NDArray[np.float64]


class Quality(ABC):
    """Scores the outputs for one test set and compares them."""

    metrics: tuple[str, ...]  # their names, in the order of tables
    compared: str  # a note on the texts compared

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        self.references = list(references)
        self.counts = resampled(len(references), resamples)
        self._known: dict[tuple[str, ...], dict[str, tuple[float, Floats]]] = {}

    def scores(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the scores of a system, by metric."""
        return {name: score for name, (score, _) in self._measured(texts).items()}

    def differences(
        self, texts: Sequence[str], baseline: Sequence[str]
    ) -> dict[str, tuple[float, float, float]]:
        """Compare a system with a baseline by paired bootstrap.

        Returns:
            The difference of the scores and the ends of its 95% interval, by metric.
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
        """Return the computation of each metric, by metric; call it after scoring."""

    @abstractmethod
    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        """Return the score of all outputs and of each resample, by metric."""

    def _measured(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        """Return ``_measure``, cached: a baseline is compared with often."""
        key = tuple(texts)
        if key not in self._known:
            self._known[key] = self._measure(texts)
        return self._known[key]

    def _means(self, each: Floats) -> tuple[float, Floats]:
        """Return the mean over outputs, and the mean of each resample."""
        return float(each.mean()), self.counts @ each / len(each)


class TranslationQuality(Quality):
    """BLEU and chrF of the corpus, of cased and detokenised text."""

    metrics = ("BLEU", "chrF")
    compared = "Cased, detokenised text against raw references"

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        super().__init__(references, resamples)
        # `force`: no warning about translations without detokenisation.
        self._scorers: dict[str, Any] = {"BLEU": BLEU(force=True), "chrF": CHRF()}

    def signatures(self) -> dict[str, str]:
        """Return sacreBLEU's signatures, by metric; call it after scoring."""
        return {name: str(scorer.get_signature()) for name, scorer in self._scorers.items()}

    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        found = {}
        for name, scorer in self._scorers.items():
            score = scorer.corpus_score(list(texts), [self.references]).score
            # Statistics that sacreBLEU sums over sentences (n-gram matches, lengths); its own
            # significance tests use these two methods in the same way.
            each = np.array(scorer._extract_corpus_statistics(list(texts), [self.references]))
            sums = (self.counts @ each).tolist()
            samples = np.array([scorer._compute_score_from_stats(row).score for row in sums])
            found[name] = score, samples
        return found


class SummaryQuality(Quality):
    """ROUGE-1, -2, -L and, by sentences, -Lsum: mean F1 over summaries, in % (Lin 2004).

    Raises:
        UsageError: no reference has a word that ROUGE counts.
    """

    metrics = ("ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum")
    compared = "Detokenised text against raw references, a-z and 0-9 in lower case"

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        from . import rouge  # takes a second to load

        self._rouge = rouge
        super().__init__(references, resamples)
        if not any(map(rouge.is_counted, references)):
            raise option_error("references", "none", "texts with a to z or 0 to 9, for ROUGE")

    def signatures(self) -> dict[str, str]:
        """Return package, version and options, by metric."""
        common = f"F1|mean|stems:no|rouge-score:{metadata.version('rouge-score')}"
        ends = {"ROUGE-Lsum": "|sentences end:.!? or <q>"}
        return {name: common + ends.get(name, "") for name in self.metrics}

    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        ours, theirs = by_sentences(texts), by_sentences(self.references)
        each = self._rouge.each(ours, theirs, self._rouge.BY_SENTENCES)
        return {name: self._means(f1) for name, (_, _, f1) in each.items()}


class ImageQuality(Quality):
    """PSNR in dB, the mean over images.

    The PSNR of an image without error is infinite; it counts as one with one intensity off by one,
    the best finite value.

    Raises:
        UsageError: a reference is no image of that size. ``scores`` raises it for outputs.
    """

    metrics = ("PSNR",)
    compared = "Images against the large ones of the data"

    def __init__(self, references: Sequence[str], size: Size, resamples: int = RESAMPLES) -> None:
        self.size = size
        super().__init__(references, resamples)
        self.best = float(10 * np.log10(PEAK**2 * size.num_tokens))
        self._wanted = self._images("reference", references)

    def signatures(self) -> dict[str, str]:
        """Return the images' size, and the PSNR of an image without error."""
        size = self.size
        shape = f"{size.height}x{size.width}x{size.channels}"
        return {"PSNR": f"dB|mean|peak:{PEAK}|images:{shape}|no error:{self.best:.2f}"}

    def each(self, texts: Sequence[str]) -> Floats:
        """Return the PSNR of each image.

        Raises:
            UsageError: an output is no image of the size.
        """
        pairs = zip(self._images("output", texts), self._wanted, strict=True)
        return np.array([min(psnr(ours, wanted), self.best) for ours, wanted in pairs])

    def _measure(self, texts: Sequence[str]) -> dict[str, tuple[float, Floats]]:
        return {"PSNR": self._means(self.each(texts))}

    def _images(self, what: str, texts: Sequence[str]) -> list[Pixels]:
        """Convert texts to images."""
        found = []
        for number, text in enumerate(texts, start=1):
            try:
                found.append(image([intensity(word) for word in text.split()], self.size))
            except UsageError as error:
                raise UsageError(f"{what} {number}: {error}") from None
        return found


def by_sentences(texts: Sequence[str]) -> list[str]:
    """Put each sentence of summaries on its own line, without the mark between them."""
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
    """Draw resamples of a test set with replacement, with a fixed seed.

    Returns:
        The count of each output in each resample: ``resamples`` × ``size``.
    """
    draws = np.random.default_rng(SEED)
    return np.stack(
        [np.bincount(draws.integers(size, size=size), minlength=size) for _ in range(resamples)]
    )
