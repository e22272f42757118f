"""Packed weights in the user's cache folder: the next process maps them, and both share them."""

import contextlib
import logging
import os
from pathlib import Path

from ...model.model import Model
from ...model.weights import stored
from .building import hash_of
from .library import path as library_path
from .library import user_folder
from .shelf import Shelf

log = logging.getLogger(__name__)

#: Bytes of all files together, at most.
MOST = 4_000_000_000
#: A model of fewer bytes is packed about as fast as it is found.
LEAST = 16_000_000


def place(model: Model, form: str) -> Path | None:
    """Return the file of a model's packed weights in a form; None: they are not kept.

    Its name holds the hash of the weights' file, if that is known, or else of the weights; the
    form; and the hash of the record, whose heads say how maps are padded, with what the library
    was built from.
    """
    folder = user_folder("packed")
    if why_not(model) is not None or folder is None:
        return None
    file = model.checked
    digits = file.digest[:16] if file is not None and file.is_unchanged else model.digest()
    others = hash_of(f"{library_path().name} {model.architecture}".encode())
    return folder / f"{digits}-{form}-{others}"


def why_not(model: Model) -> str | None:
    """Say why a model's packed weights are not kept, or return None."""
    if not model.lasts or model.is_packed_only:
        return "its weights may change, or lie packed in its folder"
    if _bytes(model) < LEAST:
        return "the model is small"
    return None if user_folder("packed") is not None else "there is no cache folder"


def _bytes(model: Model) -> int:
    """Return the size of a model's weights, in fp32."""
    return sum(4 * weight.size for weight in stored(model.weights).values())


def keep(shelf: Shelf, path: Path) -> bool:
    """Write packed weights to their file, and remove the oldest ones; return whether it is there.

    A folder that cannot be written to is named once in the log.
    """
    size = sum(map(len, shelf.written))
    if size > MOST:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent, size)
        shelf.save(path, shared=True)
    except OSError as error:
        if str(path.parent) not in _SAID:
            _SAID.add(str(path.parent))
            log.info("packed weights are not kept in %s: %s", path.parent, error.strerror)
        return False
    return True


#: Folders that the log has named.
_SAID: set[str] = set()


def used(path: Path) -> None:
    """Note that a file is used, so that others are older."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _make_room(folder: Path, size: int) -> None:
    """Remove the files that were not used for longest, until so many bytes fit."""
    files = []
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            about = file.stat()
            files.append((about.st_mtime, about.st_size, file))
    total = sum(length for _, length, _ in files)
    for _, length, file in sorted(files):
        if total + size <= MOST:
            return
        file.unlink(missing_ok=True)
        total -= length
