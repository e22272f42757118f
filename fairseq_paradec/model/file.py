"""The model file: safetensors, whose metadata say what the weights mean; it is mapped.

The package safetensors copies what it reads for numpy, and has no bf16 there.
"""

import contextlib
import dataclasses
import json
import math
import mmap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ..errors import UsageError, shown
from ..files import replacing
from .architecture import Architecture, Layers, checked
from .checkpoint import BFLOAT16
from .weights import as_fp32

#: The version of what the metadata say.
FORMAT = 1
#: safetensors' names of types.
_DTYPES = {
    **{"F16": np.dtype("<f2"), "BF16": BFLOAT16, "F32": np.dtype("<f4"), "F64": np.dtype("<f8")},
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "BOOL": np.dtype("?"),
}
#: Where weights begin is a multiple of this, for vector instructions.
_ALIGNED = 64
#: Fields of records that files of earlier versions lack, and what they are then.
_LATER: dict[str, Any] = {"source_end": True} | {
    field.name: field.default
    for field in dataclasses.fields(Layers)
    if field.default is not dataclasses.MISSING
}
#: So many numbers are written at once.
_BLOCK = 1 << 20
#: A header has not more bytes, a weight not more dimensions.
_HEADER, _DIMENSIONS = 1 << 24, 8


def _damaged(given: str, allowed: str = "an undamaged file, whole") -> UsageError:
    """Return the error for a file that is none, or says what cannot be."""
    return UsageError(f"got {given}; allowed: {allowed}")


def is_one(path: str | Path) -> bool:
    """Return whether a file begins as safetensors do: 8 bytes, and JSON behind them."""
    with open(path, "rb") as file:
        return file.read(9)[8:] == b"{"


def write(
    path: Path, architecture: Architecture, weights: Mapping[str, np.ndarray], digits: str | None
) -> None:
    """Write a model file, whole or not at all.

    Args:
        path: the file.
        architecture: what the weights mean.
        weights: of 16 to 64 bits, by name. Those that 16 bits hold are written in 16 bits. They are
            read some at a time, and the memory of mapped ones is given back.
        digits: the hash of all weights, if some are left out; else None.
    """
    types = {name: _type_of(weight) for name, weight in weights.items()}
    # Wide ones come first, so that all lie where their type may lie.
    names = sorted(weights, key=lambda name: -_DTYPES[types[name]].itemsize)
    record = _without_later(dataclasses.asdict(architecture))
    about = {"format": FORMAT, "architecture": record, "hash": digits}
    header: dict[str, Any] = {"__metadata__": {"paradec": json.dumps(about)}}
    end = 0
    for name in names:
        shape, kind = weights[name].shape, types[name]
        start, end = end, end + math.prod(shape) * _DTYPES[kind].itemsize
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    line = json.dumps(header).encode()
    line += b" " * (-(8 + len(line)) % _ALIGNED)
    with replacing(path) as partial, open(partial, "wb") as file:
        file.write(len(line).to_bytes(8, "little") + line)
        for name in names:
            for block in _blocks(weights[name]):
                file.write(_as_type(block, types[name]).view(np.uint8).data)
            release(weights[name])


def _without_later(record: dict[str, Any]) -> dict[str, Any]:
    """Leave out fields that earlier versions do not know, where they are as they were then."""
    return {
        name: _without_later(value) if isinstance(value, dict) else value
        for name, value in record.items()
        if name not in _LATER or value != _LATER[name]
    }


def _blocks(weight: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a weight's numbers, some at a time."""
    flat = weight.reshape(-1)
    return (flat[first : first + _BLOCK] for first in range(0, len(flat), _BLOCK))


def _type_of(weight: np.ndarray) -> str:
    """Return the narrowest type that holds a weight's numbers, as the file names it."""
    if weight.dtype == BFLOAT16:
        return "BF16"
    is_bf16 = is_fp16 = True
    for block in _blocks(weight):
        wide = as_fp32(block)
        is_bf16 = is_bf16 and not (wide.view("<u4") & 0xFFFF).any()
        is_fp16 = is_fp16 and np.array_equal(_as_type(wide, "F16"), wide)
        if not (is_bf16 or is_fp16):
            return "F32"
    return "BF16" if is_bf16 else "F16"


def _as_type(block: np.ndarray, kind: str) -> np.ndarray:
    """Return a weight's numbers in a type of ``_type_of``."""
    wide = np.ascontiguousarray(as_fp32(block), "<f4")
    if kind == "BF16":
        return (wide.view("<u4") >> 16).astype("<u2")
    with np.errstate(over="ignore"):
        return wide.astype("<f2") if kind == "F16" else wide


def release(weight: np.ndarray) -> None:
    """Let the system have the memory of a weight that a file is mapped to; it is read anew."""
    base: Any = weight
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else None
    if not isinstance(mapped, mmap.mmap) or not weight.flags.c_contiguous:
        return
    first = weight.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    if first + weight.nbytes - start >= mmap.PAGESIZE:
        length = (first + weight.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, start, length)


def read(path: str | Path) -> tuple[Architecture, dict[str, np.ndarray], str | None]:
    """Map a model file: -> architecture, weights, and the hash, if it lacks some; see ``write``.

    Raises:
        UsageError: it is damaged, or of another version; the message does not name the file.
        OSError: it cannot be read.
    """
    with _json():
        metadata, weights = _parts(path)
        about = metadata.get("paradec") if isinstance(metadata, dict) else None
        if not isinstance(about, str):
            allowed = "a model file as paradec writes it"
            raise _damaged("a file that does not say what its weights mean", allowed)
        said = json.loads(about)
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise _damaged("a model file of another version", f"version {FORMAT}")
        digits = _value("hash", str | None, said.get("hash"))
        return checked(_built(Architecture, said.get("architecture"))), weights, digits


def tensors(path: str | Path) -> dict[str, np.ndarray]:
    """Map any file of safetensors; see ``read``."""
    with _json():
        return _parts(path)[1]


@contextlib.contextmanager
def _json() -> Iterator[None]:
    """Name what is no JSON."""
    try:
        yield
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise _damaged("no text of JSON where it should be") from error


def _parts(path: str | Path) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the metadata of a file, and its weights."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        line = file.read(size) if 2 <= size <= _HEADER else b""
        if not line or len(line) != size:
            raise _damaged("a file that is cut short, or no model file")
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[8 + size :]
    header = json.loads(line, object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise _damaged("a header without names")
    return header.pop("__metadata__", None), _weights(header, content)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict whose names come once."""
    named = dict(pairs)
    if len(named) < len(pairs):
        raise _damaged("a name that comes twice")
    return named


def _weights(header: Mapping[str, Any], content: memoryview) -> dict[str, np.ndarray]:
    """Return the weights where they lie: one behind the other, to the file's end."""
    places = {}
    for name, entry in header.items():
        entry = entry if isinstance(entry, dict) else {}
        dtype: np.dtype | None = _DTYPES.get(str(entry.get("dtype")))
        shape, place = entry.get("shape"), entry.get("data_offsets")
        if dtype is None or not _are_counts(shape) or len(shape) > _DIMENSIONS:
            raise _damaged(f"{shown(name)} of no type or size")
        if not _are_counts(place) or len(place) != 2:
            raise _damaged(f"{shown(name)} in no place")
        places[name] = place, dtype, shape
    weights, end = {}, 0
    for name, (place, dtype, shape) in sorted(places.items(), key=lambda item: item[1][0]):
        start, end = end, end + math.prod(shape) * dtype.itemsize
        if place != [start, end] or end > len(content):
            raise _damaged(f"{shown(name)} in a place of another size, or beyond the end")
        array = np.frombuffer(content[start:end], np.uint8)
        if array.ctypes.data % dtype.itemsize:
            array = array.copy()
        weights[name] = array.view(dtype).reshape(shape)
    if end != len(content):
        raise _damaged("bytes that are no weights")
    return weights


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """Return whether a value is a list of whole numbers, none below zero."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _built(kind: Any, value: Any) -> Any:
    """Return a record of what JSON holds, each field of its type."""
    hints = typing.get_type_hints(kind)
    if isinstance(value, dict):
        value = {name: kept for name, kept in _LATER.items() if name in hints} | value
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
