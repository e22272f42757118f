"""Writing token by token: of a drafter, and of native greedy search."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine.chunk import ChunkScorer, pick
from ..row import Row
from ..token_rules import TokenRules, starts_of


class Text(NamedTuple):
    """What rows have written."""

    tokens: list[list[int]]  # B lists
    # B lists of their log-probabilities, or of scores that are not normalised
    scores: list[list[float]]

    @property
    def has_nan(self) -> bool:
        """Whether a score is NaN."""
        return any(math.isnan(score) for row in self.scores for score in row)


def unread(scorer: ChunkScorer, rows: Sequence[Row], rules: TokenRules) -> list[list[int]]:
    """Return each row's inputs that are not cached: its start and its tokens."""
    inputs = ([rules.start, *row.tokens] for row in rows)
    return [tokens[n:] for tokens, n in zip(inputs, scorer.cache.lengths, strict=True)]


def read_rows(scorer: ChunkScorer, rows: Sequence[Row], rules: TokenRules) -> Any:
    """Read the inputs that are not cached: -> B×1×D, the states after the last."""
    new = unread(scorer, rows, rules)
    width = max(map(len, new))
    chunk = [tokens + [rules.pad] * (width - len(tokens)) for tokens in new]
    hidden = scorer.step(np.array(chunk))
    scorer.keep([n + len(tokens) for n, tokens in zip(scorer.cache.lengths, new, strict=True)])
    return pick(hidden, np.array([[len(tokens) - 1] for tokens in new]))


def write(
    scorer: ChunkScorer,
    projection: Any,
    rules: TokenRules,
    rows: Sequence[Row],
    counts: Sequence[int],
    least: float = -math.inf,
    normalised: bool = True,
) -> Text:
    """Write tokens behind those of each row, each given those before it.

    A row ends with ``</s>`` too. Every written token but a row's last is cached.

    Args:
        scorer: has read some of the rows' tokens; it reads the rest.
        projection: of all tokens or of a shortlist.
        rules: which tokens are allowed at a position.
        rows: B rows.
        counts: B, at most so many tokens; one of them is above 0.
        least: a row ends once the sum of its scores is below this.
        normalised: whether scores are log-probabilities.
    """
    if rules.sampling is None and scorer.writes(projection):
        new = unread(scorer, rows, rules)
        return Text(*scorer.write(new, counts, projection, rules.at(rows), least, normalised))
    hidden = read_rows(scorer, rows, rules)  # B×1×D
    written: list[list[int]] = [[] for _ in rows]
    scores: list[list[float]] = [[] for _ in rows]
    starts = starts_of(rows)
    live = [b for b, count in enumerate(counts) if count > 0]
    while True:
        at = rules.at(rows, starts, behind=[[text] for text in written])
        scored = projection.draft(hidden, at, normalised)
        for b in live:
            written[b].append(int(scored.tokens[b, 0]))
            scores[b].append(float(scored.scores[b, 0]))
        live = [
            b
            for b in live
            if len(written[b]) < counts[b]
            and written[b][-1] != rules.eos
            and sum(scores[b]) >= least
        ]
        if not live:
            break
        # A pass is over all rows; those that have ended read filling.
        hidden = scorer.step(scored.tokens)
        lengths = list(scorer.cache.lengths)
        for b in live:
            lengths[b] += 1
        scorer.keep(lengths)
        starts = [start + 1 for start in starts]
    return Text(written, scores)
