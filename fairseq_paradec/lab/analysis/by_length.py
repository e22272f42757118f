"""Quality and time by the length of the source (zhang2020, Figure 3)."""

from collections.abc import Sequence

from sacrebleu.metrics import BLEU

from .quality import SummaryQuality


def equal_bins(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Rank sentences by length and cut them into bins whose sizes differ by at most one.

    Equal lengths keep their order.

    Returns:
        The numbers of the sentences in each bin, from short to long.
    """
    ranked = sorted(range(len(lengths)), key=lambda i: lengths[i])
    cuts = [len(ranked) * k // count for k in range(count + 1)]
    return [ranked[low:high] for low, high in zip(cuts, cuts[1:], strict=False)]


def rouge_l(
    texts: Sequence[str], references: Sequence[str], bins: Sequence[Sequence[int]]
) -> list[float]:
    """Return the mean F1 of ROUGE-L, in %, of each bin, as ``SummaryQuality`` computes it."""
    f1 = SummaryQuality(references).each(texts)["ROUGE-L"][2]
    return [float(f1[list(chosen)].mean()) for chosen in bins]


def bleu(
    texts: Sequence[str], references: Sequence[str], bins: Sequence[Sequence[int]]
) -> list[float]:
    """Return sacreBLEU's corpus BLEU of each bin."""
    metric = BLEU(force=True)  # no warning about translations without detokenisation
    return [
        metric.corpus_score([texts[i] for i in chosen], [[references[i] for i in chosen]]).score
        for chosen in bins
    ]
