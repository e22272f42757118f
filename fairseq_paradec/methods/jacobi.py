"""Jacobi decoding: PJ, PGJ and HGJ (Santilli et al. 2023), for any trained Transformer.

Greedy search solves the triangular system y_i = argmax p(. | y_<i, x) by substitution; Jacobi
decoding solves it by fixed-point iteration over blocks of positions (section 3.1, equation 4). One
pass predicts every position of a block again from the last guesses. The first guesses that it
predicts again, and the prediction after them, are final.

| paper                           | here                                                          |
|---------------------------------|---------------------------------------------------------------|
| Algorithm 1, PJ                 | ``pj``: blocks of the source's length, the target doubling    |
| Algorithm 2, PGJ, block b       | ``pgj``: blocks of ``block_size``                             |
| Algorithm 3, HGJ, length h      | ``hgj``: as PGJ up to ``hybrid_length``, then single tokens   |
| y^k, an iterate                 | ``Guesses.tokens``, cut as tokens become final                |
| INITT, the first guess          | ``--jacobi-init``, see ``Guesses``                            |
| STOPC, equation 5               | the acceptance rule Unchanged (``--jacobi-stop unchanged``)   |

As in Algorithms 1 and 2, ``unchanged`` ends a block of b positions after b passes at the latest,
also where equation 5 would ask for one pass more to confirm it.
Beyond the paper: ``--jacobi-stop prefix`` commits tokens as soon as they are final, and
``--jacobi-window sliding`` moves the block by the number of tokens that a pass commits.
"""

from collections.abc import Sequence
from typing import Any

from ..batch import Numbers
from ..config import DecodingConfig
from ..decoding.acceptance import ExactMatch, Unchanged
from ..decoding.drafting import BlockSizes
from ..decoding.guesses import Guesses, check_first_guess
from ..decoding.loop import Drafter, Proposal, Verdict
from ..engine.native.drafts import NativeDrafting
from ..engine.native.library import Drafted, DraftedBy, Window
from ..row import Row
from ..token_rules import TokenRules
from .base import ParallelDecoder
from .greedy import greedy_lengths

#: First guesses, in the order of the library's ``FirstGuess``.
FIRST_GUESSES = ("pad", "bos", "source-copy", "ngram")


def first_length(row: Row) -> int:
    """Return the length of a row's first block under ``pj``."""
    return max(1, len(row.source))


class JacobiDrafter(Drafter):
    """Proposes the last iterate's tokens for the rest of the block.

    Args:
        config: method, block size, window, first guess, stop rule.
        rules: of the batch, for the tokens of first guesses.
        lengths: B, the length of each row's first block under ``pj``; with ``--jacobi-length
            oracle`` also where the last block of ``pgj`` ends.
    """

    def __init__(self, config: DecodingConfig, rules: TokenRules, lengths: Sequence[int]) -> None:
        self.config = config
        self.sizes = BlockSizes(config.block_size, len(lengths), config.adaptive_block)
        self.lengths = lengths
        self.guesses = [Guesses(config.jacobi_init, rules.pad, rules.start) for _ in lengths]
        self.whole_blocks = config.jacobi_stop == "unchanged"
        self.passes = [0] * len(lengths)  # over the block so far

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Propose each row's block: its remaining guesses, then first guesses up to its end.

        A block of b positions is scored at b positions: its last guess is compared with the
        prediction, but is no input of the pass. After ``hybrid_length`` there is no block: the row
        has no guesses, and the pass predicts its next token. With ``--jacobi-stop unchanged`` the
        b-th pass over a block is its last (Algorithms 1 and 2): all positions but one have
        converged, and only these are compared.
        """
        tokens, num_scored = [], []
        for b, (row, guess) in enumerate(zip(rows, self.guesses, strict=True)):
            end = self._block_end(row, self.sizes[b])
            block = guess.of_size(row, min(end - len(row.tokens), row.room))
            num_scored.append(max(1, len(block)))
            is_last = self.whole_blocks and self.passes[b] + 1 == len(block)
            tokens.append(block[:-1] if is_last else block)
        return Proposal(tokens, num_scored)

    def natively(self) -> NativeDrafting:
        """Describe the drafter to the native loop."""
        config = self.config
        doubling, last = config.decoding == "pj", config.hybrid_length
        window = Window.SLIDING if config.jacobi_window == "sliding" else Window.BLOCKS
        how = Drafted(
            by=DraftedBy.GUESSES,
            most=self.sizes.most,
            adaptive=self.sizes.adaptive,
            window=Window.DOUBLING if doubling else window,
            hybrid=-1 if last is None else last,
            whole=self.whole_blocks,
            first=FIRST_GUESSES.index(config.jacobi_init),
        )
        oracle = config.jacobi_length == "oracle"
        if oracle:
            return NativeDrafting(how, length=lambda row: self.lengths[row.index], admits=False)
        return NativeDrafting(how, length=lambda row: first_length(row) if doubling else 0)

    def observe(self, verdict: Verdict) -> None:
        """Take the predictions that are not final as the next iterate."""
        self.sizes.observe(verdict.num_accepted, verdict.own)
        for b, guess in enumerate(self.guesses):
            guess.observe(verdict.choices[b], verdict.num_committed[b])
            self.passes[b] = 0 if verdict.num_committed[b] > 0 else self.passes[b] + 1

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the guesses of these rows."""
        self.sizes.drop(stay)
        self.guesses = [self.guesses[b] for b in stay]
        self.passes = [self.passes[b] for b in stay]

    def _block_end(self, row: Row, sliding_size: int) -> int:
        """Return the position after the block of a row."""
        done, size = len(row.tokens), self.config.block_size
        if self.config.decoding == "pj":
            end = self.lengths[row.index]
            while end <= done:
                end *= 2
            return end
        last = self.config.hybrid_length
        if last is not None and done >= last:
            return done
        end = (done // size + 1) * size
        if self.config.jacobi_window == "sliding":
            end = done + sliding_size
        if self.config.jacobi_length == "oracle" and done < self.lengths[row.index]:
            last = self.lengths[row.index]
        return end if last is None else min(end, last)


class JacobiDecoder(ParallelDecoder):
    """``--decoding pj``, ``pgj`` and ``hgj``.

    Raises:
        UsageError: ``--jacobi-init source-copy`` without a joined dictionary.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        check_first_guess(self.config.jacobi_init, self.sources, self.words)

    def acceptance(self) -> ExactMatch:
        """Return the rule that ``--jacobi-stop`` names."""
        return Unchanged() if self.config.jacobi_stop == "unchanged" else ExactMatch()

    def make_drafter(
        self, rows: Sequence[Row], source: Numbers, rules: TokenRules
    ) -> JacobiDrafter:
        """Return the drafter; for ``--jacobi-length oracle`` greedy search runs first."""
        lengths = list(map(first_length, rows))
        if self.config.jacobi_length == "oracle":
            self._encode(source)
            lengths = greedy_lengths(self.scorer, rows, rules)
        return JacobiDrafter(self.config, rules, lengths)
