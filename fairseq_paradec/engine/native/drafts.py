"""Exact decoding with drafts in the native library: ``decoding/loop.py``, many passes a call."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import addressof
from typing import Any, NamedTuple

from ...batch import Numbers
from ...errors import UsageError
from ...records import PassRecord
from ...row import Row
from ...threads import num_threads
from ...token_rules import TokenRules
from .library import AT_MOST, Drafted, Entry, Reader, Returned, Until, Written, library
from .passes import check_pass, rules_of
from .stack import NativeMap


class NativeDrafting(NamedTuple):
    """What drafts, as the library knows it.

    Attributes:
        how: its settings; those of the batch are filled in by ``NativeLoop``.
        scorer: of a model that drafts; its encoder has run, or it has joined the verifier's.
        linear: of a model that drafts, its projection; of heads, the one that they draft by.
        nan_error: makes the error for a drafter whose scores are NaN.
        length: of Jacobi decoding, of a row's first block, or where its last one ends; 0: nowhere.
        admits: whether sentences may enter the batch.
    """

    how: Drafted
    scorer: Any = None
    linear: NativeMap | None = None
    nan_error: Callable[[], UsageError] | None = None
    length: Callable[[Row], int] = lambda row: 0
    admits: bool = True


class NativeLoop:
    """The loop over a batch whose rows may enter and leave.

    Args:
        verifier: the verifier's ChunkScorer, which has encoded and ``writes``.
        drafting: what drafts.
        rules: which tokens are allowed at a position.
    """

    def __init__(self, verifier: Any, drafting: NativeDrafting, rules: TokenRules) -> None:
        self._verifier, self._drafting = verifier, drafting
        self._drafter = drafting.scorer or verifier
        self._suppressed = rules.suppressed_tokens  # the library reads them in place
        self._eos = rules.eos
        how = drafting.how
        how.start, how.min_length, how.forced_length = rules.start, rules.min_len, rules.forced_len
        self._loop = library().paradec_drafts_new(ctypes.byref(how), ctypes.byref(rules_of(rules)))
        if self._loop is None:
            raise MemoryError("no room for a native loop")
        weakref.finalize(self, library().paradec_drafts_free, self._loop).atexit = False
        self._numbers: dict[int, int] = {}  # of rows, by their identity

    def add(self, rows: Sequence[Row]) -> None:
        """Let the last rows of the caches, which have written nothing, take part."""
        own, drafts = self._verifier.cache, self._drafter.cache
        for b, row in enumerate(rows, start=len(own.rows) - len(rows)):
            prefix, given, source = map(_words, (row.prefix, self._ended(row.given), row.source))
            entry = Entry(
                limit=row.limit,
                prefix=addressof(prefix),
                given=addressof(given),
                source=addressof(source),
                prefix_length=len(prefix),
                given_length=len(given),
                source_length=len(source),
                length=self._drafting.length(row),
                own_row=own.rows[b],
                source_row=own.source_rows[b],
                draft_own_row=drafts.rows[b],
                draft_source_row=drafts.source_rows[b],
            )
            number = library().paradec_drafts_add(self._loop, ctypes.byref(entry))
            if number < 0:
                raise MemoryError("no room for a row of a native loop")
            self._numbers[id(row)] = number

    def _ended(self, given: list[int]) -> list[int]:
        """End an earlier output with ``</s>``."""
        end = given.index(self._eos) if self._eos in given else len(given)
        return [*given[:end], self._eos] if given else []

    def run(self, any_end: bool) -> None:
        """Go on until all rows have ended, or one if its end is enough, or for a while.

        Raises:
            UsageError: the drafter's scores are NaN.
        """
        verifier, linear = self._verifier, self._drafting.linear
        until = Until(milliseconds=AT_MOST, any=any_end)
        while True:
            status = library().paradec_drafts_run(
                self._loop,
                ctypes.byref(_reader(verifier, verifier.projection.linear)),
                None if linear is None else ctypes.byref(_reader(self._drafter, linear)),
                ctypes.byref(until),
                num_threads(),
            )
            if status != Returned.NO_ROOM:
                break
            slots = library().paradec_drafts_slots(self._loop)
            for scorer in (verifier, self._drafter):
                scorer.cache.reserve(slots)
        if status == Returned.DRAFTER_IS_NAN:
            assert self._drafting.nan_error is not None
            raise self._drafting.nan_error()
        if status in (Returned.NO_MEMORY, Returned.NO_WORD):
            check_pass(status)

    def finish(self, row: Row) -> None:
        """Write what a row has written to it, if it has ended."""
        written = Written()
        library().paradec_drafts_written(self._loop, self._numbers[id(row)], ctypes.byref(written))
        if not written.ended:
            return
        row.commit(written.tokens[: written.length], written.scores[: written.length], self._eos)
        facts = iter(written.passes[: 5 * written.num_passes])
        for start, drafted, accepted, committed, given in zip(*[facts] * 5, strict=True):
            row.passes.append(PassRecord(start, drafted, accepted, committed, given=bool(given)))


def native_drafts(
    verifier: Any,
    drafting: NativeDrafting,
    rows: Sequence[Row],
    rules: TokenRules,
    encode_entering: Callable[[Numbers], None],
) -> None:
    """Decode all rows to their end; see ``draft_and_verify``.

    Sentences that wait take the places of rows that have left.

    Args:
        verifier: its ChunkScorer, which has encoded and ``writes``.
        drafting: what drafts.
        rows: the sentences.
        rules: which tokens are allowed at a position.
        encode_entering: runs the encoders for sentences that enter.
    """
    loop = NativeLoop(verifier, drafting, rules)
    scorers = [verifier] if drafting.scorer is None else [verifier, drafting.scorer]
    admit = rows[0].admit if drafting.admits else None
    live = list(rows)
    loop.add(live)
    while live:
        loop.run(admit is not None or any(row.on_finish is not None for row in live))
        for row in live:
            loop.finish(row)
            row.tell_finish()
        stay = [b for b, row in enumerate(live) if not row.finished]
        if len(stay) == len(live):
            continue
        live = [live[b] for b in stay]
        if live or admit is not None:
            for scorer in scorers:
                scorer.reorder(stay)
        entering = None if admit is None else admit(len(rows) - len(live))
        if entering is not None:
            encode_entering(entering.source)
            loop.add(entering.rows)
            live += entering.rows


def _words(tokens: Sequence[int]) -> Any:
    """Return tokens as an array of 64-bit numbers."""
    return (ctypes.c_int64 * len(tokens))(*tokens)


def _reader(scorer: Any, linear: NativeMap) -> Reader:
    """Describe a model and its cache to the library."""
    return Reader(
        stack=scorer.weights.stack.address,
        projection=linear.address,
        own=addressof(scorer.cache.store),
        source=addressof(scorer.cache.source_store),
    )
