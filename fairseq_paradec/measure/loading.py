"""Loading for measurement: checkpoints in fp32, sentences by length, generators."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import Any

from fairseq import checkpoint_utils

from ..errors import option_error
from .text import holds_images

# What images are decoded as.
IMAGE_TASK = "image_super_resolution"


def check_inputs(data: str, path: str, flag: str = "DATA") -> None:
    """Refuse a data folder or a checkpoint that is not there.

    Args:
        data: fairseq's data folder.
        path: the checkpoint, or several with ``:`` between them.
        flag: the data folder's, for the message.

    Raises:
        UsageError: one is missing.
    """
    if not os.path.isdir(data):
        raise option_error(flag, data, "a folder made by fairseq-preprocess")
    for one in path.split(os.pathsep):
        if not os.path.isfile(one):
            raise option_error("--path", one, "a fairseq checkpoint")


def load(data: str, path: str) -> tuple[list[Any], Any]:
    """Load a checkpoint for inference in fp32.

    Args:
        data: fairseq's data folder.
        path: the checkpoint, or several with ``:`` between them.

    Returns:
        The models and the task.

    Raises:
        UsageError: the data are images, and the model was not trained on such.
    """
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        path.split(os.pathsep), arg_overrides={"data": data}
    )
    if holds_images(data) and not hasattr(task, "image_sizes"):
        allowed = f"a model of --task {IMAGE_TASK}: DATA ({data}) holds images"
        raise option_error("--path", path, allowed)
    for model in models:
        model.float().prepare_for_inference_(cfg)
    return models, task


def batches(task: Any, subset: str, batch_size: int, limit: int | None) -> Iterator[dict[str, Any]]:
    """Yield a subset's batches in fairseq's order, by length.

    Args:
        task: with the data folder.
        subset: its name, for example ``test``.
        batch_size: sentences per batch; the last one holds the rest.
        limit: how many sentences, evenly chosen from short to long whatever the batch size; None
            for all.

    Raises:
        UsageError: there is no such subset.
    """
    if subset not in task.datasets:
        task.load_dataset(subset)
    dataset = task.dataset(subset)
    order = by_length(dataset)
    if limit is not None:
        order = order[:: max(1, len(order) // limit)][:limit]
    for start in range(0, len(order), batch_size):
        yield dataset.collater([dataset[i] for i in order[start : start + batch_size]])


def by_length(dataset: Any) -> list[int]:
    """Return the numbers of a subset's sentences, from short to long.

    Those of equal length come in the same order each time; fairseq shuffles them, unless the subset
    is called ``test``.
    """
    sizes, targets = dataset.src_sizes, dataset.tgt_sizes
    numbers = range(len(sizes))
    if targets is None:
        return sorted(numbers, key=sizes.__getitem__)
    return sorted(numbers, key=lambda i: (sizes[i], targets[i]))


def generator(task: Any, models: Sequence[Any], **options: Any) -> Any:
    """Build a generator from options named as their flags are."""
    return task.build_generator(list(models), argparse.Namespace(**options))
