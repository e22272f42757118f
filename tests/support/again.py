"""A method of another package: it guesses that the last token comes again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

import fairseq_paradec
from fairseq_paradec import registry
from fairseq_paradec.decoding.loop import Drafter, Proposal
from fairseq_paradec.methods.base import ParallelDecoder
from fairseq_paradec.registry import Method
from fairseq_paradec.row import Row
from fairseq_paradec.token_rules import TokenRules


class Again(Drafter):
    """Guesses that the last token comes again."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        drafts = [row.tokens[-1:][: row.room - 1] for row in rows]
        return Proposal(drafts, [len(draft) + 1 for draft in drafts])


class AgainDecoder(ParallelDecoder):
    """``--decoding again``."""

    def make_drafter(self, rows: Sequence[Row], source: np.ndarray, rules: TokenRules) -> Drafter:
        return Again()


@contextmanager
def registered() -> Iterator[Method]:
    """The method, registered meanwhile."""
    method = Method("again", "the last token again", f"{__name__}.AgainDecoder")
    fairseq_paradec.register(method)
    try:
        yield method
    finally:
        del registry.METHODS["again"]
        registry.DECODINGS.remove("again")
