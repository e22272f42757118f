"""What the losses of drafters and heads are tested on: new models, sentence pairs, a few steps."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.data import LanguagePairDataset
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from support.builders import source_rows, sources

#: Lengths with `</s>`; the collater puts the longest source first. Some targets are shorter than
#: a block.
SOURCE_LENGTHS = (3, 8, 5, 2)
TARGET_LENGTHS = (6, 1, 10, 4)


def build(task: Any, arch: str, **options: Any) -> Any:
    """A new model of this architecture with these flags, as fairseq builds it."""
    args = argparse.Namespace(**options)
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    model.flags = args  # as they stand in a checkpoint
    return model


def pairs(
    task: Any,
    times: int = 1,
    seed: int = 0,
    source_lengths: Sequence[int] = SOURCE_LENGTHS,
    target_lengths: Sequence[int] = TARGET_LENGTHS,
) -> dict[str, Any]:
    """A batch of random sentence pairs, as fairseq's dataset makes it."""
    lengths = [[*source_lengths] * times, [*target_lengths] * times]
    source, target = (sources(task, one, seed + i) for i, one in enumerate(lengths))
    dataset = LanguagePairDataset(
        source,
        lengths[0],
        task.source_dictionary,
        target,
        lengths[1],
        task.target_dictionary,
        shuffle=False,
    )
    sample: dict[str, Any] = dataset.collater([dataset[i] for i in range(len(source))])
    return sample


def rows_of(sample: Mapping[str, Any]) -> list[tuple[list[int], list[int]]]:
    """The batch's sources and targets without padding, as the twins want them."""
    targets = [[t for t in row if t != 1] for row in sample["target"].tolist()]
    return list(zip(source_rows(sample), targets, strict=True))


def teach(model: Any, criterion: Any, samples: Sequence[Any], updates: int = 12) -> None:
    """Let the model be right at some places: a few steps, on one batch after another."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    torch.manual_seed(0)
    for update in range(updates):
        loss, _, _ = criterion(model.train(), samples[update % len(samples)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def same_weights(a: Any, b: Any) -> bool:
    """Whether two modules have the same weights, bit by bit."""
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(mine[k].equal(other[k]) for k in mine)


def logged(criterion: Any, updates: Sequence[list[dict[str, Any]]]) -> dict[str, float]:
    """What fairseq's log says of what the processes have of each update."""
    with metrics.aggregate() as log:
        for outputs in updates:
            criterion.reduce_metrics(outputs)
    return {name: float(value) for name, value in log.get_smoothed_values().items()}
