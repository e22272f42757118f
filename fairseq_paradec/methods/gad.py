"""GAD and GAD++ (Xia et al. 2022): a non-autoregressive model drafts, a Transformer verifies.

| paper                                  | here                                             |
|----------------------------------------|--------------------------------------------------|
| Draft, equations 1 and 2               | ``BlockDrafter.propose``: k tokens in one pass   |
| Verify, equations 3 to 5               | the loop, with the acceptance rule ExactMatch    |
| GAD++ requirement, equations 6 and 7   | the acceptance rule TopKMargin                   |
| k                                      | ``block_size``                                   |
| top-beta                               | ``accept_topk``                                  |
| tau, the tolerance                     | ``accept_margin``                                |
| the drafter alone (Table 1)            | ``nat``: every block is committed as it is       |

Differences from the paper: if the whole draft is accepted, the verifier's next token (the bonus
token) is committed with it; tokens drafted after ``</s>`` are not verified; and a drafter may be
trained on the verifier's own encoder, whose output then serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..decoding.acceptance import ExactMatch, TopKMargin
from ..decoding.drafting import BlockSizes, ModelDrafter
from ..decoding.engine.block import BlockScorer
from ..decoding.engine.chunk import ChunkScorer
from ..decoding.engine.projection import DraftProjection
from ..decoding.helper import check_block_size, check_shared_encoder, move_to
from ..decoding.row import Row
from ..decoding.token_rules import TokenRules
from ..errors import UsageError, nan_error
from .base import ParallelGenerator


class BlockDrafter(ModelDrafter):
    """Drafts the block model's most likely token at each of the next k positions.

    The scorer is the block model's; its encoder has not run yet.
    """

    def hidden(self, rows: Sequence[Row], count: int) -> Tensor:
        """Fill a block after each row's prefix."""
        # Always k masks: they attend to each other, so fewer masks would change the draft.
        states: Tensor = self.scorer.fill([row.tokens for row in rows], self.sizes.most)
        return states[:, :count]

    def nan_error(self) -> UsageError:
        """Return an error that names the drafter."""
        return nan_error("--drafter-path", [self.scorer.model])

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the block sizes and the cache of these rows."""
        super().drop(stay)
        self.scorer.reorder(stay)


class GadGenerator(ParallelGenerator):
    """``--decoding gad`` and ``gad_pp``.

    Args:
        models: the verifier, or an ensemble of them.
        tgt_dict: the target dictionary.
        config: the options of decoding.
        drafter: a BlockNatModel; it is moved to the verifier's dtype and device.
        kwargs: see ParallelGenerator.

    Raises:
        UsageError: the drafter does not fit the verifier, or options do not fit them.
    """

    def __init__(
        self, models: Sequence[Any], tgt_dict: Any, config: Any, drafter: Any, **kwargs: Any
    ) -> None:
        super().__init__(models, tgt_dict, config, **kwargs)
        drafter.eval()  # returns None for a model that is prepared for inference
        self.drafter = self.helper = drafter
        self.draft_scorer = BlockScorer(drafter, self.engine)
        check_block_size(config.block_size, drafter.decoder.max_positions(), "its positions")
        self.projection = DraftProjection(
            self.draft_scorer.model, config.drafter_shortlist, tgt_dict
        )
        if drafter.shares_encoder:
            check_shared_encoder(models, drafter, config.drafter_path)

    def acceptance(self) -> ExactMatch:
        """Return GAD's rule, equation 5, or GAD++'s, equations 6 and 7.

        With beta 1 or tau 0 only a top-1 token is accepted. ExactMatch then selects, among tokens
        that tie for the top 1, the one that greedy search chooses.
        """
        if self.lossless:
            return ExactMatch()
        return TopKMargin(self.config.accept_topk, self.config.accept_margin)

    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> BlockDrafter:
        """Return the drafter for one batch."""
        move_to(self.model.models, self.drafter, self.drafter.decoder.embed_tokens.weight)
        sizes = BlockSizes(self.config.block_size, len(rows), self.config.adaptive_block)
        return BlockDrafter(self.draft_scorer, self.projection, rules, sizes)

    def join(self, scorers: dict[Any, Any], record_tokens: bool) -> None:
        """Also share the drafter's scorer; see MethodGenerator.join."""
        super().join(scorers, record_tokens)
        self.draft_scorer = self._one_of(scorers, "draft_scorer", self.draft_scorer)

    def _encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder, and the drafter's encoder if it has its own."""
        self.scorer.encode(net_input)
        if self.drafter.shares_encoder:
            assert isinstance(self.scorer, ChunkScorer)  # no ensemble: see check_shared_encoder
            self.draft_scorer.start(self.scorer.encoder_out)
        else:
            self.draft_scorer.encode(net_input)
