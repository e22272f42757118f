"""Records of decoding: one versioned format, written by every method.

``--stats-file`` and ``--trace-file`` hold one JSON object per sentence, on one line. Both have the
same fields; the trace also has ``trace``, a list with one object per decoder pass.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import option_error

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import Tensor

    from .token_rules import Scored

SCHEMA = "fairseq_paradec.decoding"
SCHEMA_VERSION = 2
#: Records of these versions are read; fields that version 1 lacks are "not recorded".
READABLE_VERSIONS = (1, 2)

# Files that this process has opened; a second generator appends to them.
_begun: set[str] = set()


@dataclass
class PassTokens:
    """The tokens of one pass of one row, for a trace.

    Attributes:
        draft: the drafted tokens.
        verifier: the verifier's own tokens, one per scored position.
        log_probs: their log-probabilities.
        runner_up: the second best token at the same positions; None where only one is allowed.
        runner_up_log_probs: their log-probabilities.
        draft_log_probs: the verifier's log-probabilities of the drafted tokens.
        draft_ranks: the numbers of tokens that the verifier scores higher than the drafted ones.
        draft_confidences: the drafter's probabilities of the drafted tokens; None if not known.
    """

    draft: list[int]
    verifier: list[int]
    log_probs: list[float]
    runner_up: list[int | None]
    runner_up_log_probs: list[float | None]
    draft_log_probs: list[float]
    draft_ranks: list[int]
    draft_confidences: list[float] | None = None


@dataclass
class PassRecord:
    """One decoder pass of one row.

    Attributes:
        start: the position of the pass's first prediction.
        num_drafted: the number of drafted tokens.
        num_accepted: the number of accepted drafted tokens, without the verifier's own token.
        num_committed: the number of final predictions, before the output is cut at ``</s>``.
        tokens: the tokens of the pass, if a trace is kept.
        positions: the committed predictions' positions in the output, for a model with another
            target order; ``start`` then counts the tokens written before. None: from ``start`` on.
        directions: with ``positions``, for a trace: the direction that wrote each of them.
        num_nodes: the number of nodes of a draft tree; the other numbers are of one path. None: the
            draft is no tree.
    """

    start: int
    num_drafted: int
    num_accepted: int
    num_committed: int
    tokens: PassTokens | None = None
    positions: list[int] | None = None
    directions: list[str] | None = None
    num_nodes: int | None = None

    def as_json(self, word: Callable[[int], str]) -> dict[str, Any]:
        """Return one entry of the trace, with token numbers spelled by ``word``."""
        entry: dict[str, Any] = {
            "start": self.start,
            "num_accepted": self.num_accepted,
            "num_committed": self.num_committed,
        }
        if self.num_nodes is not None:
            entry["num_nodes"] = self.num_nodes
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


class PassDetails:
    """One pass of a batch, for a trace.

    Args:
        log_probs: B×R×V the verifier's log-probabilities, with forbidden tokens at -inf.
        scored: its choices, and its scores of the draft.
        confidences: B lists of the drafter's probabilities of the draft; None if not known.
    """

    def __init__(
        self, log_probs: Tensor, scored: Scored, confidences: list[list[float]] | None = None
    ) -> None:
        assert scored.draft_scores is not None and scored.draft_ranks is not None
        top = log_probs.topk(2)
        self.scores = scored.scores.tolist()
        self.top = top.indices.tolist()  # B×R×2
        self.top_scores = top.values.tolist()
        self.draft_scores = scored.draft_scores.tolist()
        self.draft_ranks = scored.draft_ranks.tolist()
        self.confidences = confidences

    def of_row(self, b: int, draft: list[int], verifier: list[int]) -> PassTokens:
        """Return the tokens of row b, without padding."""
        runner_up: list[int | None] = []
        runner_up_log_probs: list[float | None] = []
        for choice, top, scores in zip(verifier, self.top[b], self.top_scores[b], strict=False):
            other = 1 if top[0] == choice else 0
            possible = math.isfinite(scores[other])
            runner_up.append(top[other] if possible else None)
            runner_up_log_probs.append(scores[other] if possible else None)
        return PassTokens(
            draft, verifier, self.scores[b][: len(verifier)], runner_up, runner_up_log_probs,
            self.draft_scores[b][: len(draft)], self.draft_ranks[b][: len(draft)],
            None if self.confidences is None else self.confidences[b],
        )  # fmt: skip


def _finite(values: list[float]) -> list[float | None]:
    """Replace -inf (a forbidden token), which JSON does not have, by None."""
    return [value if math.isfinite(value) else None for value in values]


@dataclass
class DecodingStats:
    """Totals over the sentences decoded so far.

    Attributes:
        sentences: the number of sentences.
        tokens: emitted tokens, with ``</s>`` and forced prefixes.
        passes: decoder passes, summed over sentences (a pass over a batch counts once for each of
            its rows).
        seconds: wall time of decoding, with the encoder, without audits and oracles.
    """

    sentences: int = 0
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, passes: int) -> None:
        """Count one sentence."""
        self.sentences += 1
        self.tokens += tokens
        self.passes += passes

    def closing_line(self, decoding: str) -> str:
        """Return the line that is printed after the last sentence."""
        return (
            f"{decoding}: {self.sentences} sentences, {self.tokens} tokens, {self.passes} passes, "
            f"{self.tokens / max(self.passes, 1):.2f} tokens per pass, {self.seconds:.2f} seconds"
        )


def is_report(path: str) -> bool:
    """Return whether a file may be overwritten: it is new, empty, no plain file, or a report."""
    if not os.path.isfile(path) or os.path.getsize(path) == 0:
        return True
    start = f'{{"schema": "{SCHEMA}"'.encode()
    with open(path, "rb") as file:
        return file.read(len(start)) == start


def open_report(flag: str, path: str) -> Any:
    """Open a report for writing, in bytes and without a buffer.

    A process truncates a file when it first opens it; later generators of the process append.

    Args:
        flag: the flag that names the file, for the error message.
        path: the file.

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


def write_record(file: Any, record: dict[str, Any]) -> None:
    """Write one sentence's record as a line of JSON, or nothing of it.

    Args:
        file: of ``open_report``.
        record: the record.

    Raises:
        OSError: the disk is full, or nobody reads the pipe.
    """
    head = {"schema": SCHEMA, "version": SCHEMA_VERSION}
    line = json.dumps(head | record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    done = 0
    try:
        while done < len(line):
            done += file.write(line[done:])
    except OSError:
        with contextlib.suppress(OSError):  # no plain file
            os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - done)
        raise
