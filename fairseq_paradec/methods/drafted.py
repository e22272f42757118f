"""Base of the methods whose drafts come from a second model."""

import abc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..batch import Numbers
from ..config import DecodingConfig
from ..decoding.acceptance import ExactMatch, TopKMargin
from ..decoding.drafting import BlockSizes
from ..decoding.helper import move_to
from ..engine.chunk import ChunkScorer
from ..engine.projection import DraftProjection
from ..row import Row
from .base import Context, ParallelDecoder


class DraftedDecoder(ParallelDecoder):
    """A verifier and a drafter, which gets its dtype and device, and may have its encoder.

    Attributes:
        on_verifiers_encoder: whether the verifier's encoder serves the drafter too.

    Raises:
        UsageError: the drafter does not fit the verifier, or options do not fit them.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context)
        self.config = self.with_draft_dtype(self.config)
        drafter = context.drafter
        self.draft_engine = self.engine
        if self.config.drafter_dtype is not None:
            self.draft_engine = replace(self.engine, dtype=self.config.drafter_dtype)
        drafter.eval()  # returns None for a model that is prepared for inference
        self.drafter = self.helper = drafter
        self.draft_scorer = self.make_draft_scorer(drafter)
        if config.drafter_dtype is None and not self.draft_scorer.native:  # has the verifier's
            self.config, self.draft_engine = replace(self.config, drafter_dtype=None), self.engine
            self.draft_scorer = self.make_draft_scorer(drafter)
        self.projection = DraftProjection(
            self.draft_scorer.model, config.drafter_shortlist, self.words
        )
        self.on_verifiers_encoder = self.shares_encoder(models, drafter)

    def with_draft_dtype(self, config: DecodingConfig) -> DecodingConfig:
        """Return options with the dtype of drafts for these models, unless it was given."""
        return config

    @abc.abstractmethod
    def make_draft_scorer(self, drafter: Any) -> Any:
        """Return the drafter's scorer."""

    @abc.abstractmethod
    def shares_encoder(self, models: Sequence[Any], drafter: Any) -> bool:
        """Return whether the verifier's encoder serves the drafter; refuse a wrong one."""

    def acceptance(self) -> ExactMatch:
        """Return the exact rule, or the relaxed one of GAD++ (Xia et al. 2022, section 4).

        With beta 1 or tau 0 only a top-1 token is accepted. ExactMatch then selects, among tokens
        that tie for the top 1, the one that greedy search chooses.
        """
        if self.lossless or self.sampling is not None:
            return ExactMatch()
        return TopKMargin(self.config.accept_topk, self.config.accept_margin)

    def block_sizes(self, rows: Sequence[Row]) -> BlockSizes:
        """Return the rows' block sizes; also give the drafter the verifier's dtype and device."""
        move_to(self.models, self.drafter)
        return BlockSizes(self.config.block_size, len(rows), self.config.adaptive_block)

    def join(self, scorers: dict[Any, Any], record_tokens: bool) -> None:
        """Also share the drafter's scorer; see Decoder.join."""
        super().join(scorers, record_tokens)
        name = f"drafts of {id(self.drafter)} in {self.draft_engine.dtype} for {self.engine.dtype}"
        self.draft_scorer = self._one_of(scorers, name, self.draft_scorer)

    def _encode_entering(self, source: Numbers) -> None:
        """Run the encoders for sentences that enter the batch; see ``_encode``."""
        assert isinstance(self.scorer, ChunkScorer)
        encoder_out = self.scorer.add(source)
        if self.draft_scorer.joined:
            return
        if self.on_verifiers_encoder:
            self.draft_scorer.add_encoded(encoder_out)
        else:
            self.draft_scorer.add(source)

    def _encode(self, source: Numbers) -> None:
        """Run the encoder, and the drafter's encoder if it has its own."""
        self.scorer.encode(source)
        if self.on_verifiers_encoder:
            assert isinstance(self.scorer, ChunkScorer)  # no ensemble
            self.draft_scorer.start(self.scorer.encoder_out)
        else:
            self.draft_scorer.encode(source)
