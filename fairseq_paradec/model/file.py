"""The model file: safetensors, whose metadata say what the weights mean; it is mapped.

The package safetensors copies what it reads for numpy, and has no bf16 there.
"""

import dataclasses
import json
import math
import mmap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError, shown
from ..files import replacing
from .architecture import Architecture, checked
from .checkpoint import BFLOAT16

#: The version of what the metadata say.
FORMAT = 1
#: Types of numbers that weights may be of.
_DTYPES = {"F16": np.dtype("<f2"), "BF16": BFLOAT16, "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
#: Where weights begin is a multiple of this, for vector instructions.
_ALIGNED = 64
#: A header has not more bytes, a weight not more dimensions.
_HEADER, _DIMENSIONS = 1 << 24, 8
_ALLOWED = "allowed: a model file as paradec writes it, whole"


def _damaged(given: str) -> UsageError:
    """Return the error for a file that is none, or says what cannot be."""
    return UsageError(f"got {given}; {_ALLOWED}")


def write(
    path: Path, architecture: Architecture, weights: Mapping[str, np.ndarray], digits: str | None
) -> None:
    """Write a model file, whole or not at all.

    Args:
        path: the file.
        architecture: what the weights mean.
        weights: fp32, by name.
        digits: the hash of all weights, if some are left out; else None.
    """
    about = {"format": FORMAT, "architecture": dataclasses.asdict(architecture), "hash": digits}
    header: dict[str, Any] = {"__metadata__": {"paradec": json.dumps(about)}}
    end = 0
    for name, weight in weights.items():
        start, end = end, end + weight.nbytes
        header[name] = {"dtype": "F32", "shape": weight.shape, "data_offsets": [start, end]}
    line = json.dumps(header).encode()
    line += b" " * (-(8 + len(line)) % _ALIGNED)
    with replacing(path) as partial, open(partial, "wb") as file:
        file.write(len(line).to_bytes(8, "little") + line)
        for weight in weights.values():
            file.write(np.ascontiguousarray(weight, "<f4").data)


def read(path: str | Path) -> tuple[Architecture, dict[str, np.ndarray], str | None]:
    """Map a model file: -> architecture, weights, and the hash, if it lacks some; see ``write``.

    Raises:
        UsageError: it is damaged, or of another version; the message does not name the file.
        OSError: it cannot be read.
    """
    try:
        header, content = _parts(path)
        metadata = header.pop("__metadata__", None)
        about = metadata.get("paradec") if isinstance(metadata, dict) else None
        if not isinstance(about, str):
            raise _damaged("a file that does not say what its weights mean")
        said = json.loads(about)
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise _damaged("a model file of another version")
        digits = _value("hash", str | None, said.get("hash"))
        architecture = checked(_built(Architecture, said.get("architecture")))
        return architecture, _weights(header, content), digits
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise _damaged("no text of JSON where it should be") from error


def _parts(path: str | Path) -> tuple[dict[str, Any], memoryview]:
    """Return the header of a file, and what follows it."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        line = file.read(size) if 2 <= size <= _HEADER else b""
        if not line or len(line) != size:
            raise _damaged("a file that is cut short, or no model file")
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[8 + size :]
    header = json.loads(line, object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise _damaged("a header without names")
    return header, content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict whose names come once."""
    named = dict(pairs)
    if len(named) < len(pairs):
        raise _damaged("a name that comes twice")
    return named


def _weights(header: Mapping[str, Any], content: memoryview) -> dict[str, np.ndarray]:
    """Return the weights where they lie: one behind the other, to the file's end."""
    weights, end = {}, 0
    for name, entry in header.items():
        entry = entry if isinstance(entry, dict) else {}
        dtype: np.dtype | None = _DTYPES.get(str(entry.get("dtype")))
        shape: Any = entry.get("shape")
        if dtype is None or not _are_counts(shape) or len(shape) > _DIMENSIONS:
            raise _damaged(f"{shown(name)} of no type or size")
        start, end = end, end + math.prod(shape) * dtype.itemsize
        if entry.get("data_offsets") != [start, end] or end > len(content):
            raise _damaged(f"{shown(name)} in a place of another size, or beyond the end")
        array = np.frombuffer(content[start:end], np.uint8)
        if array.ctypes.data % dtype.itemsize:
            array = array.copy()
        weights[name] = array.view(dtype).reshape(shape)
    if end != len(content):
        raise _damaged("bytes that are no weights")
    return weights


def _are_counts(value: Any) -> bool:
    """Return whether a value is a list of whole numbers, none below zero."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _built(kind: Any, value: Any) -> Any:
    """Return a record of what JSON holds, each field of its type."""
    hints = typing.get_type_hints(kind)
    if not isinstance(value, dict) or value.keys() != hints.keys():
        raise _damaged(f"no {kind.__name__} as it is known")
    return kind(**{name: _value(name, hint, value[name]) for name, hint in hints.items()})


def _value(name: str, hint: Any, value: Any) -> Any:
    """Return a value of a type, as it stands in a record's field."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not type(None))
    if dataclasses.is_dataclass(hint):
        return _built(hint, value)
    if hint == tuple[int, ...] and _are_counts(value):
        return tuple(value)
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint == dict[str, Any] and isinstance(value, dict):
        return value
    if hint in (bool, int, str) and type(value) is hint:
        return value
    raise _damaged(f"{name} {shown(value)}, of another type")
