"""Files: text that a user names, whole or not at all, and checksums."""

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .errors import option_error
from .utf8 import without_marks

#: The file of a model folder that names its others; see ``translator/model_folder.py``.
MODEL_FOLDER = "paradec.json"


def read(flag: str, path: str) -> str:
    """Read a file of UTF-8 text.

    Raises:
        UsageError: it cannot be read, is empty, or is no UTF-8 text.
    """
    try:
        text = without_marks(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise option_error(flag, path, f"a file that can be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise option_error(
            flag, path, f"a file of UTF-8 text; byte {error.start} is none"
        ) from error
    if not text.strip():
        raise option_error(flag, path, "a file with sentences; this one is empty")
    return text.replace("\r\n", "\n")


def check_inputs(data: str, path: str, flag: str = "DATA") -> None:
    """Refuse a missing data folder or checkpoint, of one model or an ensemble."""
    if not os.path.isdir(data):
        raise option_error(flag, data, "a folder made by fairseq-preprocess")
    for file in path.split(os.pathsep):
        if not os.path.isfile(file):
            raise option_error("--path", file, "a fairseq checkpoint")


def language_pair(data: str) -> tuple[str | None, str | None]:
    """Return the languages of a data folder, as test.en-de.en.bin is named; None: there are none.

    fairseq takes the first such file that it finds, too.
    """
    for name in sorted(os.listdir(data)):
        parts = name.split(".")
        if len(parts) > 2 and parts[1].count("-") == 1:
            source, _, target = parts[1].partition("-")
            return source, target
    return None, None


#: How many times its own size an archive may hold, beside a megabyte.
UNPACKED = 20


def check_unpacked(archive: zipfile.ZipFile, path: str | Path) -> None:
    """Refuse an archive that holds much more than its size: weights hardly compress."""
    size = sum(info.file_size for info in archive.infolist())
    if size > UNPACKED * os.path.getsize(path) + (1 << 20):
        raise zipfile.BadZipFile(f"it unpacks to {size / 1e6:.0f} MB, from no weights")


class Checked(NamedTuple):
    """A file whose content is known, as long as it is unchanged."""

    path: Path
    stamp: tuple[int, ...] | None  # of ``stamp_of``, before it was read
    digest: str  # of ``checksum``

    @property
    def is_unchanged(self) -> bool:
        """Whether the path still names the file as it was."""
        return self.stamp is not None and stamp_of(self.path) == self.stamp


def stamp_of(path: str | Path) -> tuple[int, ...] | None:
    """Return a file's device, number, size and time, the last two of its content; None: none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def checksum(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """Write a file whole or not at all: yields another name, which becomes the file at the end.

    Args:
        path: the file; an error of the body leaves it as it was.
        shared: whether several processes may write it at a time; each has a name of its own then.
            What a killed process leaves is overwritten by the next only without.
    """
    own = f".{os.getpid()}" if shared else ""
    partial = path.with_name(f"{path.name}{own}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.filename is None:  # of a write, as on a full disk
            error.filename = str(path)
        raise
