"""Pickles of torch and fairseq, read as data: what a pickle names is never imported nor called.

Python's own unpickler takes 4 GB for ten bytes (a memo of one entry with a high number), and ends
the process where a key is a tuple of tuples, a million deep. Here are the operations alone that
``torch.save`` and plain pickles of data use; a memo is a dict, keys are plain, and what costs
memory costs bytes of the file.
"""

import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # older protocols have Python 2's names
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import shown


class DamagedPickle(ValueError):
    """A pickle that ends early, or does what no pickle of data does."""


class Record:
    """A class or function that a pickle names, or an object of it: inert, nothing was called.

    Attributes:
        name: with its module, as the pickle has it.
        args: what it would be called with; None: it is the class or function itself.
        state: what its attributes would be set to.
        items: what would be appended to it; or pairs of keys and values.
    """

    __slots__ = ("args", "items", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...] | None = None):
        self.name = name
        self.args = args
        self.state: Any = None
        self.items: list[Any] = []

    def __repr__(self) -> str:
        return f"Record({self.name!r})"


#: Makes the value that a name stands for, of the arguments in the pickle.
Builder = Callable[..., Any]

#: Types of a dict's keys; whole numbers are small, so that no two of them hash alike.
_KEYS = (str, bytes, int, bool, type(None))
_LARGEST_KEY = 1 << 53

#: Numbers that numpy's arrays and scalars in checkpoints are of.
_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


def read_pickle(
    content: bytes, builders: Mapping[str, Builder], storage: Callable[[Any], Any]
) -> tuple[Any, set[str]]:
    """Read a pickle.

    Args:
        content: the pickle.
        builders: what is made of the names that are known, besides those of settings and numpy.
        storage: gives what a persistent id stands for.

    Returns:
        What it holds, and the names in it that have no builder.

    Raises:
        DamagedPickle: it is none, or no pickle of data.
    """
    reader = _Reader(content, builders, storage)
    try:
        return reader.read(), reader.unknown
    except DamagedPickle:
        raise
    except (IndexError, KeyError, struct.error) as error:
        raise DamagedPickle("a pickle that ends early, or asks for what is not there") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedPickle(f"a pickle of {shown(str(error)[:200])}") from error


class _Reader:
    """A pickle that is read: its stack, memo and place."""

    def __init__(
        self, content: bytes, builders: Mapping[str, Builder], storage: Callable[[Any], Any]
    ):
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storage = storage
        self.unknown: set[str] = set()
        #: numpy's arrays that have no content yet, by their id.
        self.unfinished: dict[int, np.ndarray] = {}
        self.builders: dict[str, Builder] = {
            "argparse.Namespace": Namespace,
            "collections.OrderedDict": _ordered,
            "collections.Counter": _ordered,
            "collections.defaultdict": lambda *_: {},
            "_codecs.encode": _encoded,
            "numpy.dtype": _dtype,
            **builders,
        }
        for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            self.builders[f"{module}._reconstruct"] = self.new_array
            self.builders[f"{module}.scalar"] = _scalar

    def read(self) -> Any:
        """Do one operation after another, until the last."""
        content, operations = self.content, _OPERATIONS
        while True:
            code = content[self.at]
            self.at += 1
            if code == _STOP:
                return self.stack.pop()
            operation = operations.get(code)
            if operation is None:
                raise DamagedPickle(f"a pickle with the operation {bytes([code])!r}")
            operation(self)

    # ---- what lies in the pickle -----------------------------------------------------------

    def take(self, count: int) -> bytes:
        """Return the next bytes; where some are missing, there is no next operation either."""
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, form: str) -> Any:
        """Return the next number, of a form of ``struct``."""
        (number,) = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return number

    def line(self) -> str:
        """Return what comes before the next line's end."""
        end = self.content.index(b"\n", self.at)
        text = self.content[self.at : end].decode("utf-8")
        self.at = end + 1
        return text

    def popped(self) -> list[Any]:
        """Return what lies above the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    # ---- operations ------------------------------------------------------------------------

    def mark(self) -> None:
        """Begin a tuple, or items of a list or dict."""
        self.marks.append(len(self.stack))

    def tuple_of(self, count: int) -> None:
        """Make a tuple of the last values."""
        if len(self.stack) < count:
            raise DamagedPickle("a pickle with a tuple of nothing")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def append(self, items: Sequence[Any]) -> None:
        """Append to a list."""
        holder = self.stack[-1]
        if isinstance(holder, Record):
            holder.items.extend(items)
        elif type(holder) is list:
            holder.extend(items)
        else:
            raise DamagedPickle(f"a pickle that appends to a {type(holder).__name__}")

    def set_items(self, items: Sequence[Any]) -> None:
        """Set items of a dict: keys and values by turns."""
        holder = self.stack[-1]
        pairs = [*zip(items[::2], items[1::2])]
        if isinstance(holder, Record):
            holder.items.extend(pairs)
        elif type(holder) in (dict, OrderedDict):
            for key, value in pairs:
                holder[_checked_key(key)] = value
        else:
            raise DamagedPickle(f"a pickle that sets items of a {type(holder).__name__}")

    def name(self, module: Any, name: Any) -> None:
        """Put down a record of a class or function."""
        if type(module) is not str or type(name) is not str:
            raise DamagedPickle("a pickle with a class whose name is no text")
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        whole = f"{module}.{name}"
        if whole not in self.builders:
            self.unknown.add(whole)
        self.stack.append(Record(whole))

    def stack_name(self) -> None:
        """Put down a record of a class whose module and name come last."""
        name = self.stack.pop()
        self.name(self.stack.pop(), name)

    def make(self) -> None:
        """Make what a record stands for, where there is a builder; else an inert one."""
        args, made = self.stack.pop(), self.stack.pop()
        if type(args) is not tuple or not isinstance(made, Record) or made.args is not None:
            raise DamagedPickle(f"a pickle that calls a {type(made).__name__}")
        builder = self.builders.get(made.name)
        self.stack.append(Record(made.name, args) if builder is None else builder(*args))

    def set_state(self) -> None:
        """Set the attributes of settings; what numpy's arrays hold; the state of a record."""
        state, holder = self.stack.pop(), self.stack[-1]
        if isinstance(holder, Record):
            holder.state = state
        elif isinstance(holder, (Namespace, OrderedDict)):
            if type(state) is not dict or any(type(key) is not str for key in state):
                raise DamagedPickle("a pickle with settings that have no names")
            vars(holder).update(state)
        elif isinstance(holder, np.dtype):
            if state[1] not in ("<", "|", "="):
                raise DamagedPickle("a pickle of numbers of another machine")
        elif self.unfinished.pop(id(holder), None) is not None:
            _fill(holder, *state)
        else:
            raise DamagedPickle(f"a pickle that sets attributes of a {type(holder).__name__}")

    def new_array(self, *_: Any) -> np.ndarray:
        """Return an array of numpy, whose content follows."""
        array = np.empty(0, np.uint8)
        self.unfinished[id(array)] = array
        return array

    def persistent(self) -> None:
        """Put down what a persistent id stands for."""
        self.stack.append(self.storage(self.stack.pop()))


def _checked_key(key: Any) -> Any:
    """Refuse a key that takes long to hash, or to tell from others."""
    if type(key) is tuple and all(type(part) in _KEYS for part in key):
        return key
    if type(key) not in _KEYS or (type(key) is int and abs(key) > _LARGEST_KEY):
        raise DamagedPickle(f"a pickle of a dict with a {type(key).__name__} as a key")
    return key


def _ordered(*given: Any) -> OrderedDict[Any, Any]:
    """Return an ordered dict; items may come with the call."""
    pairs = given[0] if given else []
    pairs = pairs.items() if isinstance(pairs, dict) else pairs
    return OrderedDict((_checked_key(key), value) for key, value in pairs)


def _encoded(text: Any, encoding: Any) -> bytes:
    """Return bytes that protocol 2 writes as text."""
    if type(text) is not str or encoding != "latin1":
        raise DamagedPickle("a pickle with bytes of another encoding")
    return text.encode("latin1")


def _dtype(kind: Any, *_: Any) -> np.dtype:
    """Return the type of numpy's numbers."""
    if kind not in _NUMBERS:
        raise DamagedPickle(f"a pickle of numpy's numbers of type {shown(kind)}")
    return np.dtype(kind)


def _scalar(dtype: Any, content: Any) -> Any:
    """Return a number of numpy."""
    if not isinstance(dtype, np.dtype) or type(content) is not bytes:
        raise DamagedPickle("a pickle with a number of numpy that is none")
    (number,) = np.frombuffer(content, dtype)
    return number


def _fill(array: Any, version: Any, shape: Any, dtype: Any, fortran: Any, content: Any) -> None:
    """Give an array of numpy its content; numpy compares the sizes."""
    plain = isinstance(dtype, np.dtype) and type(content) is bytes and type(shape) is tuple
    if not plain or any(type(size) is not int or size < 0 for size in shape):
        raise DamagedPickle("a pickle with an array of numpy that is none")
    array.__setstate__((1, shape, dtype, bool(fortran), content))


_STOP = ord(".")

_OPERATIONS: dict[int, Callable[[_Reader], Any]] = {
    0x80: lambda r: r.take(1),  # the protocol
    0x95: lambda r: r.take(8),  # a frame's size
    ord("("): _Reader.mark,
    ord("}"): lambda r: r.stack.append({}),
    ord("]"): lambda r: r.stack.append([]),
    ord(")"): lambda r: r.stack.append(()),
    ord("t"): lambda r: r.stack.append(tuple(r.popped())),
    0x85: lambda r: r.tuple_of(1),
    0x86: lambda r: r.tuple_of(2),
    0x87: lambda r: r.tuple_of(3),
    ord("N"): lambda r: r.stack.append(None),
    0x88: lambda r: r.stack.append(True),
    0x89: lambda r: r.stack.append(False),
    ord("J"): lambda r: r.stack.append(r.number("<i")),
    ord("K"): lambda r: r.stack.append(r.number("B")),
    ord("M"): lambda r: r.stack.append(r.number("<H")),
    0x8A: lambda r: r.stack.append(int.from_bytes(r.take(r.number("B")), "little", signed=True)),
    ord("G"): lambda r: r.stack.append(r.number(">d")),
    ord("X"): lambda r: r.stack.append(str(r.take(r.number("<I")), "utf-8", "surrogatepass")),
    0x8C: lambda r: r.stack.append(str(r.take(r.number("B")), "utf-8", "surrogatepass")),
    ord("U"): lambda r: r.stack.append(str(r.take(r.number("B")), "ascii")),
    ord("B"): lambda r: r.stack.append(r.take(r.number("<I"))),
    ord("C"): lambda r: r.stack.append(r.take(r.number("B"))),
    ord("q"): lambda r: r.memo.__setitem__(r.number("B"), r.stack[-1]),
    ord("r"): lambda r: r.memo.__setitem__(r.number("<I"), r.stack[-1]),
    0x94: lambda r: r.memo.__setitem__(len(r.memo), r.stack[-1]),
    ord("h"): lambda r: r.stack.append(r.memo[r.number("B")]),
    ord("j"): lambda r: r.stack.append(r.memo[r.number("<I")]),
    ord("c"): lambda r: r.name(r.line(), r.line()),
    0x93: _Reader.stack_name,
    ord("R"): _Reader.make,
    0x81: _Reader.make,
    ord("b"): _Reader.set_state,
    ord("Q"): _Reader.persistent,
    ord("a"): lambda r: r.append([r.stack.pop()]),
    ord("e"): lambda r: r.append(r.popped()),
    ord("s"): lambda r: r.set_items([r.stack.pop(), r.stack.pop()][::-1]),
    ord("u"): lambda r: r.set_items(r.popped()),
}
