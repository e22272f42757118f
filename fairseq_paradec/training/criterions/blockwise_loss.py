"""The loss of blockwise heads: head i predicts the token i places ahead (Stern et al. 2018).

Section 6: each mini-batch trains one of the k losses, drawn uniformly, an unbiased estimate of
their mean; ``--heads-per-update all`` trains the mean itself.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from ...errors import option_error
from ...plugin.models.blockwise_transformer import HeadsOutput
from .projected_cross_entropy import BlocksLoss, projected_cross_entropy

HEADS_PER_UPDATE = ("one", "all")


@dataclass
class BlockwiseLossConfig(FairseqDataclass):
    """Flags of the loss."""

    label_smoothing: float = field(default=0.1, metadata={"help": "label smoothing, 0 for none"})
    heads_per_update: str = field(
        default="one",
        metadata={
            "help": "the heads trained on a mini-batch. one (the paper's): one head, drawn "
            "uniformly; all: the mean of all losses, with more memory and time"
        },
    )
    first_head_weight: float = field(
        default=1.0,
        metadata={
            "help": "weight of head 1 in the mean of --heads-per-update all; others have 1. Head 1 "
            "alone writes the outputs: with more weight, a small base keeps them in fine-tuning"
        },
    )


@register_criterion("blockwise_loss", dataclass=BlockwiseLossConfig)
class BlockwiseLoss(BlocksLoss):
    """Label-smoothed cross entropy of prediction heads."""

    #: The pair of architecture and criterion; see ``plugin/tasks/choosing.py``.
    trains = ("blockwise_transformer", "blockwise_loss")

    def __init__(self, cfg: BlockwiseLossConfig, task: Any) -> None:
        super().__init__(task)
        if not 0 <= cfg.label_smoothing <= 1:
            raise option_error("--label-smoothing", cfg.label_smoothing, "a number from 0 to 1")
        if cfg.heads_per_update not in HEADS_PER_UPDATE:
            allowed = ", ".join(HEADS_PER_UPDATE)
            raise option_error("--heads-per-update", cfg.heads_per_update, allowed)
        if not 0 < cfg.first_head_weight < math.inf:
            raise option_error("--first-head-weight", cfg.first_head_weight, "a number above 0")
        if cfg.first_head_weight != 1 and cfg.heads_per_update == "one":
            allowed = "1, or --heads-per-update all"
            raise option_error("--first-head-weight", cfg.first_head_weight, allowed)
        self.smoothing = cfg.label_smoothing
        self.heads_per_update = cfg.heads_per_update
        self.weights = (cfg.first_head_weight, 1.0)

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of a batch.

        In validation it is the (weighted) mean over all heads, with head 0.

        Returns:
            The loss, summed over the tokens; their number; and the logged values.
        """
        target = sample["target"]  # B×T
        count = model.block_heads.block_size
        heads = self.draw_heads(model.trained_heads) if model.training else list(range(count))
        output: HeadsOutput = model(**sample["net_input"], heads=heads)
        truths = [ahead(target, head, self.padding_idx) for head in heads]  # B×T each
        # The heads' weights do not depend on their numbers of tokens.
        weights = [self.weights[min(head, 1)] for head in heads]
        reals = [truth.ne(self.padding_idx) for truth in truths]
        sizes = [int(real.sum()) for real in reals]
        sample_size = sizes[0]
        loss = nll_loss = output.hidden.new_zeros(())
        scored, right = torch.zeros(2, count, *target.shape, dtype=torch.bool, device=target.device)
        for slot, head in enumerate(heads):
            real = reals[slot]
            states = output.hidden[:, :, slot][real]  # N×D
            projected = projected_cross_entropy(
                states, output.projection, truths[slot][real], self.smoothing
            )
            share = sample_size / max(sizes[slot], 1) * weights[slot] / sum(weights)
            loss = loss + share * projected.loss
            nll_loss = nll_loss + share * projected.nll_loss
            scored[head] = real
            right[head, real] = projected.right
        logging = {
            "loss": loss.data,
            "nll_loss": nll_loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
            "scored_at": scored.sum(dim=(1, 2)).cpu(),  # K
            "right_at": right.sum(dim=(1, 2)).cpu(),  # K
        }
        if not model.training:
            logging["blocks"] = scored[0].sum().item()
            logging["accepted"] = right.long().cumprod(dim=0).sum().item()
        return loss, sample_size, logging

    def draw_heads(self, trained: list[int]) -> list[int]:
        """Choose the heads that a mini-batch trains, among the trainable ones."""
        if self.heads_per_update == "all":
            return trained
        return [trained[int(torch.randint(len(trained), ()))]]


def ahead(target: Tensor, head: int, pad: int) -> Tensor:
    """Shift targets to a head's targets: B×T -> B×T, ``<pad>`` after the last token."""
    shifted = torch.full_like(target, pad)
    shifted[:, : max(target.size(1) - head, 0)] = target[:, head:]
    return shifted
