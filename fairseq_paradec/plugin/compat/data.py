"""Fixes of what fairseq 0.12 reads: data folders, and the text of fairseq-interactive."""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import bucket_pad_length_dataset, indexed_dataset

from ...errors import option_error
from ...utf8 import bare
from .patching import Function, around

#: Bytes of an index before its sizes: magic number, version, type of tokens, count of sentences.
_HEAD = 26
#: Sentences whose sizes are read together.
_AT_ONCE = 1 << 20
_MAGIC = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC


def refuse_torn_data() -> None:
    """Name a data file that is cut off or damaged.

    Fault: fairseq 0.12 maps the files into memory without a look at their sizes. A short index ends
    with errors of half-made objects, a short data file with a ValueError while decoding.
    """

    @around(indexed_dataset, "make_dataset")
    def make_dataset(original: Function, path: str, *args: Any, **kwargs: Any) -> Any:
        if indexed_dataset.MMapIndexedDataset.exists(path):
            _check_files(Path(f"{path}.idx"), Path(f"{path}.bin"))
        return original(path, *args, **kwargs)


def _check_files(index: Path, data: Path) -> None:
    """Compare the sizes of a subset's two files with every line of the index.

    Raises:
        UsageError: one is cut off, or there is no sentence.
    """
    with index.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"TNTIDX"):
        return  # of the older format
    count = int.from_bytes(head[_HEAD - 8 :], "little")
    end = _HEAD + 12 * count  # a size takes 4 bytes, a place 8
    kind = indexed_dataset._code_to_dtype.get(head[-9]) if len(head) == _HEAD else None
    begins = head.startswith(_MAGIC + (1).to_bytes(8, "little"))
    integers = begins and kind is not None and np.dtype(kind).kind in "iu"
    wrong = index if not integers or index.stat().st_size < end else None
    for first in range(0, count if wrong is None else 0, _AT_ONCE):
        some = min(_AT_ONCE, count - first)
        sizes = np.fromfile(index, np.int32, some, offset=_HEAD + 4 * first).astype(np.int64)
        places = np.fromfile(index, np.int64, some, offset=_HEAD + 4 * count + 8 * first)
        last = data.stat().st_size - sizes * np.dtype(kind).itemsize
        if sizes.min() < 0 or places.min() < 0:
            wrong = index
        elif (places > last).any():
            wrong = wrong or data
    if wrong is not None or not count:
        held = "holds no sentence" if wrong is None else "is cut off or damaged"
        raise option_error(
            "DATA", str(wrong or index), f"a file that fairseq-preprocess made; this {held}"
        )


def divide_into_buckets() -> None:
    """Let ``--num-batch-buckets`` divide by length.

    Fault: fairseq 0.12 calls ``np.percentile(..., interpolation=)`` and ``np.compat.long``, which
    numpy 2.4 does not have.
    """
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]

    @around(bucket_pad_length_dataset, "get_buckets")
    def get_buckets(original: Function, sizes: Any, num_buckets: int) -> Any:
        shares = np.linspace(0, 100, num_buckets + 1)
        return np.unique(np.percentile(sizes, shares, method="lower")[1:])


def explain_input(original: Function) -> Function:
    """Wrap interactive's ``buffered_read``: name text that cannot be read, drop U+FEFF."""

    def buffered_read(path: str, buffer_size: int) -> Iterator[list[str]]:
        try:
            for lines in original(path, buffer_size):
                yield [bare(line) for line in lines]
        except OSError as error:
            raise option_error("--input", path, f"a text file ({error.strerror})") from error
        except UnicodeDecodeError as error:
            near = error.object[max(0, error.start - 20) : error.end + 20]
            raise option_error("--input", path, f"text in UTF-8; {near!r} is not") from error

    return buffered_read
