"""Quality of outputs of all kinds, with paired-bootstrap intervals of differences.

Translations have BLEU and chrF by sacreBLEU, summaries ROUGE by rouge-score, images PSNR. The
bootstrap is that of Koehn (2004), "Statistical Significance Tests for Machine Translation
Evaluation", section 3, with sacreBLEU's default seed. Resampled scores of translations are computed
from sacreBLEU's statistics; the others are means over outputs.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import UsageError, option_error
from ...images import PEAK, Pixels, Size, image, psnr

RESAMPLES, SEED = 1000, 12345

# Ends of a summary's sentences in plain text; <q> is the mark in See et al.'s data.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*<q>\s*")

# Characters of words for rouge-score; it treats all others as spaces.
COUNTED = re.compile("[a-z0-9]")

Floats = npt.NDArray[np.float64]
#: How often each output is in each sample: samples × outputs.
Counts = npt.NDArray[np.int64]


def by_sentences(text: str) -> str:
    """Put each sentence of a summary on its own line, without the mark between them."""
    return SENTENCE_END.sub("\n", text)


def in_lines(text: str, mark: str) -> str:
    """Put the sentences of a text on lines of their own.

    Args:
        text: tokens with spaces between them.
        mark: the token between (or after) sentences, which is removed.
    """
    return " ".join("\n" if token == mark else token for token in text.split())


class Quality(ABC):
    """Scores the outputs for one test set and compares them."""

    metrics: tuple[str, ...]  # their names, in the order of tables
    compared: str  # a note on the texts compared

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        self.references = list(references)
        whole = np.ones((1, len(references)), dtype=np.int64)
        self._counts = np.concatenate([whole, resampled(len(references), resamples)])
        self._known: dict[tuple[str, ...], dict[str, Floats]] = {}

    def scores(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the scores of a system, by metric."""
        return {name: float(values[0]) for name, values in self._measured(texts).items()}

    def differences(
        self, texts: Sequence[str], baseline: Sequence[str]
    ) -> dict[str, tuple[float, float, float]]:
        """Compare a system with a baseline by paired bootstrap.

        Returns:
            The difference of the scores and the ends of its 95% interval, by metric.
        """
        theirs = self._measured(baseline)
        return {
            name: _with_interval(values - theirs[name])
            for name, values in self._measured(texts).items()
        }

    def intervals(self, texts: Sequence[str]) -> dict[str, tuple[float, float, float]]:
        """Return the scores of a system and the ends of their 95% intervals, by metric."""
        return {name: _with_interval(values) for name, values in self._measured(texts).items()}

    @abstractmethod
    def signatures(self) -> dict[str, str]:
        """Return the computation of each metric, by metric; call it after scoring."""

    @abstractmethod
    def of_samples(self, texts: Sequence[str], counts: Counts) -> dict[str, Floats]:
        """Return the score of each sample of a system's outputs, by metric.

        Args:
            texts: the outputs.
            counts: how often each is in each sample: samples × outputs.
        """

    def _measured(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Return the score of all outputs, then of each resample; a baseline's is kept."""
        key = tuple(texts)
        if key not in self._known:
            self._known[key] = self.of_samples(texts, self._counts)
        return self._known[key]


class TranslationQuality(Quality):
    """BLEU and chrF of the corpus, of cased and detokenised text."""

    metrics = ("BLEU", "chrF")
    compared = "Cased, detokenised text against raw references"

    def __init__(self, references: Sequence[str], resamples: int = RESAMPLES) -> None:
        from sacrebleu.metrics import BLEU, CHRF

        super().__init__(references, resamples)
        # `force`: no warning about translations without detokenisation.
        self._scorers: dict[str, Any] = {"BLEU": BLEU(force=True), "chrF": CHRF()}

    def signatures(self) -> dict[str, str]:
        """Return sacreBLEU's signatures, by metric; call it after scoring."""
        return {name: str(scorer.get_signature()) for name, scorer in self._scorers.items()}

    def of_samples(self, texts: Sequence[str], counts: Counts) -> dict[str, Floats]:
        """See ``Quality``."""
        measured = {}
        for name, scorer in self._scorers.items():
            # Statistics that sacreBLEU sums over sentences (n-gram matches, lengths); its own
            # significance tests use these two methods in the same way.
            each = np.array(scorer._extract_corpus_statistics(list(texts), [self.references]))
            sums = (counts @ each).tolist()
            scores = [scorer._compute_score_from_stats(row).score for row in sums]
            measured[name] = np.array(scores)
        return measured


class SummaryQuality(Quality):
    """ROUGE of summaries: the mean F1 over summaries, in % (Lin 2004), by rouge-score.

    ROUGE-1 and -2 are shared n-grams, ROUGE-L the longest common subsequence of whole texts,
    ROUGE-Lsum the union of those with each sentence (section 3.2).

    Args:
        references: one per summary.
        resamples: as in all kinds; the package's own bootstrap has no seed.
        stemming: compare words by their Porter stems.
        lines: puts each sentence of a text on a line; None: without ROUGE-Lsum.

    Raises:
        UsageError: no reference has a word that ROUGE counts.
    """

    metrics: tuple[str, ...] = ("ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum")
    compared = "Detokenised text against raw references, a-z and 0-9 in lower case"

    def __init__(
        self,
        references: Sequence[str],
        resamples: int = RESAMPLES,
        *,
        stemming: bool = False,
        lines: Callable[[str], str] | None = by_sentences,
    ) -> None:
        from rouge_score import rouge_scorer, tokenizers  # take a second to load

        if not any(COUNTED.search(text.lower()) for text in references):
            raise option_error("references", "none", "texts with a to z or 0 to 9, for ROUGE")
        self._lines = str if lines is None else lines
        super().__init__([self._lines(text) for text in references], resamples)
        self.metrics = self.metrics if lines else self.metrics[:-1]
        names = [name.lower().replace("-", "").replace("rougel", "rougeL") for name in self.metrics]
        # With an explicit tokeniser the package logs nothing.
        tokenizer = tokenizers.DefaultTokenizer(stemming)
        self._names = dict(zip(self.metrics, names, strict=True))
        self._scorer = rouge_scorer.RougeScorer(names, tokenizer=tokenizer)

    def signatures(self) -> dict[str, str]:
        """Return package, version and options, by metric."""
        common = f"F1|mean|stems:no|rouge-score:{metadata.version('rouge-score')}"
        ends = {"ROUGE-Lsum": "|sentences end:.!? or <q>"}
        return {name: common + ends.get(name, "") for name in self.metrics}

    def each(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Return precision, recall and F1 of each summary in %, 3 × summaries, by metric."""
        pairs = zip(self.references, map(self._lines, texts), strict=True)
        scores = [self._scorer.score(*pair) for pair in pairs]
        return {
            metric: 100 * np.array([score[name] for score in scores]).T
            for metric, name in self._names.items()
        }

    def of_samples(self, texts: Sequence[str], counts: Counts) -> dict[str, Floats]:
        """See ``Quality``."""
        return {name: _means(f1, counts) for name, (_, _, f1) in self.each(texts).items()}


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

    def of_samples(self, texts: Sequence[str], counts: Counts) -> dict[str, Floats]:
        """See ``Quality``."""
        return {"PSNR": _means(self.each(texts), counts)}

    def _images(self, what: str, texts: Sequence[str]) -> list[Pixels]:
        """Convert texts to images."""
        images = []
        for number, text in enumerate(texts, start=1):
            try:
                images.append(image([intensity(word) for word in text.split()], self.size))
            except UsageError as error:
                raise UsageError(f"{what} {number}: {error}") from None
        return images


def intensity(word: str) -> int:
    """Read an intensity.

    Raises:
        UsageError: it is no whole number of up to three digits.
    """
    if re.fullmatch("[0-9]{1,3}", word) is None:
        raise option_error("intensity", word[:20], f"0 to {PEAK}")
    return int(word)


def _means(each: Floats, counts: Counts) -> Floats:
    """Return the mean over the outputs of each sample."""
    means: Floats = counts @ each / counts.sum(axis=1)
    return means


def _with_interval(values: Floats) -> tuple[float, float, float]:
    """Return the first value, and the ends of the 95% interval of the others."""
    low, high = np.percentile(values[1:], (2.5, 97.5)).tolist()
    return float(values[0]), low, high


def resampled(size: int, resamples: int = RESAMPLES) -> Counts:
    """Draw resamples of a test set with replacement, with a fixed seed.

    Returns:
        The count of each output in each resample: ``resamples`` × ``size``.
    """
    draws = np.random.default_rng(SEED)
    return np.stack(
        [np.bincount(draws.integers(size, size=size), minlength=size) for _ in range(resamples)]
    )


def equal_bins(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Rank sentences by length and cut them into bins whose sizes differ by at most one.

    Equal lengths keep their order.

    Returns:
        The numbers of the sentences in each bin, from short to long.
    """
    ranked = sorted(range(len(lengths)), key=lambda i: lengths[i])
    cuts = [len(ranked) * k // count for k in range(count + 1)]
    return [ranked[low:high] for low, high in zip(cuts, cuts[1:], strict=False)]
