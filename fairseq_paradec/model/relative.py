"""Biases of attention by the distance from a query to a key, as T5 computes them."""

import math

import numpy as np

from .architecture import Relative


def biases_by_distance(weight: np.ndarray, relative: Relative, both_ways: bool) -> np.ndarray:
    """Return each head's bias of every distance, H×(2·most+1), from ``-most`` to ``most``.

    A key that is farther has the bias of that end.

    Args:
        weight: buckets×H.
        relative: what the buckets are.
        both_ways: whether later keys have buckets of their own, as in an encoder.
    """
    distances = np.arange(-relative.most, relative.most + 1)
    return np.ascontiguousarray(weight[buckets(distances, relative, both_ways)].T, np.float32)


def buckets(distances: np.ndarray, relative: Relative, both_ways: bool) -> np.ndarray:
    """Return the bucket of each distance, a key's position less the query's; see Relative.

    Half of the buckets hold one distance each, the others ever more of them. The numbers are
    those of transformers, which computes in fp32.
    """
    count, first = relative.buckets, np.zeros_like(distances)
    if both_ways:
        count //= 2
        first = np.where(distances > 0, count, 0)
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    exact = count // 2
    ratio = np.maximum(far, exact).astype(np.float32) / np.float32(exact)
    logarithm = np.log(ratio.astype(np.float64)).astype(np.float32)
    steps = logarithm / np.float32(math.log(relative.most / exact)) * np.float32(count - exact)
    large = np.minimum(exact + steps.astype(np.int64), count - 1)
    return first + np.where(far < exact, far, large)
