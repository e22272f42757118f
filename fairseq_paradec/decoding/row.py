"""Row: one sentence of a batch while it is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field

from .trace import PassRecord


@dataclass
class Row:
    """One sentence on its way.

    Attributes:
        index: its row in the batch as it came.
        source: its source tokens, ``</s>`` included, padding left out.
        limit: the position at which only ``</s>`` may come; the output has at most limit+1 tokens.
        prefix: tokens that its output must begin with; ``<pad>`` leaves a position free.
        tokens: what is committed so far.
        scores: the verifier's log-probability of each committed token.
        passes: one record per decoder pass that this row took part in.
        finished: whether the last committed token is ``</s>``.
    """

    index: int
    source: list[int]
    limit: int
    prefix: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    finished: bool = False

    @property
    def room(self) -> int:
        """How many positions are left to predict, that of the last ``</s>`` included."""
        return self.limit + 1 - len(self.tokens)

    def commit(self, tokens: list[int], scores: list[float], eos: int) -> None:
        """Append final tokens, up to the row's end."""
        if eos in tokens:
            tokens = tokens[: tokens.index(eos) + 1]
            self.finished = True
        self.tokens += tokens
        self.scores += scores[: len(tokens)]
