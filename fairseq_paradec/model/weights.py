"""Weights of a file: they stay there, and are widened to fp32 when they are asked for."""

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from . import checkpoint


class Weights(Mapping[str, np.ndarray]):
    """Weights in fp32, by fairseq's names.

    One that is asked for is widened, and kept for as long as somebody has it.

    Attributes:
        stored: as the file has them, of 16 to 64 bits.
    """

    def __init__(self, stored: Mapping[str, np.ndarray]) -> None:
        self.stored = stored
        self._wide: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def __getitem__(self, name: str) -> np.ndarray:
        wide: np.ndarray | None = self._wide.get(name)
        if wide is None:
            wide = self._wide[name] = as_fp32(self.stored[name])
        return wide

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def stored(weights: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Return weights as their file has them, or as they are."""
    return weights.stored if isinstance(weights, Weights) else weights


def as_fp32(weight: np.ndarray) -> np.ndarray:
    """Widen a weight, or round one of 64 bits."""
    if weight.dtype == checkpoint.BFLOAT16:
        words = weight["bfloat16"].astype(np.uint32) << np.uint32(16)
        return words.view(np.float32)
    with np.errstate(over="ignore"):
        return weight.astype(np.float32, copy=False)
