"""Lines of a pipe, as they come: who waits for an answer is not kept waiting for more lines."""

import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from ..errors import UsageError, option_error

#: Seconds without a byte after which the lines that are there are taken.
QUIET = 0.02
#: Bytes that are read at once.
_READ = 1 << 16


class Pipe(Iterator[str]):
    """The lines of a pipe, in UTF-8; the last one may lack its end.

    Args:
        descriptor: of the pipe, a socket or a terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()  # that are read
        self._parts: list[bytes] = []  # of the line that is not whole yet
        self._ends = False

    def take(self, count: int) -> list[str]:
        """Return the next lines: so many, or those that are there once the pipe is quiet.

        The first is waited for; none come behind the pipe's end. Lines before one that is no text
        are returned, and it is refused in the next call.

        Raises:
            UsageError: the first line is no text in UTF-8.
        """
        taken: list[str] = []
        while len(taken) < count:
            if self._lines:
                try:
                    taken.append(_text(self._lines[0]))
                except UsageError:
                    if not taken:
                        raise
                    break
                self._lines.popleft()
            elif self._ends or not self._read(QUIET if taken else None):
                break
        return taken

    def _read(self, seconds: float | None) -> bool:
        """Read lines; False: within these seconds nothing came. None: they are endless."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        given = os.read(self._descriptor, _READ)
        self._ends = not given
        first, *others = given.split(b"\n")
        self._parts.append(first)
        for part in others:
            self._lines.append(b"".join(self._parts) + b"\n")
            self._parts = [part]
        if self._ends and any(self._parts):
            self._lines.append(b"".join(self._parts))
        return True

    def __next__(self) -> str:
        """Return the next line."""
        for line in self.take(1):
            return line
        raise StopIteration


class Watched(Iterator[str]):
    """Lines that are counted as they are taken.

    Args:
        lines: of a pipe, or others.
        counts: which lines are counted.

    Attributes:
        count: of those so far.
        first: the number of the first of them, from 1; 0: there is none.
    """

    def __init__(self, lines: Iterator[str], counts: Callable[[str], bool]) -> None:
        self._lines, self._counts = lines, counts
        self.count = self.first = self._taken = 0

    def take(self, count: int) -> list[str]:
        """Return the next lines; see the function."""
        lines = take(self._lines, count)
        for number, line in enumerate(lines, self._taken + 1):
            if self._counts(line):
                self.count += 1
                self.first = self.first or number
        self._taken += len(lines)
        return lines

    def __next__(self) -> str:
        """Return the next line."""
        for line in self.take(1):
            return line
        raise StopIteration


def take(lines: Iterator[str], count: int) -> list[str]:
    """Return the next lines of an iterator: so many, or of a pipe those that are there."""
    return lines.take(count) if isinstance(lines, Pipe | Watched) else list(islice(lines, count))


def _text(line: bytes) -> str:
    """Read a line.

    Raises:
        UsageError: it is no text in UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        near = line[max(0, error.start - 20) : error.end + 20]
        allowed = f"text in UTF-8; {near!r} is not"
        raise option_error("FILE", "standard input", allowed) from error
