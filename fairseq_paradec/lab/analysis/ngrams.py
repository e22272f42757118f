"""N-gram measures of translations: over-translation, and precision at the two ends.

Pure functions of tokens. One list of tokens per sentence, one reference per translation.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Sentences = Sequence[Sequence[str]]

#: The longest n-grams that are counted.
ORDERS = 4


def ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of a sentence."""
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


# ---- over-translation ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OverTranslation:
    """Over-translation of a corpus."""

    # for n = 1..4, the share of surplus n-grams among the translations' n-grams
    rates: tuple[float, ...]
    length_penalty: float  # 1, or above 1 if the translations are longer than the references
    repeated: float  # share of tokens in an n-gram (n = 1..4) that directly repeats

    def otem(self, orders: int = 2) -> float:
        """Return the metric, 0 or more; lower is better.

        Args:
            orders: n-grams up to this length count; the authors' script takes 2.
        """
        if not all(self.rates[:orders]):
            return 0.0  # a geometric mean
        mean = sum(math.log(rate) for rate in self.rates[:orders]) / orders
        return self.length_penalty * math.exp(mean)


def over_translation(translations: Sentences, references: Sentences) -> OverTranslation:
    """Measure over-translation: OTEM (Yang et al. 2018), with one reference.

    An n-gram that occurs k times in a translation and r times in its reference has a surplus of
    max(0, k - max(r, 1)); a wrong n-gram that occurs once is no surplus. rate(n) = surplus n-grams
    over all n-grams of the translations; OTEM = LP · (rate(1) · ... · rate(N))^(1/N). LP is
    exp(1 - R/T) if the T tokens of the translations exceed the R of the references, else 1. The
    authors' script metric.py (DeepLearnXMU/Otem-Utem) computes this with N = 2.
    """
    surplus, total = [0] * ORDERS, [0] * ORDERS
    for ours, theirs in zip(translations, references, strict=True):
        for n in range(1, ORDERS + 1):
            counts, wanted = ngrams(ours, n), ngrams(theirs, n)
            surplus[n - 1] += sum(max(k - max(wanted[g], 1), 0) for g, k in counts.items())
            total[n - 1] += sum(counts.values())
    length, wanted_length = total[0], sum(map(len, references))
    return OverTranslation(
        tuple(s / t if t else 0.0 for s, t in zip(surplus, total, strict=True)),
        math.exp(1 - wanted_length / length) if length > wanted_length else 1.0,
        sum(map(repeated_tokens, translations)) / length if length else 0.0,
    )


def repeated_tokens(tokens: Sequence[str], longest: int = ORDERS) -> int:
    """Count the tokens of n-grams (n = 1..longest) that directly follow an equal n-gram.

    N-gram de-duplication (zhang2020, Figure 4) drops these: 1 in ``a a b``, 2 in ``a b a b``.
    """
    dropped: set[int] = set()
    for n in range(1, longest + 1):
        for i in range(n, len(tokens) - n + 1):
            if tokens[i - n : i] == tokens[i : i + n]:
                dropped.update(range(i, i + n))
    return len(dropped)


@dataclass(frozen=True)
class Repetition:
    """Counts of directly repeated tokens."""

    tokens: int  # number of tokens
    repeated: int  # number of tokens equal to the one before them in their sentence
    sentences: int  # number of sentences with such a token

    @property
    def rate(self) -> float:
        """The token repetition ratio; 0 without tokens."""
        return self.repeated / self.tokens if self.tokens else 0.0


def repetition(translations: Sentences) -> Repetition:
    """Measure the token repetition ratio (xia2022, appendix B, Table 9).

    The paper does not define it; here it is the share of tokens equal to the one before.
    """
    counts = [repeated_tokens(tokens, longest=1) for tokens in translations]
    return Repetition(sum(map(len, translations)), sum(counts), sum(map(bool, counts)))


# ---- the two ends -------------------------------------------------------------------------------


def edge_precision(
    translations: Sentences, references: Sentences, n: int, left: int = 0, right: int = 0
) -> float | None:
    """Return the clipped n-gram precision of one end of translations (imamura2020, section 5.1).

    Matches are clipped within a sentence by the counts in the whole reference, as in BLEU. (The
    paper does not define the divisor; here it is the number of n-grams of the end.)

    Args:
        translations: tokens of each.
        references: tokens of each.
        n: length of the n-grams.
        left: use only the first ``left`` tokens of each translation.
        right: use only the last ``right`` tokens; without both, all tokens.

    Returns:
        Between 0 and 1; None without n-grams.
    """
    matches = total = 0
    for ours, theirs in zip(translations, references, strict=True):
        part = ours[:left] if left else ours[-right:]  # -0: all
        counts, wanted = ngrams(part, n), ngrams(theirs, n)
        matches += sum(min(k, wanted[g]) for g, k in counts.items())
        total += sum(counts.values())
    return matches / total if total else None
