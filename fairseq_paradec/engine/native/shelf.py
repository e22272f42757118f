"""Packed weights in a file, which all processes that read it share."""

import ctypes
import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from ...files import replacing
from .library import library

#: The version of the file, and its first bytes, which a line of JSON follows.
FORMAT, NAME = 1, "paradec packed weights"
#: Where maps begin is a multiple of this: a page.
_PAGE = 4096
#: No map has so many outputs or inputs.
_MOST = 1 << 24


class Shelf:
    """Packed maps of a model in one form, in the order in which packing makes them.

    Args:
        form: a key of ``FORMS``.
        number: csrc's number of the form.
        content: the file's maps, read-only; None: it is being written.
        maps: outputs and inputs of each map, and the number of its form, if that is another.
    """

    def __init__(
        self,
        form: str,
        number: int,
        content: mmap.mmap | None = None,
        maps: list[list[int]] | None = None,
        start: int = 0,
    ) -> None:
        self.form, self.number, self.content = form, number, content
        self.maps = [] if maps is None else maps
        self.written: list[bytes] = []
        self._next, self._place = 0, start
        self._first = 0
        if content is not None:
            self._first = np.frombuffer(content, np.uint8).ctypes.data

    @property
    def reads(self) -> bool:
        """Whether maps come from the file."""
        return self.content is not None

    def place(self, outputs: int, inputs: int, number: int) -> int:
        """Return where the next map lies, which must have this size and form.

        Raises:
            ValueError: the file's next map is another one.
        """
        if self.maps[self._next : self._next + 1] != [self._entry(outputs, inputs, number)]:
            raise ValueError("its maps are those of another model")
        at, self._next = self._first + self._place, self._next + 1
        self._place += library().paradec_map_bytes(outputs, inputs, number)
        return at

    def room(self, outputs: int, inputs: int, number: int) -> ctypes.Array[ctypes.c_char]:
        """Return memory for the next map, to be given to ``keep``."""
        self.maps.append(self._entry(outputs, inputs, number))
        return ctypes.create_string_buffer(library().paradec_map_bytes(outputs, inputs, number))

    def _entry(self, outputs: int, inputs: int, number: int) -> list[int]:
        """Return what ``maps`` says of a map."""
        return [outputs, inputs] if number == self.number else [outputs, inputs, number]

    def keep(self, written: ctypes.Array[ctypes.c_char]) -> None:
        """Keep a map for the file."""
        self.written.append(written.raw)

    def save(self, path: Path, shared: bool = False) -> None:
        """Write the file, whole or not at all; see ``replacing``."""
        head = {
            "name": NAME,
            "format": FORMAT,
            "layout": library().paradec_packing().decode(),
            "form": self.form,
            "maps": self.maps,
            "bytes": sum(map(len, self.written)),
        }
        line = json.dumps(head).encode() + b"\n"
        with replacing(path, shared) as partial, open(partial, "wb") as file:
            file.write(line + b" " * (-len(line) % _PAGE))
            file.writelines(self.written)


def open_shelf(path: Path, form: str, number: int) -> Shelf | str:
    """Map a file of packed weights, or say why it is of no use here."""
    try:
        with open(path, "rb") as file:
            line = file.readline(1 << 20)
            head = json.loads(line)
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError, RecursionError) as error:
        return f"it cannot be read ({error})"
    if not isinstance(head, dict) or head.get("name") != NAME or head.get("format") != FORMAT:
        return f"it is not of format {FORMAT}"
    layout = library().paradec_packing().decode()
    if head.get("layout") != layout:
        there = str(head.get("layout"))[:80]
        return f"its layout is another instruction set's ({there}; here {layout})"
    start = -(-len(line) // _PAGE) * _PAGE
    maps: Any = head.get("maps")
    if head.get("form") != form or not _are_sizes(maps):
        return "it is of another form"
    if len(content) != start + sum(
        library().paradec_map_bytes(*[*sizes, number][:3]) for sizes in maps
    ):
        return "it is cut short"
    return Shelf(form, number, content, maps, start)


def _are_sizes(maps: Any) -> bool:
    """Return whether a value is a list of pairs of sizes, some with a form's number."""
    return isinstance(maps, list) and all(
        isinstance(sizes, list)
        and len(sizes) in (2, 3)
        and all(type(n) is int and 0 < n < _MOST for n in sizes)
        for sizes in maps
    )
