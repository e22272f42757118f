"""The loss of GAD's drafter: predict the k tokens after a prefix of random length.

Xia et al. 2022, section 3: from a target of n tokens (and ``</s>``) a prefix length p is drawn
uniformly from 0..n, and the next k tokens are predicted from masks, with glancing. Positions after
``</s>`` are not part of the loss.

Beyond the paper: ``--prefixes-after-errors``, prefixes as decoding meets them; and
``--position-decay``, weights that fall along a block (as Medusa's heads have, Cai et al. 2024).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import Tensor

from ...config import flag
from ...errors import option_error
from ...plugin.models.block_nat import TRIES, BlockOutput
from .projected_cross_entropy import BlocksLoss, projected_cross_entropy

ENDLESS = 300_000  # updates in which glancing falls in a run without an end: the paper's
#: Flags that are numbers from 0 to 1, and the least of those that are whole numbers.
SHARES = (
    "label_smoothing",
    "prefixes_after_errors",
    "position_decay",
    "glancing_ratio",
    "glancing_ratio_end",
)
LEAST = {"prefixes_per_sentence": 1, "tokens_per_prefix": 0, "glancing_updates": 0}


@dataclass
class BlockNatLossConfig(FairseqDataclass):
    """Flags of the loss."""

    label_smoothing: float = field(default=0.1, metadata={"help": "label smoothing, 0 for none"})
    prefixes_per_sentence: int = field(
        default=1,
        metadata={
            "help": "number of prefix lengths drawn, without repetition, from each sentence in one "
            "pass; more than 1 needs --drafter-attention prefix_causal. A large number draws all"
        },
    )
    tokens_per_prefix: int = field(
        default=0,
        metadata={
            "help": "draw one prefix per this many tokens of a target if that is more than "
            "--prefixes-per-sentence, so that long texts are learned as well as short ones; needs "
            "--drafter-attention prefix_causal, and memory that grows with the square of a text's "
            "length. 0: the same number of prefixes for long and short texts"
        },
    )
    prefixes_after_errors: float = field(
        default=0.0,
        metadata={
            "help": "this share of a sentence's prefixes end right behind a token that the drafter "
            "now gets wrong as the first of a block, as prefixes in decoding do; uniform ones take "
            "the place of those that are missing. Needs --drafter-attention prefix_causal, and a "
            "pass without gradients"
        },
    )
    position_decay: float = field(
        default=1.0,
        metadata={
            "help": "in training the i-th token of a block, from 0, weighs this to the power of i "
            "in the loss: a token counts only if all before it are right"
        },
    )
    glancing_ratio: float = field(
        default=0.5,
        metadata={
            "help": "reveal this share of the wrongly predicted tokens, at the start of training; "
            "0 for no glancing, which saves a pass"
        },
    )
    glancing_ratio_end: float = field(
        default=0.3,
        metadata={"help": "the share at the end, at most that of the start; falls linearly"},
    )
    glancing_updates: int = field(
        default=0,
        metadata={
            "help": "updates in which --glancing-ratio falls to its end. 0: those of --max-update, "
            "or --max-epoch's epochs (from one to the next), whichever end first; without an end "
            f"{ENDLESS:,}"
        },
    )
    max_update: int = II("optimization.max_update")
    max_epoch: int = II("optimization.max_epoch")


@register_criterion("block_nat_loss", dataclass=BlockNatLossConfig)
class BlockNatLoss(BlocksLoss):
    """Label-smoothed cross entropy of the masked tokens of blocks."""

    #: The pair of architecture and criterion; see ``plugin/tasks/choosing.py``.
    trains = ("block_nat", "block_nat_loss")

    def __init__(self, cfg: BlockNatLossConfig, task: Any) -> None:
        super().__init__(task)
        for name in SHARES:
            if not 0 <= getattr(cfg, name) <= 1:
                raise option_error(flag(name), getattr(cfg, name), "a number from 0 to 1")
        for name, least in LEAST.items():
            if getattr(cfg, name) < least:
                allowed = f"a whole number from {least} up"
                raise option_error(flag(name), getattr(cfg, name), allowed)
        self.smoothing = cfg.label_smoothing
        self.prefixes = cfg.prefixes_per_sentence
        self.tokens_per_prefix = cfg.tokens_per_prefix
        self.after_errors = cfg.prefixes_after_errors
        self.position_decay = cfg.position_decay
        self.ratio = (cfg.glancing_ratio, min(cfg.glancing_ratio, cfg.glancing_ratio_end))
        self.glancing_updates = cfg.glancing_updates or cfg.max_update
        self.epochs = 0 if cfg.glancing_updates else cfg.max_epoch
        if not self.glancing_updates and not self.epochs:
            self.glancing_updates = ENDLESS

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int | Tensor, dict[str, Any]]:
        """Compute the loss of a batch.

        Returns:
            The loss summed over the masked tokens, their number, and the logged values.
        """
        target = sample["target"]  # B×T
        net_input = sample["net_input"]
        size = model.draw_block_size() if model.training else model.block_size
        behind = None
        if model.training and self.after_errors:
            behind = self.behind_errors(model, net_input, target, size)
        starts, drawn = self.draw_prefixes(target, model.training, behind)
        truth = blocks(target, starts, drawn, size, self.padding_idx)  # B×J×K
        ratio = self.glancing_ratio(model.num_updates) if model.training else 0.0
        output: BlockOutput = model(
            net_input["src_tokens"],
            net_input["src_lengths"],
            target=target,
            starts=starts,
            truth=truth,
            glancing_ratio=ratio,
        )
        answers = truth[output.scored]  # N
        shares = None
        if model.training and self.position_decay < 1:
            index = torch.arange(size, device=truth.device)
            shares = (self.position_decay**index).expand_as(truth)[output.scored]
        projected = projected_cross_entropy(
            output.hidden, output.projection, answers, self.smoothing, shares
        )
        sample_size = answers.numel()
        right = torch.zeros_like(output.scored)
        right[output.scored] = projected.right
        missing = (0, model.block_size - size)
        logging = {
            "loss": projected.loss.data,
            "nll_loss": projected.nll_loss,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
            "scored_at": F.pad(output.scored.sum(dim=(0, 1)), missing).cpu(),  # the model's K
            "right_at": F.pad(right.sum(dim=(0, 1)), missing).cpu(),
        }
        if not model.training:
            logging["blocks"] = drawn.sum().item()
            logging["accepted"] = right.long().cumprod(dim=-1).sum().item()
        return projected.loss, sample_size, logging

    def glancing_ratio(self, num_updates: int) -> float:
        """Return the glancing ratio after ``num_updates`` updates."""
        first, last = self.ratio
        done = num_updates / self.glancing_updates if self.glancing_updates else 0.0
        if self.epochs:
            # Epochs have equal lengths, but fairseq tells a loss neither that nor where one begins.
            begun = getattr(self.task, "epoch", 1) - 1
            done = max(done, begun / max(self.epochs - 1, 1))
        return first + (last - first) * min(done, 1.0)

    def behind_errors(
        self, model: Any, net_input: dict[str, Tensor], target: Tensor, size: int
    ) -> Tensor:
        """Find prefixes that end with a token which the model would have got wrong.

        Prefix lengths q are tried, drawn as in ``draw_prefixes`` but four times as many: prefix
        q + 1 is one if the model's first token behind prefix q is not the target's.

        Args:
            model: the drafter.
            net_input: the source.
            target: B×T, padded at the end.
            size: K, the number of masks.

        Returns:
            B×T, whether a prefix of this length is one.
        """
        starts, drawn = self.draw_prefixes(target, True, tries=TRIES)
        source = net_input["src_tokens"], net_input["src_lengths"]
        wrong = model.first_tokens(*source, target, starts, size) != target.gather(1, starts)
        behind = torch.zeros_like(F.pad(target, (0, 1)), dtype=torch.bool)
        behind.scatter_(1, starts + 1, wrong & drawn)
        return behind[:, :-1] & target.ne(self.padding_idx)  # nothing follows </s>

    def draw_prefixes(
        self, target: Tensor, training: bool, behind: Tensor | None = None, tries: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Draw prefix lengths, uniformly from 0..n and without repetition in a sentence.

        Args:
            target: B×T, padded at the end.
            training: False (validation): draw the same lengths each time.
            behind: B×T; of a sentence's J prefixes, J times the share of
                ``--prefixes-after-errors``, rounded at random, are drawn from these while there are
                any. All others are drawn from the rest.
            tries: draw this many times as many prefixes.

        Returns:
            starts: B×J prefix lengths, where J is the batch's largest number per sentence.
            drawn: B×J, False where a sentence has fewer prefixes.
        """
        real = target.ne(self.padding_idx)  # position t is real if and only if t <= n
        least, spacing = self.prefixes, self.tokens_per_prefix
        wanted = torch.full_like(target[:, :1], least)  # B×1
        most = least
        if spacing:
            wanted = real.sum(dim=1, keepdim=True).add(spacing - 1)
            wanted = wanted.div(spacing, rounding_mode="floor").clamp(min=least)
            most = max(least, -(-target.size(1) // spacing))
        generator = None
        if not training:
            generator = torch.Generator(target.device).manual_seed(target.size(1))
        lots = torch.rand(target.shape, device=target.device, generator=generator)
        if behind is not None:
            share = wanted * self.after_errors
            share = (share + torch.rand(share.shape, device=target.device)).floor()
            rank = lots.masked_fill(~behind, -1.0).argsort(descending=True).argsort()
            lots = lots + (behind & (rank < share))
        lots.masked_fill_(~real, -1.0)
        best, starts = lots.topk(min(most * tries, target.size(1)), dim=1)
        index = torch.arange(starts.size(1), device=target.device)
        return starts, (best >= 0) & (index < wanted * tries)


def blocks(target: Tensor, starts: Tensor, drawn: Tensor, size: int, pad: int) -> Tensor:
    """Gather the blocks' true tokens from targets.

    Args:
        target: B×T, padded at the end.
        starts: B×J, the first position of each block.
        drawn: B×J; blocks that are False are empty.
        size: K.
        pad: the filling after ``</s>``, where there is no loss.

    Returns:
        B×J×K tokens.
    """
    where = starts[:, :, None] + torch.arange(size, device=target.device)  # B×J×K
    inside = (where < target.size(1)) & drawn[:, :, None]
    where = where.clamp(max=target.size(1) - 1).flatten(1)
    return target.gather(1, where).view_as(inside).masked_fill(~inside, pad)
