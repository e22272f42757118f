"""Cross entropy of a projection to the vocabulary, without all of its logits in memory at once.

The N×V logits of many masked positions take more memory and time than the rest of a small model.
This loss computes them for a few rows at a time, together with the gradient.
"""

from typing import Any, NamedTuple

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor

# Logits that are computed at a time, by kind of device: on a CPU few, for its cache, but enough
# rows for fast products.
CHUNK = {"cpu": 1 << 22, "cuda": 1 << 26}


class ProjectedLoss(NamedTuple):
    """The result of ``projected_cross_entropy``."""

    loss: Tensor  # label-smoothed negative log-likelihood, summed
    nll_loss: Tensor  # the same without smoothing; carries no gradient
    right: Tensor  # N, whether the answer is the most likely token


def projected_cross_entropy(
    hidden: Tensor, weight: Tensor, answers: Tensor, smoothing: float, shares: Tensor | None = None
) -> ProjectedLoss:
    """Compute fairseq's label-smoothed loss of ``hidden @ weight.T``.

    Args:
        hidden: N×D.
        weight: V×D, of a projection without bias.
        answers: N tokens.
        smoothing: label smoothing, spread over the V-1 other tokens.
        shares: N, the weight of each row in ``loss``; None: all are 1.
    """
    if not torch.is_grad_enabled():  # ctx.needs_input_grad is True for parameters in validation too
        weight = weight.detach()
    parts = _ProjectedCrossEntropy.apply(hidden, weight, answers, smoothing, shares)
    return ProjectedLoss(*parts)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Loss and gradient in one loop over the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        answers: Tensor,
        smoothing: float,
        shares: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        device = hidden.device.type
        wants_gradient, weight_learns = any(ctx.needs_input_grad), ctx.needs_input_grad[1]
        precise = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        other = smoothing / (weight.size(0) - 1)  # the target share of each wrong token
        rest = 1 - smoothing - other  # the answer's target share above that
        weight_sum = weight.sum(dim=0, dtype=precise)  # D
        ctx.dtypes = hidden.dtype, weight.dtype
        if torch.is_autocast_enabled(device):  # once, not for each chunk
            weight = weight.to(torch.get_autocast_dtype(device))
        # Separate tensors, no views: fairseq multiplies an ignored loss by 0 in place.
        loss = torch.zeros((), dtype=precise, device=hidden.device)
        nll_loss = torch.zeros_like(loss)
        right = torch.empty_like(answers, dtype=torch.bool)
        grad_hidden = torch.empty(hidden.shape, dtype=precise, device=hidden.device)
        grad_weight = torch.zeros(weight.shape, dtype=precise, device=hidden.device)
        size = max(64, CHUNK.get(device, CHUNK["cuda"]) // weight.size(0))
        one_kind = hidden.dtype == weight.dtype == precise
        for start in range(0, len(answers), size):
            rows = slice(start, start + size)
            answer = answers[rows, None]  # n×1
            logits = hidden[rows] @ weight.T  # n×V
            probs = logits.softmax(dim=-1, dtype=precise)
            # 1. The loss, from the logits' log-sum-exp; the largest probability is at least 1/V.
            best = logits.amax(dim=-1, keepdim=True)
            log_sum = best.to(precise) - probs.amax(dim=-1, keepdim=True).log()
            chosen = logits.gather(1, answer)
            nll = log_sum - chosen  # n×1
            nll_loss += nll.sum()
            with torch.autocast(device, enabled=False):  # --amp: the sum exceeds the range of fp16
                sum_logits = (hidden[rows].to(precise) @ weight_sum)[:, None]
            sum_log_probs = sum_logits - weight.size(0) * log_sum
            each = rest * nll - other * sum_log_probs
            loss += each.sum() if shares is None else (each * shares[rows, None]).sum()
            right[rows] = (chosen == best).squeeze(1)
            # 2. Its gradient: probabilities - smoothed target; the share of all tokens comes below.
            if wants_gradient:
                grad = probs.scatter_add_(1, answer, probs.new_full((), -rest).expand_as(answer))
                if shares is not None:
                    grad.mul_(shares[rows, None])
                grad = grad.to(hidden.dtype)
                grad_hidden[rows] = grad @ weight
                if weight_learns and one_kind:
                    grad_weight.addmm_(grad.T, hidden[rows])
                elif weight_learns:
                    grad_weight += grad.T @ hidden[rows]
        if wants_gradient:
            column = torch.ones_like(loss) if shares is None else shares[:, None]
            grad_hidden -= other * column * weight_sum
            grad_weight -= other * (column * hidden).sum(dim=0, dtype=precise)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(nll_loss, right)
        return loss, nll_loss, right

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        # Scale before rounding: in half precision the loss scale keeps gradients above zero.
        return (
            (grad_hidden * grad_loss).to(hidden_dtype),
            (grad_weight * grad_loss).to(weight_dtype) if ctx.needs_input_grad[1] else None,
            None,
            None,
            None,
        )


class BlocksLoss(FairseqCriterion):
    """What the losses of blocks and of heads have in common: what they log."""

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log loss and accuracies of sums over batches and processes.

        ``scored_at`` and ``right_at`` have a number for each block position or head. ``acc_i`` is
        the accuracy at position or of head i, counted from 1; ``accepted``, in validation, is the
        mean number of right ones before the first wrong one.
        """
        total = {
            name: sum(log.get(name, 0) for log in logging_outputs)
            for name in ("loss", "nll_loss", "sample_size", "blocks", "accepted")
        }
        size, bits = max(float(total["sample_size"]), 1.0), 0.6931471805599453
        metrics.log_scalar("loss", float(total["loss"]) / size / bits, size, round=3)
        metrics.log_scalar("nll_loss", float(total["nll_loss"]) / size / bits, size, round=3)
        if total["blocks"]:
            mean = total["accepted"] / total["blocks"]
            metrics.log_scalar("accepted", mean, total["blocks"], round=3)
        scored: Any = sum(log["scored_at"] for log in logging_outputs)
        right: Any = sum(log["right_at"] for log in logging_outputs)
        for slot, (count, good) in enumerate(zip(scored.tolist(), right.tolist(), strict=True), 1):
            if count:
                metrics.log_scalar(f"acc_{slot}", good / count, count, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: every logged value is a sum."""
        return True
