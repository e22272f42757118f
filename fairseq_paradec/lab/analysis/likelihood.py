"""Measures from the scores of given targets: perplexity, mutual information, contrastive accuracy.

Scores are what ``fairseq-generate --score-reference`` prints after ``P-``: log-probabilities of a
target's tokens, to base 2.
"""

import math
from collections.abc import Mapping, Sequence

from ...errors import UsageError

#: The log2-probabilities of a sentence's tokens, by its number.
Scores = Mapping[int, Sequence[float]]


def perplexity(scores: Scores) -> float:
    """Return the perplexity of a corpus: 2 to the mean negative log2-probability of a token."""
    total = sum(map(sum, scores.values()))
    mean = -total / sum(map(len, scores.values()))
    return 2**mean if mean < 1024 else math.inf


def pmi(model: float, autoregressive: float) -> float:
    """Estimate the dependence of words that are predicted at the same time.

    The point-wise mutual information of zhang2020, appendix B, equation 13, with base 10 as in its
    Table 3: log10 ppl(SA) - log10 ppl(Base); 0.235 for 6.95 and 4.04. An autoregressive model
    predicts p(y1) · p(y2|y1), the other one p(y1) · p(y2).

    Args:
        model: perplexity of a model that predicts several words a step.
        autoregressive: perplexity of a model that predicts the same words in the same order, one a
            step.

    Returns:
        Decimal digits per token; 0 if the words are independent.
    """
    return math.log10(model) - math.log10(autoregressive)


def check_same_targets(first: Scores, second: Scores, names: tuple[str, str]) -> None:
    """Refuse scores that are not of the same tokens.

    Raises:
        UsageError: a sentence is missing in one, or its numbers of tokens differ.
    """
    check_same_sentences(first, second, names)
    for number in first:
        if len(first[number]) != len(second[number]):
            raise UsageError(
                f"{names[1]}: got {len(second[number])} tokens for sentence {number}; allowed: "
                f"{len(first[number])}, as in {names[0]}, of the same data folder"
            )


def check_same_sentences(first: Scores, second: Scores, names: tuple[str, str]) -> None:
    """Refuse scores that are not of the same sentences."""
    odd = sorted(first.keys() ^ second.keys())
    if odd:
        raise UsageError(
            f"{names[odd[0] in first]}: got no scores of sentence {odd[0]}; allowed: scores of the "
            f"same sentences as in {names[odd[0] not in first]}"
        )


def prefers_right(right: Scores, wrong: Scores) -> dict[int, bool]:
    """Return for each pair whether the right target has the higher probability (Sennrich 2017).

    Probabilities are those of whole targets, without length normalisation; at a tie neither is
    preferred.
    """
    return {i: sum(right[i]) > sum(wrong[i]) for i in sorted(right)}


def accuracy_by_distance(
    preferred: Mapping[int, bool], distances: Mapping[int, int], longest: int = 15
) -> dict[str, tuple[int, float]]:
    """Group contrastive pairs as zhang2020, Figure 5.

    Returns:
        The number of pairs and the share preferred, by distance (``all``, ``1``, ..., ``>15``).
    """
    groups: dict[int, list[bool]] = {}
    for pair, good in preferred.items():
        groups.setdefault(min(distances[pair], longest + 1), []).append(good)
    named = {"all": list(preferred.values())}
    for key in sorted(groups):
        named[str(key) if key <= longest else f">{longest}"] = groups[key]
    return {name: (len(goods), sum(goods) / len(goods)) for name, goods in named.items()}
