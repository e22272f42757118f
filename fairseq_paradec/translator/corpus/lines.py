"""The lines of a corpus: files of text or parquet, anywhere that fsspec reads."""

import codecs
import importlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ... import extras
from ...errors import UsageError, option_error
from .parts import Part

#: The column of a parquet file, unless another is given.
COLUMN = "text"


class Corpus:
    """Lines of files, in the order of their names' places on the command line.

    Args:
        given: files, patterns, or folders, whose files are in the order of their names.
        column: of parquet files.

    Attributes:
        files: path and bytes of each.

    Raises:
        UsageError: nothing is there, or nothing reads such paths.
    """

    def __init__(self, given: Sequence[str], column: str = COLUMN) -> None:
        self.column = column
        self._files = [file for path in given for file in _find(path)]
        self.files = [(path, size) for _, path, size in self._files]
        self._read = self._bytes = 0

    def estimate(self) -> int | None:
        """Return about how many lines there are, by the bytes of those that were read."""
        plain = all(_compression(path) is None for path, _ in self.files)
        if not self._bytes or not plain or any(_is_parquet(path) for path, _ in self.files):
            return None
        return int(self._read * sum(size for _, size in self.files) / self._bytes)

    def parts(self, count: int) -> Iterator[Part]:
        """Yield parts of ``count`` lines: their work is the first one's number, and the lines."""
        lines, first = self.lines(), 0
        while some := list(islice(lines, count)):
            yield Part(f"{first:012}.jsonl", len(some), (first, some))
            first += len(some)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, without their ends and byte order marks.

        Raises:
            UsageError: a file cannot be read.
        """
        for system, path, _ in self._files:
            try:
                lines_of = self._parquet if _is_parquet(path) else _text
                for line in lines_of(system, path):
                    self._read += 1
                    self._bytes += len(line)
                    text = line.replace(codecs.BOM_UTF8, b"")
                    yield text.removesuffix(b"\n").removesuffix(b"\r")
            except UsageError:
                raise
            except Exception as error:  # of a file system, a compression, or parquet
                raise option_error("INPUT", path, f"a file that can be read ({error})") from error

    def _parquet(self, system: Any, path: str) -> Iterator[bytes]:
        """Yield the texts of a parquet file; one that is missing is empty."""
        with extras.named(path):
            parquet = importlib.import_module("pyarrow.parquet")
        with system.open(path, "rb") as stream:
            file = parquet.ParquetFile(stream)
            if self.column not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names)
                raise option_error("--column", self.column, f"a column of {path}: {names}")
            for batch in file.iter_batches(1024, columns=[self.column]):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str | bytes | None):
                        allowed = f"a column of text; {path} has {text!r} there"
                        raise option_error("--column", self.column, allowed)
                    yield text.encode() if isinstance(text, str) else text or b""


def _find(given: str) -> list[tuple[Any, str, int]]:
    """Return file system, path and bytes of each file that an argument names.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    try:
        system, path = url_to_fs(given)
        named = [path] if system.exists(path) else sorted(system.glob(path))
        paths = [path for name in named for path in _within(system, name)]
        files = [(system, path, int(system.size(path) or 0)) for path in paths]
        strange = [path for path in paths if not system.isfile(path)]
    except (ImportError, ValueError, OSError) as error:
        allowed = f"a file, pattern or folder that can be read ({error})"
        raise option_error("INPUT", given, allowed) from error
    if not named:
        raise option_error("INPUT", given, "a file, pattern or folder that exists; there is none")
    if strange or not paths:
        allowed = "a file, a pattern, or a folder with files (no pipe, no link to a folder)"
        raise option_error("INPUT", strange[0] if strange else given, allowed)
    return files


def _within(system: Any, path: str) -> list[str]:
    """Return a file, or the files of a folder and those below it by name, but no hidden ones."""
    if system.isfile(path) or not system.isdir(path):
        return [path]
    paths: list[str] = []
    for entry in system.ls(path, detail=True):
        name = entry["name"].rstrip("/")
        if name != path and not name.rpartition("/")[2].startswith("."):
            paths += _within(system, name) if entry["type"] == "directory" else [name]
    return sorted(paths)


def _text(system: Any, path: str) -> Iterator[bytes]:
    """Yield the lines of a text file, which may be compressed."""
    with system.open(path, "rb", compression=_compression(path)) as stream:
        yield from stream


def _compression(path: str) -> str | None:
    """Return fsspec's name of the compression of a file."""
    from fsspec.utils import infer_compression  # type: ignore[import-untyped]

    return infer_compression(path)


def _is_parquet(path: str) -> bool:
    """Return whether a file is one of parquet, by its name."""
    return path.endswith(".parquet")
