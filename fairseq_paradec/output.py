"""Standard output and exit status of commands."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
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
