"""How an output was made, as every record says it: promise, engine, weights, versions."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import fairseq
import torch
from torch import nn

from .. import __version__

#: The engines: this package's passes, computed by torch, and fairseq's own search.
TORCH, FAIRSEQ = "torch", "fairseq"

# Hashes of models whose weights will not change, by model and dtype.
_HASHES: WeakKeyDictionary[nn.Module, dict[torch.dtype, str]] = WeakKeyDictionary()


def provenance(
    lossless: bool,
    engine: str,
    engine_dtype: str,
    compiled: bool,
    models: Sequence[nn.Module],
    drafter: nn.Module | None = None,
) -> dict[str, Any]:
    """Return the fields of a record that say how its output was made; see docs/trace.md.

    Args:
        lossless: whether, in fp32, the output is promised to be that of greedy search.
        engine: ``TORCH`` or ``FAIRSEQ``.
        engine_dtype: of the weights in its passes; see ``Engine.dtype_of``.
        compiled: whether passes ran as torch.compile makes them.
        models: the model, or an ensemble.
        drafter: a model or heads of another checkpoint, or None.
    """
    return {
        "lossless": lossless,
        "engine": engine,
        "engine_dtype": engine_dtype,
        "compiled": compiled,
        "model": ":".join(map(weights_hash, models)),
        "drafter": None if drafter is None else weights_hash(drafter),
        "versions": versions(),
    }


def weights_hash(model: nn.Module) -> str:
    """Return the first 16 hex digits of the SHA-256 of a model's parameters as they are in memory.

    Names, dtypes, shapes and values count. A copy that ``--engine-dtype`` makes has the hash of the
    model it is made of; a model that fairseq itself turns into another dtype (``--fp16``) has
    another. It takes a second for about 400 million fp32 parameters, once for a model that is
    prepared for inference, and in every call for one that is still being trained.
    """
    dtype = next(model.parameters()).dtype
    known = _HASHES.setdefault(model, {})
    if dtype in known:
        return known[dtype]
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        values = weight.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    found = digest.hexdigest()[:16]
    if getattr(model, "_is_generation_fast", False):
        known[dtype] = found
    return found


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of this package, torch and fairseq."""
    return {
        "fairseq_paradec": __version__,
        "torch": torch.__version__,
        "fairseq": fairseq.__version__,
    }
