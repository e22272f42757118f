"""Checks and writing of output files: pages and pictures."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from ...errors import UsageError, option_error
from ...files import replacing
from ..show.page import MARK

#: Endings of pictures.
SUFFIXES = (".png", ".svg")


def is_page(path: str) -> bool:
    """Return whether a page may be written here: the file is new, empty, or an earlier page."""
    if not os.path.lexists(path):
        return True
    if not os.path.isfile(path):
        return False
    mark = MARK.encode()
    with open(path, "rb") as file:
        return file.read(len(mark)) in (mark, b"")


def check_page(flag: str, path: str) -> None:
    """Refuse a page that cannot be written.

    Raises:
        UsageError: its folder does not exist, it may not be written, or it is another file.
    """
    check_folder(flag, path)
    if not is_page(path):
        raise option_error(flag, path, "a new file, or an earlier page; this is something else")


def check_folder(flag: str, path: str) -> None:
    """Refuse a file whose folder does not exist or may not be written."""
    folder = os.path.dirname(os.path.realpath(path))
    if path == "" or os.path.isdir(path):
        raise option_error(flag, path, "a file, not a folder or nothing")
    if not os.path.isdir(folder):
        raise option_error(flag, path, f"a file in a folder that exists; {folder} does not")
    if not os.access(folder, os.W_OK):
        raise option_error(flag, path, "a file in a folder that may be written")


def check_picture(flag: str, path: str) -> Path:
    """Refuse a picture of an unknown kind, or that cannot be written."""
    if Path(path).suffix not in SUFFIXES:
        raise option_error(flag, path, f"a name that ends in {' or '.join(SUFFIXES)}")
    check_folder(flag, path)
    return Path(path)


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[TextIO]:
    """Open a text file that gets its name when it is complete; a link is followed.

    Raises:
        UsageError: the path is a device or a folder.
    """
    target = os.path.realpath(path)
    if os.path.lexists(target) and not os.path.isfile(target):
        raise UsageError(f"{path}: got a device or a folder; allowed: a file, which is replaced")
    with replacing(Path(target), shared=True) as part, part.open("w", encoding="utf-8") as file:
        yield file


def warn_of_fonts(command: str, missing: Sequence[str]) -> None:
    """Warn of characters of a picture that no font of the machine has."""
    if missing:
        from ..show import fonts  # matplotlib takes a second to load

        print(f"paradec {command}: warning: {fonts.warning(missing)}", file=sys.stderr)
