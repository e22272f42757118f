"""Reads CTranslate2's file of weights, model.bin: it is mapped, and nothing in it is code.

The file's numbers are little-endian; its order is that of CTranslate2's ``model_spec.py``: a
version, the name and the revision of a specification, variables, and aliases of variables.
"""

import math
import mmap
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...errors import option_error, shown
from ...model.checkpoint import BFLOAT16
from ...model.weights import as_fp32

#: Versions of the file: aliases came with 3, types by number with 4, config.json with 6.
VERSIONS = (3, 4, 5, 6)
#: The types by number; before version 4 by the bytes of a number.
_TYPES = tuple(map(np.dtype, ("<f4", "i1", "<i2", "<i4", "<f2"))) + (BFLOAT16,)
_OF_SIZE = {4: 0, 1: 1, 2: 2}
#: Dimensions of a variable, at most.
_DIMENSIONS = 4


class ModelBin:
    """The variables of a file by name; those that are taken are known.

    Attributes:
        version: of the file.
        spec: the name of what the variables mean.
        revision: of that.

    Args:
        file: the file.

    Raises:
        UsageError: its version is unknown.
        ValueError: it is cut short, or names what is not in it.
        OSError: it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with open(file, "rb") as opened:
            self._content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        self._at = 0
        self.version = self._number("<I")
        if self.version not in VERSIONS:
            allowed = f"{', '.join(map(str, VERSIONS))}: convert the model again"
            raise option_error(f"{file}: version", self.version, allowed)
        self.spec, self.revision = self._name(), self._number("<I")
        self._variables: dict[str, np.ndarray] = {}
        for _ in range(self._number("<I")):
            self._add(self._name(), self._variable())
        self._aliases: dict[str, str] = {}
        for _ in range(self._number("<I")):
            alias, name = self._name(), self._name()
            if name not in self._variables:
                raise ValueError(f"{shown(alias)} stands for {shown(name)}, which is not there")
            if alias in self._variables or alias in self._aliases:
                raise ValueError(f"{shown(alias)} comes twice")
            self._aliases[alias] = name
        if self._at < len(self._content):
            raise ValueError(f"{len(self._content) - self._at} bytes follow the aliases")
        self._taken: set[str] = set()
        self._wide: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._variables or name in self._aliases

    def scalar(self, name: str, default: float | None = None) -> float:
        """Take a number.

        Raises:
            ValueError: it is not there and has no default, or is no single number.
        """
        if name not in self and default is not None:
            return default
        value = as_fp32(self._take(name))
        if value.size != 1:
            raise ValueError(f"{name} is no number")
        number = float(value.reshape(-1)[0])
        if not math.isfinite(number):
            raise ValueError(f"{name} is {number}")
        return number

    def is_float(self, name: str) -> bool:
        """Return whether a variable that is there has numbers with a point."""
        return self._variables[self._aliases.get(name, name)].dtype.kind != "i"

    def names(self) -> list[str]:
        """Return the names of all variables and aliases."""
        return [*self._variables, *self._aliases]

    def text(self, name: str, default: str) -> str:
        """Take a text, which is stored as bytes."""
        return self._take(name).tobytes().decode("utf-8") if name in self else default

    def weight(self, name: str) -> np.ndarray:
        """Take a weight, widened to fp32; aliases of one variable share it.

        Raises:
            ValueError: it is not there, or is quantised without a scale that fits.
        """
        weight, own = self._take(name), self._aliases.get(name, name)
        if own not in self._wide:
            self._wide[own] = self._widened(own, weight)
        return self._wide[own]

    def kinds(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many numbers of each type some variables have, those of aliases once."""
        counts: dict[str, int] = {}
        for name in {self._aliases.get(name, name) for name in names}:
            variable = self._variables[name]
            kind = "bfloat16" if variable.dtype == BFLOAT16 else variable.dtype.name
            counts[kind] = counts.get(kind, 0) + variable.size
        return counts

    def left(self) -> list[str]:
        """Return the names of what nobody has taken."""
        names = {*self._variables, *self._aliases} - self._taken
        return sorted(names - set(self._aliases.get(name, name) for name in self._taken))

    def _take(self, name: str) -> np.ndarray:
        """Return a variable as it is stored, and know that it is read."""
        if name not in self:
            raise ValueError(f"there is no {name}")
        self._taken.add(name)
        return self._variables[self._aliases.get(name, name)]

    def _widened(self, name: str, weight: np.ndarray) -> np.ndarray:
        """Return a variable in fp32: int8 over the scale of its row, int16 over its one scale."""
        if weight.dtype.kind != "i":
            return as_fp32(weight)
        if weight.dtype.itemsize > 2:
            raise ValueError(f"{name} has whole numbers of {8 * weight.dtype.itemsize} bits")
        scale = as_fp32(self._take(f"{name}_scale"))
        if scale.shape not in ((), weight.shape[:1]) or not (scale > 0).all():
            raise ValueError(f"{name}_scale of size {scale.shape} is none of {weight.shape}")
        rows = scale.reshape(-1, *[1] * (weight.ndim - 1)) if scale.ndim else scale
        with np.errstate(over="ignore"):
            return np.asarray(weight.astype(np.float32) / rows)

    def _add(self, name: str, variable: np.ndarray) -> None:
        """Keep a variable by its name."""
        if name in self._variables:
            raise ValueError(f"{shown(name)} comes twice")
        self._variables[name] = variable

    def _variable(self) -> np.ndarray:
        """Read a variable, where it lies."""
        dimensions = self._number("<B")
        if dimensions > _DIMENSIONS:
            raise ValueError(f"a variable of {dimensions} dimensions")
        shape = tuple(self._number("<I") for _ in range(dimensions))
        kind = self._number("<B")
        if self.version < 4:
            kind = _OF_SIZE.get(kind, len(_TYPES))
        if kind >= len(_TYPES):
            raise ValueError(f"a variable of the type {kind}")
        dtype, size = _TYPES[kind], self._number("<I")
        if self.version < 4:
            size *= dtype.itemsize
        if math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{size} bytes for a variable of size {shape}")
        return np.frombuffer(self._bytes(size), dtype).reshape(shape)

    def _number(self, form: str) -> int:
        """Read a number."""
        number: int = struct.unpack(form, self._bytes(struct.calcsize(form)))[0]
        return number

    def _name(self) -> str:
        """Read a text, which ends in a zero."""
        return bytes(self._bytes(self._number("<H"))).rstrip(b"\0").decode("utf-8")

    def _bytes(self, size: int) -> memoryview:
        """Read bytes."""
        if size > len(self._content) - self._at:
            raise ValueError(f"it ends after {len(self._content)} bytes, in what it names")
        self._at += size
        return self._content[self._at - size : self._at]
