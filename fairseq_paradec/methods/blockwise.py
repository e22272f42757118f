"""Blockwise parallel decoding (Stern et al. 2018): heads on the Transformer draft its next tokens.

| paper                                   | here                                              |
|-----------------------------------------|---------------------------------------------------|
| Predict (section 3), p_2 .. p_k         | ``HeadsDrafter.propose``                          |
| p_1, and Verify                         | the scorer, with an acceptance rule               |
| the merged substeps (section 4)         | the heads read the states of the verifying pass   |
| k; k-hat                                | ``block_size``; accepted drafts and the next token|
| top-k selection (5.1)                   | ``accept_topk``, TopKMargin                       |
| epsilon (5.2)                           | ``accept_distance``, Distance                     |
| l, the minimum block size (5.3)         | ``min_block``, AtLeast                            |

p_1's own token needs no verification, so the loop commits it in the pass that predicts it, with the
block before it: a block of the paper is the last token of one pass and the drafts that the next
pass accepts. With perfect heads an output of m tokens, with ``</s>``, takes 1 + ceil((m-1)/k)
passes. Drafts after ``</s>`` are not verified.

Heads that see the next token (``--heads-see-token``, beyond the paper) read it where the loop has
committed it: the last committed token is p_1's choice at the state that the heads read.
"""

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import numpy as np

from ..batch import Numbers
from ..config import DecodingConfig
from ..decoding.acceptance import AtLeast, Distance, ExactMatch, TopKMargin, numbers_of
from ..decoding.drafting import BlockSizes, StateDrafter
from ..decoding.helper import check_block_size, move_to
from ..engine.chunk import ChunkScorer
from ..engine.native.drafts import NativeDrafting
from ..engine.native.library import Drafted, DraftedBy
from ..engine.native.stack import NativeHeads
from ..engine.projection import DraftProjection
from ..errors import UsageError, nan_error, option_error
from ..model_checks import has_heads
from ..model_facts import heads_of
from ..row import Row
from ..token_rules import TokenRules
from .base import Context, ParallelDecoder


class HeadsDrafter(StateDrafter):
    """Drafts the heads' best tokens, from the state that predicted the last committed token.

    Args:
        scorer: the verifier; the heads use its projection.
        heads: ``heads(states, [1, 2, ...], following)`` returns states that predict later tokens;
            see BlockHeads.
        args: see ModelDrafter. A block of k has at most k-1 drafted tokens: one token is the
            verifier's own.
    """

    def __init__(self, scorer: ChunkScorer, heads: Any, *args: Any) -> None:
        super().__init__(scorer, *args)
        self.heads = heads

    def hidden(self, rows: Sequence[Row], count: int) -> Any:
        """Run the heads."""
        following = None
        if self.heads.seen:
            assert self.states is not None  # the first pass has no draft
            last = [row.tokens[-1] for row in rows]
            following = self.scorer.embed(np.array(last))  # B×E
        return self.heads(self.states, range(1, count + 1), following)

    def natively(self) -> NativeDrafting | None:
        """Describe the drafter to the native loop, unless it drafts trees or is traced."""
        part = self.projection.part(self.scorer.projection, self.rules)
        known = isinstance(self.heads, NativeHeads) and self.scorer.writes(part)
        if self.traced or self.most_nodes is not None or not known:
            return None
        how = Drafted(
            by=DraftedBy.HEADS,
            most=self.sizes.most,
            adaptive=self.sizes.adaptive,
            heads=addressof(self.heads.structure),
        )
        return NativeDrafting(how, linear=part.linear, nan_error=self.nan_error)

    def nan_error(self) -> UsageError:
        """Return an error that names the model with the heads."""
        flag = "--path" if has_heads([self.scorer.model]) else "--drafter-path"
        return nan_error(flag, [self.heads])


class BlockwiseDecoder(ParallelDecoder):
    """``--decoding blockwise``, of a model with heads, or of a Transformer with heads beside it.

    Raises:
        UsageError: options do not fit the model or the dictionary.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context)
        drafter = context.drafter
        self.helper = drafter
        self.heads = heads_of(models[0] if drafter is None else drafter)
        check_block_size(config.block_size, self.heads.block_size, "as trained")
        if config.min_block > config.block_size:
            raise option_error(
                "--min-block", config.min_block, f"at most the block size, {config.block_size}"
            )
        assert isinstance(self.scorer, ChunkScorer)  # the task refuses ensembles
        self.projection = DraftProjection(
            self.scorer.model, config.drafter_shortlist, self.words, self.config.drafter_dtype
        )
        limit = config.accept_distance
        self.near: Distance | None = None
        if limit is not None:
            self.near = Distance(limit, numbers_of(self.words, limit))

    def acceptance(self) -> ExactMatch:
        """Return the rule that the flags name; the default is the exact one of section 3.

        With a distance of 0, or top-1, only the verifier's choice is accepted.
        """
        rule = ExactMatch()
        if self.config.accept_topk > 1:
            rule = TopKMargin(self.config.accept_topk)
        if self.near is not None and self.near.limit > 0:
            rule = self.near
        if self.config.min_block > 1:
            rule = AtLeast(rule, self.config.min_block - 1, self.pad)
        return rule

    def make_drafter(self, rows: Sequence[Row], source: Numbers, rules: TokenRules) -> HeadsDrafter:
        """Return the drafter for one batch."""
        assert isinstance(self.scorer, ChunkScorer)  # the task refuses ensembles
        move_to(self.models, self.heads)
        heads = self.scorer.heads(self.heads, self.config.drafter_dtype)
        sizes = BlockSizes(self.config.block_size - 1, len(rows), self.config.adaptive_block)
        return HeadsDrafter(
            self.scorer,
            heads,
            self.projection,
            rules,
            sizes,
            self.record_tokens,
            self.config.draft_tree,
        )
