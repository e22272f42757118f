"""torch's checkpoint files, read without torch: tensors are numpy's, mapped where they lie.

Since torch 1.6 a file is a zip archive, whose members are stored as they are: a pickle that
describes what was saved (``pickles.py`` reads it, and calls nothing), and the memory of each
storage. A file that says of itself what cannot be is refused before its numbers are read. Their
checksums are not looked at: ``paradec.json`` has the whole file's.
"""

import mmap
import os
import re
import struct
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError, shown
from .pickles import Builder, DamagedPickle, Record, read_pickle

#: bf16, which numpy has not: raw words of 16 bits, ``array["bfloat16"]``, with which nothing can be
#: computed by mistake.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

#: torch's types of numbers.
DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "float16": np.dtype("<f2"),
    "bfloat16": BFLOAT16,
    "int8": np.dtype("i1"),
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "uint64": np.dtype("<u8"),
    "bool": np.dtype("?"),
    "complex64": np.dtype("<c8"),
    "complex128": np.dtype("<c16"),
}
#: The types of storages' numbers, by the names of their classes.
_STORAGES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Byte": "uint8",
    "Untyped": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
_STORAGE = re.compile(r"torch\.(?:cuda\.|storage\.)?(\w+)Storage")

#: A dict of omegaconf's.
_OMEGACONF = "omegaconf.dictconfig.DictConfig"

#: A pickle's size at most: so many bytes, and this part of the file. It takes up to 100 times that.
PICKLE, SHARE = 1 << 20, 100
#: Dimensions that a tensor may have.
_DIMENSIONS = 32

#: Names of data that are no tensors here, but harmless: settings of omegaconf, fairseq's meters,
#: torch's other types and tensors.
_HARMLESS = re.compile(
    r"omegaconf\.(dictconfig\.DictConfig|listconfig\.ListConfig|nodes\.\w+Node"
    r"|base\.(Container)?Metadata)"
    r"|fairseq\.(logging\.)?meters\.\w+Meter|typing\.Any"
    r"|builtins\.(dict|list|int|long|float|str|bool|set|complex|bytearray)"
    r"|numpy\.(ndarray|dtypes\.\w+)|torch\.(Size|device|bool|nn\.parameter\.Parameter)"
    r"|torch\.(q?u?int|bits|b?float|bfloat|complex)\d+(x\d+)?(_\w+)?|torch\.per_\w+_(affine|symmetric)\w*"
    r"|torch\.((cuda|sparse|storage)\.)*\w*(Storage|Tensor)|torch\.serialization\._get_layout"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2"
)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's file holds."""

    #: mostly a dict; a tensor is a read-only array, and the same array if it is tied to another
    content: Any
    #: names of classes and functions that are no data, in order; nothing of them was called
    foreign: tuple[str, ...]


def read(path: str | Path) -> Checkpoint:
    """Read a checkpoint; its tensors stay in the file, which is mapped, until they are used.

    Raises:
        UsageError: it is truncated, damaged, or no checkpoint of torch 1.6 or newer.
        OSError: it cannot be read.
    """
    try:
        return _read(path)
    except (DamagedPickle, zipfile.BadZipFile, NotImplementedError) as error:
        raise _damaged(path, str(error)) from error
    except (ValueError, struct.error, OverflowError, EOFError) as error:  # of zipfile
        raise _damaged(path, "no whole archive") from error


def is_archive(path: str | Path) -> bool:
    """Return whether a file begins as archives do; a model file does not.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as stream:
        return stream.read(2) == b"PK"


def settings(part: Any) -> Mapping[str, Any]:
    """Return settings by name, in whatever form fairseq saved them.

    Args:
        part: a dict, a Namespace, or a record of omegaconf's, whose own parts stay records and
            whose references to other settings stay texts; what is no settings has none.
    """
    if isinstance(part, Namespace):
        return vars(part)
    if isinstance(part, Mapping):
        return part
    if isinstance(part, Record) and part.name == _OMEGACONF and isinstance(part.state, dict):
        content = part.state.get("_content")
        return {
            name: node.state.get("_val", node) if _is_node(node) else node
            for name, node in (content.items() if isinstance(content, dict) else ())
        }
    return {}


def languages(content: Any) -> tuple[str | None, str | None]:
    """Return the languages of a checkpoint's training, as it says; None: it says none.

    Args:
        content: of ``read``.
    """
    parts = content if isinstance(content, Mapping) else {}
    task = settings(settings(parts.get("cfg")).get("task") or parts.get("args"))
    pair = [task.get(name) for name in ("source_lang", "target_lang")]
    source, target = (one if type(one) is str else None for one in pair)
    return source, target


def _is_node(value: Any) -> bool:
    """Return whether a value is a record with attributes."""
    return isinstance(value, Record) and isinstance(value.state, dict)


def _damaged(path: str | Path, wrong: str) -> UsageError:
    """Return the error for a file that cannot be read."""
    allowed = "an undamaged checkpoint, as torch 1.6 and newer save it"
    return UsageError(f"{path}: got {wrong}; allowed: {allowed}")


def _read(path: str | Path) -> Checkpoint:
    """Read a checkpoint; see ``read``."""
    with open(path, "rb") as stream:
        if stream.read(4) != b"PK\3\4":
            raise DamagedPickle("no archive of torch")
        memory = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        with zipfile.ZipFile(stream) as archive:
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                raise DamagedPickle("a program of TorchScript")
            members = _members(archive, memory)
    folder = next(iter(members)).partition("/")[0]
    if f"{folder}/data.pkl" not in members:
        raise DamagedPickle("an archive without data.pkl")
    if bytes(members.get(f"{folder}/byteorder", b"little")) != b"little":
        raise DamagedPickle("numbers of a machine of other byte order")
    pickle = members[f"{folder}/data.pkl"]
    if len(pickle) > PICKLE + os.path.getsize(path) // SHARE:
        raise DamagedPickle(f"a pickle of {len(pickle) / 1e6:.0f} MB, which describes no weights")
    storages = _Storages(members, f"{folder}/data/")
    builders: dict[str, Builder] = {
        "torch._utils._rebuild_tensor": _tensor,
        "torch._utils._rebuild_tensor_v2": _tensor,
        "torch._utils._rebuild_tensor_v3": _typed_tensor,
        "torch._utils._rebuild_parameter": lambda data, *_: data,
        "torch.Size": lambda size=(): tuple(size),
    }
    content, unknown = read_pickle(bytes(pickle), builders, storages.of)
    storages.check()
    return Checkpoint(content, tuple(sorted(n for n in unknown if not _HARMLESS.fullmatch(n))))


def _members(archive: zipfile.ZipFile, memory: memoryview) -> dict[str, memoryview]:
    """Return the members of an archive where they lie: stored, inside of it, none over another."""
    members: dict[str, memoryview] = {}
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = info.filename
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise DamagedPickle(f"{shown(name)} compressed")
        if info.flag_bits & 1 or name in members:
            raise DamagedPickle(f"{shown(name)} encrypted, or twice")
        at = info.header_offset
        if at < end or memory[at : at + 4] != b"PK\3\4":
            raise DamagedPickle(f"{shown(name)} where something else lies")
        sizes = struct.unpack_from("<HH", memory, at + 26)
        start = at + 30 + sum(sizes)
        end = start + info.file_size
        if end > archive.start_dir:
            raise DamagedPickle(f"{shown(name)} beyond the end")
        members[name] = memory[start:end]
    if not members:
        raise DamagedPickle("an empty archive")
    return members


class _Storage:
    """The memory of a storage, and the tensors that are views of it."""

    def __init__(self, memory: memoryview, dtype: np.dtype):
        self.dtype = dtype
        array = np.frombuffer(memory, np.uint8)
        if array.ctypes.data % dtype.itemsize:  # torch writes none
            array = array.copy()
            array.flags.writeable = False
        self.memory = array
        self.views: dict[tuple[Any, ...], np.ndarray] = {}

    def view(self, offset: Any, size: Any, stride: Any, dtype: np.dtype) -> np.ndarray:
        """Return a tensor of the storage; the same for the same view."""
        if type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride):
            raise DamagedPickle("a tensor without sizes and strides")
        if len(size) > _DIMENSIONS or any(
            type(number) is not int or number < 0 for number in (offset, *size, *stride)
        ):
            raise DamagedPickle("a tensor of odd sizes or strides")
        key = (offset, size, stride, dtype.str)
        if key not in self.views:
            self._check(offset, size, stride, dtype.itemsize)
            strides = tuple(step * dtype.itemsize for step in stride)
            self.views[key] = (
                np.ndarray(size, dtype, self.memory, offset * dtype.itemsize, strides)
                if 0 not in size
                else np.empty(size, dtype)
            )
        return self.views[key]

    def _check(
        self, offset: int, size: tuple[int, ...], stride: tuple[int, ...], width: int
    ) -> None:
        """Refuse a tensor that leaves the storage, or whose elements lie over another."""
        if 0 in size:
            return
        reach = 0
        for step, count in sorted((step, count) for step, count in zip(stride, size) if count > 1):
            if step <= reach:
                raise DamagedPickle("a tensor with fewer numbers than elements")
            reach += step * (count - 1)
        if (offset + reach + 1) * width > len(self.memory):
            raise DamagedPickle("a tensor beyond the end of its storage")

    def check(self) -> None:
        """Refuse tensors that lie over another in part; equal views are ties."""
        views = [key for key, array in self.views.items() if array.size]
        if len(views) < 2:
            return
        taken = np.zeros(len(self.memory), np.bool_)
        for offset, size, stride, kind in views:
            width = self.views[offset, size, stride, kind].itemsize
            steps = (*(step * width for step in stride), 1)
            view = np.ndarray((*size, width), np.bool_, taken, offset * width, steps)
            if view.any():
                raise DamagedPickle("tensors that lie over each other in part")
            view[...] = True


class _Storages:
    """The storages of an archive, which persistent ids name."""

    def __init__(self, members: Mapping[str, memoryview], prefix: str):
        self.members = members
        self.prefix = prefix
        self.read: dict[str, _Storage] = {}

    def of(self, given: Any) -> Any:
        """Return the storage of a persistent id; a record, if its numbers are of no known type."""
        if type(given) is not tuple or len(given) != 5 or given[0] != "storage":
            raise DamagedPickle("a pickle of more than storages")
        _, kind, key, _, count = given
        if not isinstance(kind, Record) or type(key) is not str or type(count) is not int:
            raise DamagedPickle("a storage without type, key or size")
        named = _STORAGE.fullmatch(kind.name)
        if named is None:
            raise DamagedPickle(f"a storage of type {shown(kind.name)}")
        if named[1] not in _STORAGES:
            return Record(kind.name, (key, count))
        dtype = DTYPES[_STORAGES[named[1]]]
        memory = self.members.get(f"{self.prefix}{key}")
        if memory is None:
            raise DamagedPickle(f"no storage {shown(key)}")
        if count * dtype.itemsize != len(memory):
            given = f"{len(memory)} bytes for {shown(count)} numbers of {dtype.itemsize}"
            raise DamagedPickle(f"storage {shown(key)} with {given}")
        storage = self.read.get(key) or _Storage(memory, dtype)
        self.read[key] = storage
        if storage.dtype != dtype:
            raise DamagedPickle(f"storage {shown(key)} of two types")
        return storage

    def check(self) -> None:
        """Refuse tensors that lie over another in part."""
        for storage in self.read.values():
            storage.check()


def _tensor(
    storage: Any, offset: Any, size: Any, stride: Any, *more: Any, dtype: np.dtype | None = None
) -> Any:
    """Return a tensor; a record of one that is negated, conjugated, or of no known type."""
    if isinstance(storage, Record) or (len(more) > 2 and more[2]):
        return Record("torch.Tensor", (storage, offset, size, stride))
    if not isinstance(storage, _Storage):
        raise DamagedPickle("a tensor without storage")
    return storage.view(offset, size, stride, dtype or storage.dtype)


def _typed_tensor(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> Any:
    """Return a tensor that names its type beside an untyped storage."""
    kind = more[2] if len(more) > 2 else None
    if not isinstance(kind, Record):
        raise DamagedPickle("a tensor without type")
    dtype = DTYPES.get(kind.name.removeprefix("torch."))
    if dtype is None:
        return Record(kind.name, (storage, offset, size, stride))
    return _tensor(storage, offset, size, stride, *more[:2], *more[3:], dtype=dtype)
