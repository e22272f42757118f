"""fairseq's Adam in one call of torch for all weights."""

import math
from collections import defaultdict
from typing import Any

import torch
from fairseq.optim.adam import Adam, FairseqAdam


def adam_step(given: Any) -> bool:
    """Make a step of fairseq's Adam with torch's fused kernel, if it can.

    The numbers are fairseq's, but for rounding: fairseq adds epsilon to the root of the uncorrected
    second moment, torch to that of the corrected one, so torch gets a larger epsilon in the first
    updates. The state is fairseq's, so that checkpoints fit both.

    Returns:
        Whether the step was made. It is not where the optimizer is another one, also one around
        Adam that scales gradients, or a weight is not fp32 on the CPU.
    """
    if type(given) is not FairseqAdam or type(given.optimizer) is not Adam:
        return False
    optimizer = given.optimizer
    groups = optimizer.param_groups
    weights = [p for group in groups for p in group["params"] if p.grad is not None]
    if any(group.get("amsgrad", False) for group in groups) or not all(map(_fits, weights)):
        return False
    for group in groups:
        by_step: dict[int, list[Any]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = optimizer.state[weight]
            if not state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(weight) for _ in "12")
            state["step"] += 1
            by_step[state["step"]].append(weight)
        for step, some in by_step.items():
            _fused(group, step, some, [optimizer.state[weight] for weight in some])
    return True


def _fits(weight: torch.Tensor) -> bool:
    """Return whether torch's kernel takes a weight and its gradient."""
    grad = weight.grad
    assert grad is not None
    dtypes, kinds = {weight.dtype, grad.dtype}, {weight.device.type, grad.device.type}
    return dtypes == {torch.float32} and kinds == {"cpu"} and not grad.is_sparse


@torch.no_grad()
def _fused(group: Any, step: int, weights: list[torch.Tensor], states: list[Any]) -> None:
    """Update weights that have made the same number of steps, this one included."""
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        weights,
        [weight.grad for weight in weights],  # type: ignore[misc]
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [torch.tensor(float(step))] * len(weights),
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"] / math.sqrt(1 - beta2**step),
        amsgrad=False,
        maximize=False,
    )
