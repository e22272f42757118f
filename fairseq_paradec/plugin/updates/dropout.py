"""Dropout from 16 random bits an element.

On a CPU torch draws a number of double precision for each element, which takes longer than a small
model's matrix product. A probability is rounded to 1/65536 here, and what is kept is scaled by the
rounded one, so that the mean is right.
"""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEPS = 1 << 16  # probabilities are multiples of 1/STEPS


def dropout(x: Tensor, p: float) -> Tensor:
    """Drop each element with probability p, and scale the others by 1/(1-p).

    The bits are torch's default generator's.

    Args:
        x: on any device; off the CPU this is torch's dropout.
        p: from 0 to 1.
    """
    dropped = round(p * STEPS)
    if x.device.type != "cpu" or dropped >= STEPS:
        return F.dropout(x, p)
    result: Tensor = _Dropout.apply(x, dropped)
    return result


class _Dropout(torch.autograd.Function):
    """Products with a mask; the mask is kept for the backward pass, a byte an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        # In the order of x in memory, which need not be that of its dimensions.
        strides = torch.empty_like(x, device="meta").stride()
        keep = words.view(torch.int16).as_strided(x.shape, strides) >= dropped - STEPS // 2
        ctx.save_for_backward(keep)
        ctx.scale = STEPS / (STEPS - dropped)
        return _masked(x, keep, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return _masked(grad, keep, ctx.scale), None


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """Return x · scale where ``keep`` is true, and 0 elsewhere."""
    return (x * keep).mul_(scale)


class QuickFairseqDropout(FairseqDropout):
    """fairseq's module with this dropout."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Drop elements in training; ``inplace`` is ignored."""
        if self.p > 0 and (self.training or self.apply_during_inference):
            return dropout(x, self.p)
        return x


class QuickTorchDropout(nn.Dropout):
    """torch's module with this dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements in training."""
        return dropout(x, self.p) if self.training and self.p > 0 else x


_QUICK: dict[type, type] = {FairseqDropout: QuickFairseqDropout, nn.Dropout: QuickTorchDropout}


def quicken_dropout(model: nn.Module) -> None:
    """Let all dropout modules of a model use this dropout; attention's own is left as it is."""
    for module in model.modules():
        module.__class__ = _QUICK.get(type(module), type(module))
