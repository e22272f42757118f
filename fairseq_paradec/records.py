"""Records of decoding, one a sentence: their fields, how they are written, how they are read.

``--stats-file`` and ``--trace-file`` hold one JSON object a line (docs/trace.md). Both have the
same fields; a trace also has ``trace``, a list with one object per decoder pass. Every method
fills the same fields, and every reader in the package reads them by this module. It needs the
standard library only.
"""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, TypedDict, cast

from .errors import UsageError, option_error, shown

SCHEMA, VERSION = "fairseq_paradec.decoding", 2
#: Records of these versions are read; fields that version 1 lacks are "not recorded".
READABLE_VERSIONS = (1, 2)
#: Flags that write records, and what readers accept.
STATS, TRACE = "--stats-file", "--trace-file"


class Pass(TypedDict, total=False):
    """An entry of ``trace``; docs/trace.md describes the fields."""

    start: int
    num_accepted: int
    num_committed: int
    num_nodes: int
    tree: list[list[Any]]
    given: bool
    positions: list[int]
    directions: list[str] | None
    draft: list[str]
    verifier: list[str]
    log_probs: list[float | None]
    runner_up: list[str | None]
    runner_up_log_probs: list[float | None]
    draft_log_probs: list[float | None]
    draft_ranks: list[int]
    draft_confidences: list[float]


class Record(TypedDict, total=False):
    """A sentence's record; docs/trace.md describes the fields."""

    schema: str
    version: int
    id: int | None
    decoding: str
    flags: dict[str, Any]
    source: list[str] | None
    output: list[str]
    score: float
    positional_scores: list[float]
    num_tokens: int
    decoder_passes: int
    mean_accepted: float
    num_drafted: list[int]
    num_accepted: list[int]
    given: list[bool]
    lossless: bool
    sampling: dict[str, float]
    rules: dict[str, Any]
    engine: str
    engine_dtype: str
    compiled: bool
    model: str
    drafter: str | None
    versions: dict[str, str | None]
    audit: dict[str, Any] | None
    chosen: str | None
    batch_size: int
    batch_seconds: float
    trace: list[Pass]


# ---- what a decoder notes ------------------------------------------------------------------------


@dataclass
class PassTokens:
    """The tokens of one pass of one row, for a trace."""

    draft: list[int]  # the drafted tokens
    verifier: list[int]  # the verifier's own tokens, one per scored position
    log_probs: list[float]  # their log-probabilities
    # the second best token at the same positions; None where only one is allowed
    runner_up: list[int | None]
    runner_up_log_probs: list[float | None]  # their log-probabilities
    draft_log_probs: list[float]  # the verifier's log-probabilities of the drafted tokens
    # the numbers of tokens that the verifier scores higher than the drafted ones
    draft_ranks: list[int]
    # the drafter's probabilities of the drafted tokens; None if not known
    draft_confidences: list[float] | None = None


@dataclass
class PassRecord:
    """One decoder pass of one row."""

    start: int  # the position of the pass's first prediction
    num_drafted: int  # the number of drafted tokens
    num_accepted: int  # the number of accepted drafted tokens, without the verifier's own token
    num_committed: int  # the number of final predictions, before the output is cut at ``</s>``
    tokens: PassTokens | None = None  # the tokens of the pass, if a trace is kept
    # the committed predictions' positions in the output, for a model with another target order;
    # ``start`` then counts the tokens written before. None: from ``start`` on.
    positions: list[int] | None = None
    # with ``positions``, for a trace: the direction that wrote each of them
    directions: list[str] | None = None
    # the number of nodes of a draft tree; the other numbers are of one path. None: the draft is no
    # tree.
    num_nodes: int | None = None
    # of a beam, if a trace is kept, the nodes that the pass read: token, the number of the node
    # before (in the order of reading, over all passes; -1: none), and whether a live hypothesis of
    # the search had it
    tree: list[tuple[int, int, bool]] | None = None
    given: bool = False  # whether the draft is from an earlier output (``--drafts``)

    def note_given(self) -> None:
        """Note that the draft is from an earlier output; no drafter was sure of it."""
        self.given = True
        if self.tokens is not None:
            self.tokens.draft_confidences = None

    def as_json(self, word: Callable[[int], str]) -> Pass:
        """Return one entry of the trace, with token numbers spelled by ``word``."""
        entry: Pass = {
            "start": self.start,
            "num_accepted": self.num_accepted,
            "num_committed": self.num_committed,
        }
        if self.num_nodes is not None:
            entry["num_nodes"] = self.num_nodes
        if self.tree is not None:
            entry["tree"] = [[word(token), parent, kept] for token, parent, kept in self.tree]
        if self.given:
            entry["given"] = True
        if self.positions is not None:
            entry |= {"positions": self.positions, "directions": self.directions}
        if self.tokens is not None:
            entry |= {
                "draft": [word(t) for t in self.tokens.draft],
                "verifier": [word(t) for t in self.tokens.verifier],
                "log_probs": _finite(self.tokens.log_probs),
                "runner_up": [None if t is None else word(t) for t in self.tokens.runner_up],
                "runner_up_log_probs": self.tokens.runner_up_log_probs,
                "draft_log_probs": _finite(self.tokens.draft_log_probs),
                "draft_ranks": self.tokens.draft_ranks,
            }
            if self.tokens.draft_confidences:
                entry["draft_confidences"] = self.tokens.draft_confidences
        return entry


def _finite(values: list[float]) -> list[float | None]:
    """Replace -inf (a forbidden token), which JSON does not have, by None."""
    return [value if math.isfinite(value) else None for value in values]


# ---- writing -------------------------------------------------------------------------------------

# Files that this process has opened; a second decoder appends to them.
_begun: set[str] = set()


def is_report(path: str) -> bool:
    """Return whether a file may be overwritten: it is new, empty, no plain file, or a report."""
    if not os.path.isfile(path) or os.path.getsize(path) == 0:
        return True
    start = f'{{"schema": "{SCHEMA}"'.encode()
    with open(path, "rb") as file:
        return file.read(len(start)) == start


def open_report(flag: str, path: str) -> Any:
    """Open a report for writing, in bytes and without a buffer.

    A process truncates a file when it first opens it; later decoders of the process append.

    Raises:
        UsageError: the file cannot be opened, or another process writes to it.
    """
    key = os.path.abspath(path)
    plain = os.path.isfile(path) or not os.path.exists(path)
    try:
        file = open(path, "ab" if plain or key in _begun else "wb", buffering=0)
    except OSError as error:
        raise option_error(flag, path, f"a file that may be written ({error.strerror})") from error
    if plain:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process, until it closes it
        except BlockingIOError as error:
            file.close()
            raise option_error(flag, path, "a file that no other process writes to") from error
        except OSError:
            pass  # a file system without locks
        if key not in _begun:
            file.truncate(0)
    _begun.add(key)
    return file


def write(file: Any, record: Record) -> None:
    """Write one sentence's record as a line of JSON, or nothing of it.

    Raises:
        OSError: the disk is full, or nobody reads the pipe.
    """
    head = {"schema": SCHEMA, "version": VERSION}
    line = json.dumps(head | record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    done = 0
    try:
        while done < len(line):
            done += file.write(line[done:])
    except OSError:
        with contextlib.suppress(OSError):  # no plain file
            os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - done)
        raise


# ---- reading -------------------------------------------------------------------------------------


def parse(line: bytes, where: str, flag: str = TRACE) -> Record:
    """Read one line.

    Args:
        line: as in the file.
        where: file and number of the line, for errors.
        flag: the flag that wrote it: ``TRACE``, or ``STATS``, whose records a trace has too.

    Raises:
        UsageError: it is no record, or of another version, or a trace's without passes.
    """
    record = parse_any(line, where, flag)
    if record is None:
        raise UsageError(f"{where}: got no record of a decoder; allowed: {written_by(flag)}")
    if flag == TRACE and "trace" not in record:
        raise UsageError(f"{where}: got statistics without passes; allowed: {written_by(flag)}")
    return record


def parse_any(line: bytes, where: str, flag: str = TRACE) -> Record | None:
    """Read one line of JSON; return None if it is of another kind. See ``parse``.

    Raises:
        UsageError: it is no JSON, or a record of another version.
    """
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.startswith(b"{") and not line.endswith(b"\n"):
            raise UsageError(
                f"{where}: the file is cut off in the middle of this line, as after a crash; "
                "allowed: whole lines only"
            ) from error
        raise UsageError(
            f"{where}: got no JSON, or a part of it ({error}); allowed: {written_by(flag)}"
        ) from error
    if type(record) is not dict or record.get("schema") != SCHEMA:
        return None
    if record.get("version") not in READABLE_VERSIONS:
        given, allowed = record.get("version"), " or ".join(map(str, READABLE_VERSIONS))
        raise UsageError(f"{where}: got version {shown(given)}; allowed: version {allowed}")
    return cast(Record, record)  # readers check the fields that they need


def written_by(flag: str) -> str:
    """Return what a reader accepts, in words."""
    return f"a file that {flag} wrote"


def open_records(path: str, flag: str = TRACE, name: str = "FILE") -> BinaryIO:
    """Open a file of records; ``name`` is the argument that names it.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return open(path, "rb")
    except OSError as error:
        raise option_error(name, path, f"{written_by(flag)} ({error.strerror})") from error


def lines_of(
    path: str, file: BinaryIO, flag: str = TRACE, name: str = "FILE"
) -> Iterator[tuple[int, Record]]:
    """Yield the records of an open file with their lines' numbers, one line in memory at a time.

    Raises:
        UsageError: it is empty, or a line is no such record.
    """
    number = 0
    for number, line in enumerate(iter(file.readline, b""), start=1):
        yield number, parse(line, f"{path}, line {number}", flag)
    if number == 0:
        raise option_error(name, path, f"{written_by(flag)}; this one is empty")


def read(path: str, flag: str = TRACE, name: str = "FILE") -> Iterator[tuple[int, Record]]:
    """Yield the records of a file with their lines' numbers, one line in memory at a time.

    Args:
        path: the file.
        flag: which one wrote it: ``TRACE`` or ``STATS``.
        name: the argument that names it, for errors.

    Raises:
        UsageError: it cannot be read, is empty, or has a line that is no such record.
    """
    with open_records(path, flag, name) as file:
        yield from lines_of(path, file, flag, name)


def field(entry: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """Return a required field of a record or of a pass; ``where``: which one, for errors.

    Raises:
        UsageError: it is missing, or of another type.
    """
    if type(entry.get(key)) is not kind:
        raise UsageError(f"{where}: {key!r} is missing or no {kind.__name__}")
    return entry[key]


def words(entry: Mapping[str, Any], key: str, where: str) -> list[str]:
    """Return a required list of tokens; see ``field``."""
    tokens: list[str] = field(entry, key, list, where)
    if not all(isinstance(token, str) for token in tokens):
        raise UsageError(f"{where}: {key!r} holds other things than tokens")
    return tokens


def known(entry: Mapping[str, Any], key: str, i: int, kind: Any) -> Any:
    """Return entry i of a list; None if the list is missing or short, or the type is wrong."""
    values = entry.get(key)
    if not isinstance(values, list) or i >= len(values):
        return None
    value = values[i]
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def count(entry: Mapping[str, Any], key: str) -> int:
    """Return a required number from 0 up.

    Raises:
        UsageError: it is missing, or another value.
    """
    value = entry.get(key)
    if type(value) is not int or value < 0:
        raise UsageError(f"{key!r} is missing or no count")
    return value


def counts(entry: Mapping[str, Any], key: str) -> list[int]:
    """Return a required list of numbers from 0 up, one per pass; see ``count``."""
    values = entry.get(key)
    if not isinstance(values, list) or any(type(v) is not int or v < 0 for v in values):
        raise UsageError(f"{key!r} is missing or no list of counts")
    return values
