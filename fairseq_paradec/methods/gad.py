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

from collections.abc import Sequence
from typing import Any

from ..batch import Numbers
from ..config import DecodingConfig
from ..decoding.drafting import ModelDrafter
from ..decoding.helper import check_block_size, check_shared_encoder, warn_long_block
from ..engine.block import BlockScorer
from ..engine.native.drafts import NativeDrafting
from ..engine.native.library import Drafted, DraftedBy
from ..errors import UsageError, nan_error
from ..row import Row
from ..token_rules import TokenRules
from .base import Context
from .drafted import DraftedDecoder


class BlockDrafter(ModelDrafter):
    """Drafts the block model's most likely token at each of the next k positions.

    The scorer is the block model's; its encoder has not run yet.
    """

    def hidden(self, rows: Sequence[Row], count: int) -> Any:
        """Fill a block after each row's prefix."""
        # Always k masks: with fewer the draft would change.
        return self.scorer.fill([row.tokens for row in rows], self.sizes.most)[:, :count]

    def natively(self) -> NativeDrafting | None:
        """Describe the drafter to the native loop, unless it drafts trees or is traced."""
        scorer, part = self.scorer, self.projection.part(self.scorer.projection, self.rules)
        known = type(scorer) is BlockScorer and scorer.writes(part)
        if self.traced or self.most_nodes is not None or not known:
            return None
        how = Drafted(
            by=DraftedBy.MASKS,
            most=self.sizes.most,
            adaptive=self.sizes.adaptive,
            masks=scorer.model.masks(self.sizes.most),
            caches=scorer.caches_prefix,
            mask=scorer.mask_token,
        )
        return NativeDrafting(how, scorer, part.linear, self.nan_error)

    def nan_error(self) -> UsageError:
        """Return an error that names the drafter."""
        return nan_error("--drafter-path", [self.scorer.model])

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the block sizes and the cache of these rows."""
        super().drop(stay)
        self.scorer.reorder(stay)


class GadDecoder(DraftedDecoder):
    """``--decoding gad`` and ``gad_pp``; the drafter is a BlockNatModel. See DraftedDecoder."""

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context)
        drafter = self.drafter
        check_block_size(config.block_size, drafter.max_decoder_positions(), "its positions")
        warn_long_block(config.block_size, drafter.block_size)

    def make_draft_scorer(self, drafter: Any) -> BlockScorer:
        """Return the drafter's scorer."""
        return BlockScorer(drafter, self.draft_engine)

    def shares_encoder(self, models: Sequence[Any], drafter: Any) -> bool:
        """Return whether the drafter was trained on the verifier's encoder."""
        if drafter.shares_encoder:
            check_shared_encoder(models, drafter, self.config.drafter_path)
        return bool(drafter.shares_encoder)

    def make_drafter(self, rows: Sequence[Row], source: Numbers, rules: TokenRules) -> BlockDrafter:
        """Return the drafter for one batch."""
        return BlockDrafter(
            self.draft_scorer,
            self.projection,
            rules,
            self.block_sizes(rows),
            self.record_tokens,
            self.config.draft_tree,
        )
