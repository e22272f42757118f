"""Standard output and exit status of commands, and texts that a terminal can show."""

import contextlib
import errno
import io
import os
import signal
import sys
import unicodedata
from collections.abc import Iterator

from .errors import UsageError

#: Flags whose reports were dropped, or whose audit failed: fairseq's commands then end with 1.
FAILED: set[str] = set()


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
        discard_output()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:  # a file's, named there
            raise
        discard_output()
        raise UsageError("standard output cannot be written: its disk is full") from error


def discard_output() -> None:
    """Print nothing more, not even what is still kept back."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
