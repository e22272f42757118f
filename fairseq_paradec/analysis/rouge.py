"""ROUGE of summaries, by the package ``rouge-score``, with bootstrap intervals.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; zhang2020 reports ROUGE-L
(section 5, Table 6).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from .quality import RESAMPLES, SEED

# What rouge-score counts; all else is a space to it.
COUNTED = re.compile("[a-z0-9]")


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
    ``quality``; rouge-score's own bootstrap has none, and gives a median for the mean.

    Args:
        summaries: a text each.
        references: one per summary.
        stemming: compare words by their Porter stems.
        sentence_mark: the token between the sentences of a text; it is no word itself.

    Returns:
        ROUGE-1 and -2 (shared n-grams) and ROUGE-L (longest common subsequence of whole texts);
        with a mark also ROUGE-Lsum (union of the longest common subsequences with each sentence,
        Lin 2004, section 3.2).
    """
    measures = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
    if sentence_mark is not None:
        measures["ROUGE-Lsum"] = "rougeLsum"
        summaries = [in_lines(text, sentence_mark) for text in summaries]
        references = [in_lines(text, sentence_mark) for text in references]
    # Given its own tokeniser, the package does not log that it uses that.
    scorer = RougeScorer(list(measures.values()), tokenizer=DefaultTokenizer(stemming))
    each = [scorer.score(*pair) for pair in zip(references, summaries, strict=True)]
    size = len(each)
    draws = np.random.default_rng(SEED)
    # How often each summary is in each resample: resamples x summaries.
    counts = np.stack(
        [np.bincount(draws.integers(size, size=size), minlength=size) for _ in range(RESAMPLES)]
    )
    found = {}
    for name, key in measures.items():
        precision, recall, f1 = 100 * np.array([score[key] for score in each]).T
        low, high = np.percentile(counts @ f1 / size, (2.5, 97.5))
        numbers = (f1.mean(), low, high, precision.mean(), recall.mean())
        found[name] = Score(*map(float, numbers))
    return found


def in_lines(text: str, mark: str) -> str:
    """Put the sentences of a text on lines of their own.

    Args:
        text: tokens with spaces between them.
        mark: the token between (or behind) sentences; it goes.
    """
    return " ".join("\n" if token == mark else token for token in text.split())


def is_counted(text: str) -> bool:
    """Say whether rouge-score finds anything to count in a text."""
    return COUNTED.search(text.lower()) is not None


def has_other_letters(text: str) -> bool:
    """Say whether a text has letters that rouge-score takes for spaces."""
    return any(letter.isalpha() and not letter.isascii() for letter in text)
