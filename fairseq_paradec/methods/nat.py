"""A block model alone: the drafter of GAD (Xia et al. 2022, Table 1) without a verifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.engine.block import BlockScorer
from ..decoding.row import Row
from ..decoding.token_rules import TokenRules
from ..decoding.trace import PassDetails, PassRecord
from ..errors import option_error
from .base import MethodGenerator
from .gad import check_block_size


class NatGenerator(MethodGenerator):
    """``--decoding nat``: the drafter alone, block by block; its output is nobody's greedy output.

    Args:
        models: one BlockNatModel.
        tgt_dict: the target dictionary.
        config: how to decode.
        kwargs: see ParallelGenerator.

    Raises:
        UsageError: it is another kind of model, or an ensemble.
    """

    def __init__(self, models: Sequence[Any], tgt_dict: Any, config: Any, **kwargs: Any) -> None:
        super().__init__(models, tgt_dict, config, **kwargs)
        check_block_size(config.block_size, models[0])

    def make_scorer(self, models: Sequence[Any]) -> BlockScorer:
        """Return the scorer of the one model."""
        name = type(models[0]).__name__
        if len(models) > 1 or not hasattr(models[0], "shares_encoder"):
            given = name if len(models) == 1 else f"{len(models)} models"
            raise option_error("--path", given, "one model of --arch block_nat, with nat")
        return BlockScorer(models[0], self.engine)

    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Fill blocks to the end; fairseq changes hypotheses in place, outside inference mode."""
        self._fill(net_input, rows, rules)
        return self._hypotheses(rows, rules)

    @torch.inference_mode()
    def _fill(self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules) -> None:
        """Encode, and commit each block as the model fills it."""
        scorer = self.scorer
        assert isinstance(scorer, BlockScorer)
        scorer.encode(net_input)
        live = list(rows)
        while live:
            # Always k masks: see BlockDrafter.propose.
            size = self.config.block_size
            hidden = scorer.fill([row.tokens for row in live], size)
            log_probs = scorer.log_probs(hidden, rules.temperature)  # B×K×V
            best, choices = rules.choose(log_probs, live)  # B×K each
            details = None
            if self.record_tokens:
                details = PassDetails(log_probs, best, choices[:, :0])
            for b, (row, tokens, scores) in enumerate(
                zip(live, choices.tolist(), best.tolist(), strict=True)
            ):
                count = min(size, row.room)
                record = PassRecord(len(row.tokens), 0, 0, count)
                row.commit(tokens[:count], scores, rules.eos)
                row.passes.append(record)
                if details is not None:
                    record.tokens = details.of_row(b, [], tokens[:count])
            stay = [b for b, row in enumerate(live) if not row.finished]
            if 0 < len(stay) < len(live):
                scorer.reorder(stay)
            live = [live[b] for b in stay]
