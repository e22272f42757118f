"""What loads models and data, and the sentences that are measured: by length, evenly spaced."""

from collections.abc import Sequence
from typing import Any

from ...errors import option_error
from ...extras import is_installed
from ...translator.batches import from_short_to_long
from .own import Loader


def loader(data: str, subset: str, dtype: str, device: str) -> Loader:
    """Return what loads checkpoints: fairseq, or the core where that is not installed.

    Raises:
        UsageError: the core cannot, for these need fairseq.
    """
    if is_installed("fairseq"):
        from .systems import Models

        return Models(data, subset, dtype, device)
    from .core import CoreLoader

    return CoreLoader(data, subset, dtype, device)


def evenly(items: list[int], count: int | None) -> list[int]:
    """Return ``count`` evenly spaced items; all of them if there are no more, or for None."""
    if count is None or count >= len(items):
        return items
    return [items[int(i * len(items) / count)] for i in range(count)]


def choose(task: Any, subset: str, models: Sequence[Any], count: int | None) -> list[int]:
    """Choose sentences from short to long, evenly spaced if not all of them.

    Empty sentences, and those that exceed a model's positions, cannot be decoded and are left out.

    Raises:
        UsageError: no sentence is left.
    """
    dataset = task.dataset(subset)
    longest = min(model.max_positions()[0] for model in models)
    order = [i for i in from_short_to_long(dataset) if 1 < dataset.src_sizes[i] <= longest]
    if not order:
        raise option_error("--subset", subset, "a subset with sentences that can be decoded")
    return evenly(order, count)
