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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.acceptance import AtLeast, Distance, ExactMatch, TopKMargin
from ..decoding.drafting import BlockSizes, ScoredDrafter
from ..decoding.engine.chunk import ChunkScorer
from ..decoding.engine.projection import DraftProjection
from ..decoding.loop import Proposal, Verdict, no_draft
from ..decoding.row import Row
from ..decoding.token_rules import TokenRules
from ..errors import UsageError, nan_error, option_error
from .base import ParallelGenerator


class HeadsDrafter(ScoredDrafter):
    """Drafts the heads' best tokens, from the state that predicted the last committed token.

    Args:
        scorer: the verifier; the heads use its projection.
        projection: the draft projection, of all tokens or of a shortlist.
        heads: ``heads(states, [1, 2, ...])`` returns states that predict later tokens; see
            BlockHeads.
        rules: which tokens are allowed at a position.
        sizes: the number of drafted tokens of each row, at most k-1: one token of a block of k is
            the verifier's own.
    """

    def __init__(
        self,
        scorer: ChunkScorer,
        projection: DraftProjection,
        heads: Any,
        rules: TokenRules,
        sizes: BlockSizes,
    ) -> None:
        super().__init__(rules, sizes)
        self.scorer = scorer
        self.projection = projection
        self.heads = heads
        self.states: Tensor | None = None  # B×D after the first pass

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft up to k-1 tokens for each row; none before the first pass."""
        return no_draft(len(rows)) if self.states is None else super().propose(rows)

    def scores(self, rows: Sequence[Row], count: int, whole: bool) -> Tensor:
        """Run the heads, B×K×V."""
        states = self.heads(self.states, range(1, count + 1))  # B×K×D
        logits = self.projection.logits(self.scorer.projection, states, whole)
        return logits if self.rules.temperature == 1.0 else logits / self.rules.temperature

    def nan_error(self) -> UsageError:
        """Return an error that names the model with the heads."""
        flag = "--path" if hasattr(self.scorer.model, "block_heads") else "--drafter-path"
        return nan_error(flag, [self.heads])

    def observe(self, verdict: Verdict) -> None:
        """Keep the states after the accepted tokens, B×R×D -> B×D."""
        if self.states is not None:  # the first pass has no draft
            super().observe(verdict)
        hidden: Tensor = verdict.hidden
        # A row that ends with a drafted </s> may have no state after it, and needs none.
        where = torch.tensor(verdict.num_accepted, device=hidden.device)
        where = where.clamp(max=hidden.size(1) - 1)
        self.states = hidden[torch.arange(hidden.size(0), device=hidden.device), where]

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the block sizes and states of these rows."""
        super().drop(stay)
        assert self.states is not None  # rows finish in passes
        self.states = self.states[list(stay)]


class BlockwiseGenerator(ParallelGenerator):
    """``--decoding blockwise``.

    Args:
        models: one model of --arch blockwise_transformer, or a Transformer with ``drafter``.
        tgt_dict: the target dictionary.
        config: the options of decoding.
        drafter: heads that were trained on the frozen Transformer.
        kwargs: see ParallelGenerator.

    Raises:
        UsageError: options do not fit the model or the dictionary.
    """

    def __init__(
        self, models: Sequence[Any], tgt_dict: Any, config: Any, drafter: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(models, tgt_dict, config, **kwargs)
        self.helper = drafter
        self.heads = models[0].block_heads if drafter is None else drafter
        if config.block_size > self.heads.block_size:
            raise option_error(
                "--block-size", config.block_size, f"at most {self.heads.block_size}, as trained"
            )
        if config.min_block > config.block_size:
            raise option_error(
                "--min-block", config.min_block, f"at most the block size, {config.block_size}"
            )
        assert isinstance(self.scorer, ChunkScorer)  # the task refuses ensembles
        self.projection = DraftProjection(self.scorer.model, config.drafter_shortlist, tgt_dict)
        self.numbers = None if config.accept_distance is None else _numbers(tgt_dict, config)

    def acceptance(self) -> ExactMatch:
        """Return the rule that the flags name; the default is the exact one of section 3.

        With a distance of 0, or top-1, only the verifier's choice is accepted.
        """
        rule = ExactMatch()
        if self.config.accept_topk > 1:
            rule = TopKMargin(self.config.accept_topk)
        if self.config.accept_distance and self.numbers is not None:
            rule = Distance(self.config.accept_distance, self.numbers)
        if self.config.min_block > 1:
            rule = AtLeast(rule, self.config.min_block - 1, self.pad)
        return rule

    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> HeadsDrafter:
        """Return the drafter for one batch."""
        assert isinstance(self.scorer, ChunkScorer)  # the task refuses ensembles
        like = self.model.models[0].decoder.embed_tokens.weight
        if self.heads.bias.dtype != like.dtype or self.heads.bias.device != like.device:
            self.heads.to(dtype=like.dtype, device=like.device)
        if self.numbers is not None:
            self.numbers = self.numbers.to(like.device)
        heads = getattr(self.scorer.model, "block_heads", None)
        if heads is None:
            heads = self.engine.model(self.heads).to(like.device)
        sizes = BlockSizes(self.config.block_size - 1, len(rows), self.config.adaptive_block)
        return HeadsDrafter(self.scorer, self.projection, heads, rules, sizes)


def _numbers(words: Any, config: Any) -> Tensor:
    """Return the number of each token of a dictionary, V; NaN for special symbols.

    Raises:
        UsageError: the dictionary has words that are no whole numbers.
    """
    special = words.nspecial
    fillers = [word.startswith("madeupword") for word in words.symbols]  # fairseq-preprocess's
    values = [float("nan")] * len(words)
    for token in range(special, len(words)):
        if fillers[token]:
            continue
        if not words[token].isdecimal():
            raise option_error(
                "--accept-distance", config.accept_distance,
                f"it with a dictionary of whole numbers; {words[token]!r} has no distance",
            )  # fmt: skip
        values[token] = float(words[token])
    return torch.tensor(values, dtype=torch.float64)  # whole numbers up to 2^53 are exact
