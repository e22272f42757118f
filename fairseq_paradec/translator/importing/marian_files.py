"""Reads Marian's files of weights: ``.npz``, and the binary format that Firefox's models have.

The binary file's numbers are little-endian: a version, the number of items, a header for each
item, their names, their sizes, padding, and their bytes. Nothing in either file is code.
"""

import math
import mmap
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import option_error, shown
from ...files import UNPACKED, check_unpacked
from ...model.weights import as_fp32

#: The item that holds the settings.
SETTINGS = "special:model.yml"
#: What else is no weight: items that Marian adds, and scales of activations in products of int8.
_OTHERS, ACTIVATIONS = "special:", "_QuantMultA"
#: The version of a binary file, and its items and dimensions at most.
_VERSION, _ITEMS, _DIMENSIONS = 1, 1 << 16, 4
#: The sides of a matrix of intgemm are multiples of this.
_BLOCK = 16
#: Types of items by number: numbers as they are.
_TYPES: dict[int, np.dtype[Any]] = {
    0x101: np.dtype("i1"),
    0x402: np.dtype("<f2"),
    0x404: np.dtype("<f4"),
}
#: Products of intgemm, the same on every processor: Marian's numbers, and those of Bergamot's.
_INTGEMM: dict[int, np.dtype[Any]] = {
    **dict.fromkeys((0x10001, 0x4101), np.dtype("i1")),
    **dict.fromkeys((0x10002, 0x4102), np.dtype("<i2")),
}


def is_binary(file: Path) -> bool:
    """Return whether a file begins as Marian's binary ones do."""
    if not file.is_file():
        return False
    with open(file, "rb") as opened:
        begin = opened.read(16)
    if len(begin) < 16:
        return False
    version, count = struct.unpack("<QQ", begin)
    return version == _VERSION and 0 < count <= _ITEMS


def models_of(given: Path) -> list[Path]:
    """Return the model that a path names, or those that lie in a folder."""
    if not given.is_dir():
        return [given] if given.suffix == ".npz" or is_binary(given) else []
    zips = [file for file in given.glob("*.npz") if not file.name.endswith(".optimizer.npz")]
    return sorted(zips + [file for file in given.glob("*.bin") if is_binary(file)])


class MarianFile:
    """The weights of a file by name; those that are taken are known.

    Attributes:
        file: the file.
        settings: the text of the settings, YAML.

    Args:
        file: MODEL.npz, or a binary file.

    Raises:
        UsageError: it is of another kind, packed for one kind of processors, or without settings.
        ValueError: it is damaged, or a weight in it is no number with a point.
        OSError: it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        items = _binary(file) if is_binary(file) else _npz(file)
        if SETTINGS not in items:
            raise option_error("MODEL", str(file), f"a file of Marian, with {SETTINGS}")
        self.settings = items.pop(SETTINGS)[0].tobytes().rstrip(b"\0")
        self._scales = {name for name in items if name.endswith(ACTIVATIONS)}
        self._items = {
            name: item
            for name, item in items.items()
            if name not in self._scales and not name.startswith(_OTHERS)
        }
        for name, (weight, scale) in self._items.items():
            if weight.dtype.kind != "f" and scale is None:
                raise ValueError(f"{shown(name)} is of {weight.dtype.name}")
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._items

    def take(self, name: str) -> np.ndarray:
        """Take a weight, widened to fp32.

        Raises:
            UsageError: it is not there, or neither a vector nor a matrix.
        """
        if name not in self._items:
            raise option_error(
                str(self.file), f"no weight {name}", "a Transformer with all weights"
            )
        weight, scale = self._items[name]
        if weight.ndim not in (1, 2):
            raise option_error(f"{self.file}: {name}", weight.shape, "a size of one or two numbers")
        self._taken.add(name)
        wide = as_fp32(weight) if scale is None else weight.astype(np.float32) / np.float32(scale)
        return np.ascontiguousarray(wide)

    def left(self) -> list[str]:
        """Return the names of the weights that nobody has taken."""
        return sorted(self._items.keys() - self._taken)

    def check_size(self, size: int) -> None:
        """Refuse a small file that stands for a large model.

        Args:
            size: of the model, in bytes.

        Raises:
            ValueError: it is much larger than the file.
        """
        given = self.file.stat().st_size
        if size > UNPACKED * given + (1 << 24):
            raise ValueError(f"{given} bytes that stand for {size}")

    def notes(self) -> list[str]:
        """Return what became of the weights, in a line."""
        counts: dict[str, int] = {}
        for weight, scale in self._items.values():
            kind = weight.dtype.name if scale is None else f"intgemm{8 * weight.dtype.itemsize}"
            counts[kind] = counts.get(kind, 0) + weight.size
        if {*counts} <= {"float32"}:
            return []
        kinds = " and ".join(sorted(counts, key=lambda kind: -counts[kind]))
        more = "; scales of activations are left out" if self._scales else ""
        return [f"weights: {kinds}, widened to fp32{more}"]


#: Items by name, and the scale of those of intgemm: a weight is its numbers over that.
_Items = dict[str, tuple[np.ndarray, float | None]]


def _npz(file: Path) -> _Items:
    """Read a file ``.npz``.

    Raises:
        UsageError: it is missing or damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, file)
            if len({*archive.namelist()}) < len(archive.namelist()):
                raise zipfile.BadZipFile("a name that comes twice")
        with np.load(file, allow_pickle=False) as content:
            return {str(name): (np.asarray(content[name]), None) for name in content}
    except Exception as error:  # zipfile and numpy raise many kinds
        why = " ".join(str(error).split())[:200]
        raise option_error("MODEL", str(file), f"Marian's file .npz, or .bin ({why})") from error


def _binary(file: Path) -> _Items:
    """Read a binary file.

    Raises:
        UsageError: an item is of a type that is not read.
        ValueError: it is cut short, or names what is not in it.
    """
    with open(file, "rb") as opened:
        content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    at = 16

    def read(size: int) -> memoryview:
        nonlocal at
        if size > len(content) - at:
            raise ValueError(f"it ends after {len(content)} bytes, in what it names")
        at += size
        return content[at - size : at]

    _, count = struct.unpack("<QQ", content[:16])
    headers = [struct.unpack("<QQQQ", read(32)) for _ in range(count)]
    names = [bytes(read(header[0])).rstrip(b"\0").decode("utf-8") for header in headers]
    sizes: list[tuple[int, ...]] = []
    for name, (_, _, dimensions, _) in zip(names, headers, strict=True):
        if dimensions > _DIMENSIONS:
            raise ValueError(f"{shown(name)} has {dimensions} dimensions")
        sizes.append(struct.unpack(f"<{dimensions}i", read(4 * dimensions)))
        if min(sizes[-1], default=0) < 1:
            raise ValueError(f"{shown(name)} is of size {sizes[-1]}")
    read(struct.unpack("<Q", read(8))[0])
    items: _Items = {}
    for name, (_, kind, _, size), shape in zip(names, headers, sizes, strict=True):
        if name in items:
            raise ValueError(f"{shown(name)} comes twice")
        items[name] = _item(file, name, kind, shape, read(size))
    if at < len(content):
        raise ValueError(f"{len(content) - at} bytes follow the items")
    return items


def _item(
    file: Path, name: str, kind: int, shape: tuple[int, ...], given: memoryview
) -> tuple[np.ndarray, float | None]:
    """Return an item of a binary file, and its scale; padding may follow its numbers.

    A matrix of intgemm is stored transposed, by columns; a table of words is not.
    """
    dtype = _TYPES.get(kind, _INTGEMM.get(kind))
    if dtype is None:
        allowed = "float32, float16, intgemm8 or intgemm16; others are for one kind of processors"
        raise option_error(f"{file}: {name}", f"the type {kind:#x}", allowed)
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size + (4 if kind in _INTGEMM else 0) > len(given):
        raise ValueError(f"{len(given)} bytes for {shown(name)} of size {shape}")
    numbers = np.frombuffer(given[:size], dtype)
    if kind not in _INTGEMM:
        return numbers.reshape(shape), None
    scale: float = struct.unpack("<f", given[size : size + 4])[0]
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"{shown(name)} has the scale {scale}")
    if "Wemb" in name or len(shape) != 2:
        return numbers.reshape(shape), scale
    if any(side % _BLOCK for side in shape):  # Marian's converter mixes up other matrices
        raise ValueError(f"{shown(name)} is of size {shape}, no multiples of {_BLOCK}")
    return numbers.reshape(shape[::-1]).T, scale
