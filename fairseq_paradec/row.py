"""Row: one sentence of a batch while it is decoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .batch import Numbers
from .records import PassRecord


@dataclass
class Row:
    """One sentence and its decoding state.

    Attributes:
        index: its row in the original batch.
        source: its source tokens with ``</s>``, without padding.
        limit: the position where only ``</s>`` is allowed; the output has at most limit+1 tokens.
        prefix: the forced first tokens of the output; ``<pad>`` leaves a position free.
        given: an earlier output of the same or a like sentence, a draft; empty: none.
        tokens: the committed tokens.
        scores: the verifier's log-probability of each committed token.
        passes: one record per decoder pass of this row.
        stream: random numbers of its own, for sampling.
        finished: whether the last committed token is ``</s>``.
        on_pass, on_finish, admit: the batch's hooks (see ``batch.py``) for the row, of rows instead
            of hypotheses and batches; ``admit`` is the same of all rows.
    """

    index: int
    source: list[int]
    limit: int
    prefix: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    stream: np.random.Generator | None = None
    finished: bool = False
    on_pass: Callable[[Sequence[PassRecord]], None] | None = None
    on_finish: "Callable[[Row], None] | None" = None
    admit: "Callable[[int], Entering | None] | None" = None

    @property
    def room(self) -> int:
        """The number of positions left to predict, with that of ``</s>``."""
        return self.limit + 1 - len(self.tokens)

    def ends_in_prefix(self, eos: int) -> bool:
        """Return whether the prefix forces ``</s>``, behind another token and before the limit."""
        return eos in self.prefix[1 : self.limit] and self.prefix[0] != eos

    def fresh(self) -> "Row":
        """Return a row of the sentence as it comes, without given draft and hooks."""
        return Row(self.index, self.source, self.limit, self.prefix)

    def tell_finish(self) -> None:
        """Tell who waits for the row that it is finished, once."""
        if self.finished and self.on_finish is not None:
            on_finish, self.on_finish = self.on_finish, None
            on_finish(self)

    def commit(self, tokens: list[int], scores: list[float], eos: int) -> None:
        """Append final tokens, up to the first ``</s>``."""
        if eos in tokens:
            tokens = tokens[: tokens.index(eos) + 1]
            self.finished = True
        self.tokens += tokens
        self.scores += scores[: len(tokens)]


class Entering(NamedTuple):
    """Sentences that enter a batch while it is decoded."""

    rows: list[Row]
    source: Numbers  # their tokens, B×S, in the same order
