"""Loading for measurement: checkpoints in fp32, sentences by length, generators."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from fairseq import checkpoint_utils

from ..errors import option_error
from .text import holds_images

# What images are decoded as.
IMAGE_TASK = "image_super_resolution"


def check_inputs(data: str, path: str, flag: str = "DATA") -> None:
    """Refuse a missing data folder or checkpoint.

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
        UsageError: the data are images, and the model is for another task.
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


def by_length(dataset: Any) -> list[int]:
    """Return the numbers of a subset's sentences, from short to long.

    Sentences of equal length keep the order of the data; fairseq shuffles them, unless the subset
    is called ``test``.
    """
    sizes, targets = dataset.src_sizes, dataset.tgt_sizes
    numbers = range(len(sizes))
    if targets is None:
        return sorted(numbers, key=sizes.__getitem__)
    return sorted(numbers, key=lambda i: (sizes[i], targets[i]))


def evenly(items: list[int], count: int | None) -> list[int]:
    """Return ``count`` evenly spaced items; all of them if there are no more, or for None."""
    if count is None or count >= len(items):
        return items
    return [items[int(i * len(items) / count)] for i in range(count)]


def choose(task: Any, subset: str, models: Sequence[Any], count: int | None) -> list[int]:
    """Choose sentences from short to long, evenly spaced if not all of them.

    Empty sentences, and those that exceed a model's positions, cannot be decoded and are left out.

    Args:
        task: the task with the subset.
        subset: its name.
        models: all models that read the sentences.
        count: the number of sentences; None for all.

    Raises:
        UsageError: no sentence is left.
    """
    dataset = task.dataset(subset)
    longest = min(model.max_positions()[0] for model in models)
    order = [i for i in by_length(dataset) if 1 < dataset.src_sizes[i] <= longest]
    if not order:
        raise option_error("--subset", subset, "a subset with sentences that can be decoded")
    return evenly(order, count)


def generator(task: Any, models: Sequence[Any], **options: Any) -> Any:
    """Build a generator from options, by the flags' names."""
    return task.build_generator(list(models), argparse.Namespace(**options))
