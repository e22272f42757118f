"""Provenance of an output, a part of every record: lossless or not, engine, weights, versions."""

import hashlib
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from .. import __version__
from ..model.model import Model
from ..model_facts import is_prepared
from ..records import Record

#: Engines besides ``torch``: this package's own library, and fairseq's own search.
TORCH, NATIVE, FAIRSEQ = "torch", "native", "fairseq"

# Hashes of models that are prepared for inference.
_HASHES: WeakKeyDictionary[Any, tuple[Any, str]] = WeakKeyDictionary()


def provenance(
    lossless: bool,
    engine: str,
    engine_dtype: str,
    models: Sequence[Any],
    drafter: Any = None,
) -> Record:
    """Return a record's fields of provenance; see docs/trace.md.

    Args:
        lossless: whether the method guarantees the output of greedy search in fp32.
        engine: ``torch``, ``NATIVE`` or ``FAIRSEQ``.
        engine_dtype: dtype of the weights in decoder passes; see ``Engine.dtype_of``.
        models: the model, or an ensemble.
        drafter: a drafter or heads from another checkpoint, or None.
    """
    return {
        "lossless": lossless,
        "engine": engine,
        "engine_dtype": engine_dtype,
        "model": ":".join(map(weights_hash, models)),
        "drafter": None if drafter is None else weights_hash(drafter),
        "versions": versions(),
    }


def weights_hash(model: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of a model's parameters in memory.

    The hash covers names, dtypes, shapes and values. A copy that ``--engine-dtype`` makes has the
    hash of its original; a model that fairseq itself converts (``--fp16``) has another hash. 400
    million fp32 parameters take about a second: once for a model that is prepared for inference
    (and again when it has changed), in every call for a model in training.
    """
    if isinstance(model, Model):
        return model.hash
    if model in _HASHES and not _HASHES[model][0].changed():
        return _HASHES[model][1]
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        values = weight.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    hash_digits = digest.hexdigest()[:16]
    if is_prepared(model):
        from ..engine.torch.watch import Watch

        _HASHES[model] = Watch(model), hash_digits
    return hash_digits


def versions() -> dict[str, str | None]:
    """Return the versions of this package, torch and fairseq; None of what is not loaded."""
    loaded = {name: sys.modules.get(name) for name in ("torch", "fairseq")}
    others = {name: getattr(module, "__version__", None) for name, module in loaded.items()}
    return {"fairseq_paradec": __version__, **others}


def processor() -> str:
    """Return the processor's name from /proc/cpuinfo, or from ``platform``."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
