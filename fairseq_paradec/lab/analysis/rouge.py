"""ROUGE of summaries, by the package ``rouge-score``, with bootstrap intervals.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; zhang2020 reports ROUGE-L
(section 5, Table 6).
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from .quality import Floats, resampled

# Characters of words for rouge-score; it treats all others as spaces.
COUNTED = re.compile("[a-z0-9]")

# The measures' names in papers and in the package; the last one is by sentences.
WHOLE = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
BY_SENTENCES = {**WHOLE, "ROUGE-Lsum": "rougeLsum"}


class Score(NamedTuple):
    """One measure of a system, all in %.

    ``f1``, ``precision`` and ``recall`` are means over summaries; ``low`` and ``high`` are the ends
    of the 95% interval of ``f1``.
    """

    f1: float
    low: float
    high: float
    precision: float
    recall: float


def rouge(
    summaries: Sequence[str],
    references: Sequence[str],
    *,
    stemming: bool = False,
    sentence_mark: str | None = None,
) -> dict[str, Score]:
    """Score summaries against one reference each.

    The intervals are percentiles of the mean over resampled summaries, drawn with the seed of
    ``quality``; rouge-score's own bootstrap has no seed and returns a median, not the mean.

    Args:
        summaries: a text each.
        references: one per summary.
        stemming: compare words by their Porter stems.
        sentence_mark: the token between the sentences of a text; it is no word.

    Returns:
        ROUGE-1 and -2 (shared n-grams) and ROUGE-L (longest common subsequence of whole texts);
        with a mark also ROUGE-Lsum (union of the longest common subsequences with each sentence,
        Lin 2004, section 3.2).
    """
    measures = WHOLE
    if sentence_mark is not None:
        measures = BY_SENTENCES
        summaries = [in_lines(text, sentence_mark) for text in summaries]
        references = [in_lines(text, sentence_mark) for text in references]
    counts = resampled(len(references))
    found = {}
    for name, one in each(summaries, references, measures, stemming=stemming).items():
        precision, recall, f1 = one
        low, high = np.percentile(counts @ f1 / len(f1), (2.5, 97.5))
        numbers = (f1.mean(), low, high, precision.mean(), recall.mean())
        found[name] = Score(*map(float, numbers))
    return found


def each(
    summaries: Sequence[str],
    references: Sequence[str],
    measures: Mapping[str, str],
    *,
    stemming: bool = False,
) -> dict[str, Floats]:
    """Score each summary against its reference.

    Args:
        summaries: a text each; for ROUGE-Lsum, a sentence on each line.
        references: one per summary.
        measures: ``WHOLE`` or ``BY_SENTENCES``.
        stemming: compare words by their Porter stems.

    Returns:
        By measure, 3 × summaries: precision, recall and F1, in %.
    """
    # With an explicit tokeniser the package logs nothing.
    scorer = RougeScorer(list(measures.values()), tokenizer=DefaultTokenizer(stemming))
    found = [scorer.score(*pair) for pair in zip(references, summaries, strict=True)]
    return {name: 100 * np.array([one[key] for one in found]).T for name, key in measures.items()}


def in_lines(text: str, mark: str) -> str:
    """Put the sentences of a text on lines of their own.

    Args:
        text: tokens with spaces between them.
        mark: the token between (or after) sentences, which is removed.
    """
    return " ".join("\n" if token == mark else token for token in text.split())


def is_counted(text: str) -> bool:
    """Return whether a text has a word for rouge-score."""
    return COUNTED.search(text.lower()) is not None


def has_other_letters(text: str) -> bool:
    """Return whether a text has letters that rouge-score treats as spaces."""
    return any(letter.isalpha() and not letter.isascii() for letter in text)
