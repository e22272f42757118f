"""Standard output and exit status of commands, and texts that a terminal can show."""

import contextlib
import errno
import io
import logging
import os
import signal
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

from .errors import UsageError

#: Flags whose reports were dropped, or whose audit failed: fairseq's commands then end with 1.
FAILED: set[str] = set()


def open_streams() -> None:
    """Put the null device in the place of standard streams that are closed (``>&-``).

    Python has None for them, and the next file that is opened would get their number.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the free number
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def complain(text: str) -> None:
    """Print a line on standard error, if that takes it: it may be closed, or on a full disk."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text, file=sys.stderr)


def is_closed(logger: logging.Logger | None) -> bool:
    """Say whether a handler of a logger writes to a closed stream, as at the interpreter's end.

    What is logged there is lost, and logging complains at length.
    """
    while logger is not None:
        if any(getattr(getattr(h, "stream", None), "closed", False) for h in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


@contextlib.contextmanager
def whole_lines() -> Iterator[None]:
    """Print each line when it is finished, and end quietly when nobody reads on (``| head``).

    Python keeps several kilobytes back where the output is no terminal, and a signal loses them.

    Raises:
        SystemExit: nobody reads on; with the status of a program that SIGPIPE ends.
        UsageError: standard output is on a full disk.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:  # a file's, named there
            raise
        discard(sys.stdout)
        raise UsageError("standard output cannot be written: its disk is full") from error


def flush_errors() -> None:
    """Print what standard error keeps back, or nothing more: Python would end with status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: Any) -> None:
    """Print nothing more on a standard stream, not even what is still kept back."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printable(token: str) -> str:
    r"""Return a token with controls of terminals and of text direction escaped, as ``\x1b``."""
    return "".join(_escaped(c) if _is_control(c) else c for c in token)


def _is_control(character: str) -> bool:
    """Return whether a character is a control, a surrogate, a line's end, or sets the direction."""
    turns = unicodedata.bidirectional(character) in (
        *("LRE", "RLE", "PDF", "LRO", "RLO"),
        *("LRI", "RLI", "FSI", "PDI"),
    )
    # non-characters such as U+FFFE, which XML forbids
    never = ord(character) & 0xFFFE == 0xFFFE or "\ufdd0" <= character <= "\ufdef"
    return turns or never or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
