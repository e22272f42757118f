"""Sentences learned by heart: what every architecture can, unless it has a defect."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from support.builders import source_rows, tiny_task
from support.losses import pairs

#: Sizes of models that learn by heart in seconds.
SIZES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("embed_dim", 64), ("ffn_embed_dim", 128), ("attention_heads", 4))
} | {"encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}


def sentences(count: int = 100, seed: int = 0) -> tuple[Any, list[dict[str, Any]]]:
    """A task, and random pairs of sentences in two batches: nothing but words to remember."""
    task, lots = tiny_task(size=100), torch.Generator().manual_seed(seed)
    half = count // 2
    source = torch.randint(4, 11, (2, half), generator=lots).tolist()
    target = torch.randint(2, 11, (2, half), generator=lots).tolist()
    samples = [pairs(task, 1, seed + 5 * i, source[i], target[i]) for i in range(2)]
    sources = [tuple(row) for sample in samples for row in source_rows(sample)]
    assert len(set(sources)) == 2 * half
    return task, samples


def learn(
    model: Any, criterion: Any, samples: Sequence[dict[str, Any]], updates: int, lr: float = 0.003
) -> float:
    """Train by Adam, its rate rising for a tenth of the updates and then falling to 0.

    Returns the loss in nats for each scored token, over all samples.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=lr, betas=(0.9, 0.98))
    rise = updates / 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / rise, (updates - n) / (updates - rise))
    )
    torch.manual_seed(0)
    model.train()
    for update in range(updates):
        loss, size, _ = criterion(model, samples[update % len(samples)])
        optimizer.zero_grad()
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        ends = [criterion(model, sample)[:2] for sample in samples]
    found = math.fsum(float(loss) for loss, _ in ends) / sum(int(size) for _, size in ends)
    assert not math.isnan(found)
    return found


def targets_of(sample: dict[str, Any]) -> list[list[int]]:
    """A batch's targets without padding, `</s>` included."""
    return [[token for token in row if token != 1] for row in sample["target"].tolist()]
