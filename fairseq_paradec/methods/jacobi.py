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
| y^k, an iterate                 | ``_Guess.tokens``, cut as tokens become final                 |
| INITT, the first guess          | ``_first_guess``                                              |
| STOPC, equation 5               | the acceptance rule Unchanged (``--jacobi-stop unchanged``)   |

Differences from the paper: Algorithms 1 and 2 also end a block of b positions after b passes; here
``unchanged`` ends a block by equation 5 only, which can take one pass more.

Beyond the paper: ``--jacobi-stop prefix`` commits tokens as soon as they are final, and
``--jacobi-window sliding`` moves the block by the number of tokens that a pass commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..decoding.acceptance import ExactMatch, Unchanged
from ..decoding.drafting import BlockSizes
from ..decoding.loop import Drafter, Proposal, Verdict, draft_and_verify
from ..decoding.row import Row
from ..decoding.token_rules import TokenRules
from ..errors import option_error
from ..options import DecodingConfig
from .base import ParallelGenerator
from .greedy import GreedyDrafter


@dataclass
class _Guess:
    """The guesses for one row.

    Attributes:
        tokens: the guesses for the positions after the committed ones.
        first_window: the length of ``pj``'s first block.
        seen: the predictions of all passes in sequence, with ``<pad>`` after each pass.
        latest: for each token with a successor in ``seen``, the index of its last occurrence.
    """

    first_window: int
    tokens: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    latest: dict[int, int] = field(default_factory=dict)


class JacobiDrafter(Drafter):
    """Proposes the last iterate's tokens for the rest of the block.

    Args:
        config: method, block size, window, first guess, stop rule.
        pad: ``<pad>``; a wrong guess, since it is never predicted.
        start: the decoder's first input, the guess of ``--jacobi-init bos``.
        first_windows: B, the length of each row's first block under ``pj``.
    """

    def __init__(
        self, config: DecodingConfig, pad: int, start: int, first_windows: Sequence[int]
    ) -> None:
        self.config = config
        self.pad = pad
        self.start = start
        self.sizes = BlockSizes(config.block_size, len(first_windows), config.adaptive_block)
        self.guesses = [_Guess(window) for window in first_windows]

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Propose each row's block: its remaining guesses, then first guesses up to its end.

        A block of b positions is scored at b positions: its last guess is compared with the
        prediction, but is no input of the pass. After ``hybrid_length`` there is no block: the row
        has no guesses, and the pass predicts its next token.
        """
        tokens = []
        for b, (row, guess) in enumerate(zip(rows, self.guesses, strict=True)):
            end = self._block_end(len(row.tokens), guess.first_window, self.sizes[b])
            size = min(end - len(row.tokens), row.room)
            guess.tokens = guess.tokens[:size]  # the block may be shorter than before
            guess.tokens += self._first_guess(row, guess, size - len(guess.tokens))
            tokens.append(list(guess.tokens))
        return Proposal(tokens, [max(1, len(t)) for t in tokens])

    def observe(self, verdict: Verdict) -> None:
        """Take the predictions that are not final as the next iterate."""
        self.sizes.observe(verdict.num_accepted)
        for guess, predicted, num_final in zip(
            self.guesses, verdict.choices, verdict.num_committed, strict=True
        ):
            guess.tokens = predicted[num_final:]
            if self.config.jacobi_init == "ngram":
                offset = len(guess.seen)
                guess.latest |= zip(predicted[:-1], range(offset, offset + len(predicted) - 1))
                guess.seen += [*predicted, self.pad]

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the guesses of these rows."""
        self.sizes.drop(stay)
        self.guesses = [self.guesses[b] for b in stay]

    def _block_end(self, done: int, first_window: int, sliding_size: int) -> int:
        """Return the position after the block of a row with ``done`` committed tokens."""
        size = self.config.block_size
        if self.config.decoding == "pj":
            end = first_window
            while end <= done:
                end *= 2
            return end
        last = self.config.hybrid_length
        if last is not None and done >= last:
            return done
        if self.config.jacobi_window == "sliding":
            end = done + sliding_size
        else:
            end = (done // size + 1) * size
        return end if last is None else min(end, last)

    def _first_guess(self, row: Row, guess: _Guess, count: int) -> list[int]:
        """Guess ``count`` positions that follow the row's tokens and guesses (INITT)."""
        known = len(row.tokens) + len(guess.tokens)
        init = self.config.jacobi_init
        tokens: list[int] = []
        filler = self.pad
        if init == "bos":
            filler = self.start
        elif init == "source-copy":
            tokens = row.source[known : known + count]
            filler = self.start
        elif init == "ngram" and known > 0:
            tokens = self._continue(guess, (guess.tokens or row.tokens)[-1], count)
        return tokens + [filler] * (count - len(tokens))

    def _continue(self, guess: _Guess, key: int, count: int) -> list[int]:
        """Return the tokens after the last ``key`` that an earlier pass of the row predicted."""
        where = guess.latest.get(key)
        if where is None:
            return []
        following = guess.seen[where + 1 : where + 1 + count]
        if self.pad in following:
            return following[: following.index(self.pad)]
        return following


class JacobiGenerator(ParallelGenerator):
    """``--decoding pj``, ``pgj`` and ``hgj``.

    Raises:
        UsageError: ``--jacobi-init source-copy`` without a joined dictionary.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.config.jacobi_init == "source-copy" and self.src_dict != self.tgt_dict:
            raise option_error(
                "--jacobi-init",
                "source-copy",
                "pad, bos, ngram; a source token can only be a guess where source and target share"
                " one dictionary",
            )

    def acceptance(self) -> ExactMatch:
        """Return the rule that ``--jacobi-stop`` names."""
        return Unchanged() if self.config.jacobi_stop == "unchanged" else ExactMatch()

    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> JacobiDrafter:
        """Return the drafter; for ``--jacobi-length oracle`` greedy search runs first."""
        first_windows = [max(1, len(row.source)) for row in rows]
        if self.config.jacobi_length == "oracle":
            first_windows = self._greedy_lengths(rows, net_input, rules)
        return JacobiDrafter(self.config, rules.pad, rules.start, first_windows)

    def _greedy_lengths(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> list[int]:
        """Return the lengths of greedy search's outputs, with ``</s>``."""
        twins = [Row(row.index, row.source, row.limit, row.prefix) for row in rows]
        self._encode(net_input)
        draft_and_verify(self.scorer, twins, GreedyDrafter(), ExactMatch(), rules)
        return [len(twin.tokens) for twin in twins]
