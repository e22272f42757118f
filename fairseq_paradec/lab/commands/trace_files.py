"""The sentences of traces: read one by one, and matched between files."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import UsageError, option_error
from ...records import Record, lines_of, open_records, parse, read
from ..show.trace_records import read_sentence
from ..show.trace_view import Sentence


@dataclass(frozen=True)
class Entry:
    """A sentence of one file."""

    file: int  # which of the files, from 0
    number: int  # of its line, from 1
    record: Record  # the line
    sentence: Sentence  # read from it


#: Identifies a sentence in every file: its ``id`` (or its line, without one), and the number of
#: earlier lines with the same.
Key = tuple[str, int]


class Index:
    """Where the sentences of a trace stand in its file; no more is kept in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Number and offset of each sentence's line, and a hash of its source.
        self.places: dict[Key, tuple[int, int, int]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, record: Record, number: int, offset: int = 0) -> Key:
        """Note where the next sentence stands; return its key."""
        known = record.get("id")
        # fairseq-interactive gives no number.
        name = f"sentence of line {number}" if known is None else f"sentence {known}"
        self._counts[name] += 1
        key = name, self._counts[name]
        self.places[key] = number, offset, hash(tuple(record.get("source") or ()))
        return key

    def read(self, key: Key) -> tuple[int, Record]:
        """Read a sentence again; return the number of its line, and its record."""
        number, offset, _ = self.places[key]
        with open_records(self.path) as file:
            file.seek(offset)
            return number, parse(file.readline(), f"{self.path}, line {number}")


def index(path: str) -> Index:
    """Find the sentences of a trace.

    Raises:
        UsageError: as ``records.read``, for any line; or the file is a pipe.
    """
    places = Index(path)
    with open_records(path) as file:
        if not file.seekable():
            raise option_error("FILE", path, "no pipe, but as the first of several files")
        offset = 0
        for number, record in lines_of(path, file):
            places.add(record, number, offset)
            offset = file.tell()
    return places


def groups(
    paths: Sequence[str], wanted: Sequence[str] | None = None, limit: int | None = None
) -> Iterator[list[Entry]]:
    """Yield the sentences to show, each with its entries from all files that have it.

    The order is that of the first file, which is read line by line; sentences that only later files
    have follow.

    Raises:
        UsageError: a file is malformed, none has a wanted number, or the sources differ.
    """
    missing = dict.fromkeys(f"sentence {number}" for number in wanted or ())
    names = None if wanted is None else set(missing)
    shown = 0
    for name, lines in _all_sentences(paths):
        if names is not None and name not in names:
            continue
        missing.pop(name, None)
        yield _entries(paths, name, lines)
        shown += 1
        if shown == limit:
            return
    if missing:
        given = " ".join(name.removeprefix("sentence ") for name in missing)
        raise option_error("--sentence", given, f"numbers (id) of sentences in {', '.join(paths)}")


#: A line of one file: which file, the line's number, the record.
Line = tuple[int, int, Record]


def _all_sentences(paths: Sequence[str]) -> Iterator[tuple[str, list[Line]]]:
    """Yield every sentence's name and lines."""
    first, others = Index(paths[0]), [index(path) for path in paths[1:]]

    def lines_in_others(key: Key) -> list[Line]:
        return [(i, *other.read(key)) for i, other in enumerate(others, 1) if key in other.places]

    for number, record in read(paths[0]):
        key = first.add(record, number)
        yield key[0], [(0, number, record), *lines_in_others(key)]
    for key in dict.fromkeys(key for other in others for key in other.places):
        if key not in first.places:
            yield key[0], lines_in_others(key)


def _entries(paths: Sequence[str], name: str, lines: Sequence[Line]) -> list[Entry]:
    """Read one sentence's lines, which must have the same source."""
    entries: list[Entry] = []
    for file, number, record in lines:
        where = f"{paths[file]}, line {number}"
        try:
            sentence = read_sentence(record, name)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        entries.append(Entry(file, number, record, sentence))
        known = (entry for entry in entries if entry.sentence.source is not None)
        first = next(known, entries[-1])  # not every trace has sources
        if sentence.source not in (None, first.sentence.source):
            raise UsageError(
                f"{where}: {name} has another source than in {paths[first.file]}, line "
                f"{first.number}; allowed: traces of the same data"
            )
    return entries
