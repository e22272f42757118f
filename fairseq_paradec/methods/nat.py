"""``--decoding nat``: GAD's drafter alone (Xia et al. 2022, Table 1).

Every block is committed as the model fills it, without verification, so the output is not that of
greedy search.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..batch import Numbers
from ..config import DecodingConfig
from ..decoding.acceptance import Unverified
from ..decoding.helper import check_block_size, warn_long_block
from ..decoding.loop import Drafter, Proposal, draft_and_verify
from ..engine.block import BlockScorer
from ..row import Row
from ..token_rules import TokenRules
from .base import Context, Decoder


class BlockFiller(Drafter):
    """Drafter and scorer of the loop: proposes to score k positions, and fills masks for it."""

    def __init__(self, scorer: BlockScorer, block_size: int) -> None:
        self.scorer = scorer
        self.block_size = block_size
        self.prefixes: list[list[int]] = []
        self.choose, self.choose_traced = scorer.choose, scorer.choose_traced

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Propose no tokens, and a block of scored positions within the row's limit."""
        self.prefixes = [row.tokens for row in rows]
        return Proposal([[] for _ in rows], [min(self.block_size, row.room) for row in rows])

    def step(self, tokens: np.ndarray) -> Any:
        """Fill the blocks, B×K×D; ``tokens`` is not used, since ``fill`` reads whole prefixes."""
        # Always k masks: with fewer the block would change.
        return self.scorer.fill(self.prefixes, self.block_size)

    def keep(self, lengths: Sequence[int]) -> None:
        """Do nothing; ``fill`` sets the cached lengths itself."""

    def reorder(self, index: Sequence[int]) -> None:
        """Pick rows."""
        self.scorer.reorder(index)


class NatDecoder(Decoder):
    """``--decoding nat``, of one BlockNatModel.

    Raises:
        UsageError: the model is of another kind, or an ensemble.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context)
        check_block_size(config.block_size, models[0].max_decoder_positions(), "its positions")
        warn_long_block(config.block_size, models[0].block_size)

    def make_scorer(self, models: Sequence[Any]) -> BlockScorer:
        """Return the scorer of the one model."""
        return BlockScorer(models[0], self.engine)

    def _decode(
        self, source: Numbers, rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Encode and run the loop with the block model as drafter and scorer."""
        assert isinstance(self.scorer, BlockScorer)  # see make_scorer
        self.scorer.encode(source)
        filler = BlockFiller(self.scorer, self.config.block_size)
        draft_and_verify(filler, rows, filler, Unverified(), rules, self.record_tokens)
        return self._hypotheses(rows, rules)
