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

import torch
from torch import Tensor

from ..decoding.acceptance import ExactMatch, TopKMargin
from ..decoding.drafting import BlockSizes, ScoredDrafter
from ..decoding.engine.block import BlockScorer
from ..decoding.engine.chunk import ChunkScorer
from ..decoding.engine.projection import DraftProjection
from ..decoding.row import Row
from ..decoding.token_rules import TokenRules
from ..errors import UsageError, nan_error, option_error
from .base import ParallelGenerator


class BlockDrafter(ScoredDrafter):
    """Drafts the block model's most likely token at each of the next k positions.

    Args:
        scorer: the block model; its encoder has not run yet.
        projection: the draft projection, of all tokens or of a shortlist.
        rules: which tokens are allowed at a position.
        sizes: the number of drafted tokens of each row, at most k.
    """

    def __init__(
        self,
        scorer: BlockScorer,
        projection: DraftProjection,
        rules: TokenRules,
        sizes: BlockSizes,
    ) -> None:
        super().__init__(rules, sizes)
        self.scorer = scorer
        self.projection = projection

    def scores(self, rows: Sequence[Row], count: int, whole: bool) -> Tensor:
        """Fill a block after each row's prefix, B×K×V."""
        # Always k masks: they attend to each other, so fewer masks would change the draft.
        hidden = self.scorer.fill([row.tokens for row in rows], self.sizes.most)
        return self.projection.logits(self.scorer.projection, hidden[:, :count], whole)

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
        check_block_size(config.block_size, drafter)
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
        like = self.model.models[0].decoder.embed_tokens.weight
        own = self.drafter.decoder.embed_tokens.weight
        if (own.dtype, own.device) != (like.dtype, like.device):
            self.drafter.to(dtype=like.dtype, device=like.device)
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


def check_block_size(block_size: int, drafter: Any) -> None:
    """Refuse a block size above the drafter's number of positions."""
    positions = drafter.decoder.max_positions()
    if block_size > positions:
        raise option_error("--block-size", block_size, f"at most {positions}, its positions")


def check_shared_encoder(models: Sequence[Any], drafter: Any, path: str | None) -> None:
    """Refuse a drafter that was trained on another encoder than the verifier's.

    The drafter's checkpoint holds a copy of the encoder. The tolerance admits copies in other
    precisions.
    """
    if len(models) > 1:
        raise option_error(
            "--path", f"{len(models)} models",
            f"one, the verifier on whose encoder --drafter-path {path} was trained",
        )  # fmt: skip
    own, other = drafter.encoder.state_dict(), models[0].encoder.state_dict()
    same = own.keys() == other.keys() and all(
        own[k].shape == other[k].shape
        and torch.allclose(own[k].float().cpu(), other[k].float().cpu(), rtol=1e-2, atol=1e-3)
        for k in own
    )
    if not same:
        raise option_error(
            "--drafter-path", path,
            "a drafter that was trained on this verifier's encoder (--share-verifier-encoder, "
            "--encoder-from), or on one of its own",
        )  # fmt: skip
