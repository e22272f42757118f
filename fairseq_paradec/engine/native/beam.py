"""Beam search by the native library: a step, or all steps of a batch."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...threads import num_threads
from ...token_rules import Best, Positions
from ..slots import check_memory
from .cache import NativeCache, NativeWeights, array_of
from .library import AT_MOST, Drafting, Extended, Returned, Search, Searcher, Step, library
from .passes import bits_of, check_pass, forced_of, rules_of
from .stack import NativeMap, address_of, check

#: Scores, parents, words and scores of words; see ``decoding/beam.py``'s Candidates.
Hypotheses = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Searched(NamedTuple):
    """What a beam search has found for a sentence."""

    passes: int  # how many passes its beam took part in
    totals: list[float]  # of each hypothesis, in the order in which they were finished
    words: list[list[int]]  # of each, with ``</s>``
    scores: list[list[float]]  # of each, the words' log-probabilities


class Searching(NamedTuple):
    """How a beam search goes."""

    starts: Sequence[int]  # z, the first inputs of the decoder, which writes so many words a step
    beam: int  # how many hypotheses a sentence has
    candidates: int  # with how many words a hypothesis may go on in a slot
    # hypotheses that a step ends are compared by their scores, each divided by what this gives for
    # its length with ``</s>``; None: as they are
    divisor: Callable[[int], float] | None = None
    # CTranslate2's rules: all hypotheses that a step ends are kept; and a sentence ends with its
    # best one and so many, 0: with ``enough``. None: fairseq's rules
    early: int | None = None
    enough: int = 0
    pairs: bool = False  # a step's two words are a pair, which imamura2020's search extends by


class _Tables:
    """What the library reads and writes of a search; the arguments are those of ``native_search``.

    Attributes:
        search: the structure, which points to the tables.
        most: words of the longest hypothesis, with ``</s>``, in whole steps.
    """

    def __init__(
        self, at: Positions, how: Searching, caches: Sequence[NativeWeights], depth: int = 0
    ) -> None:
        self._limits, sentences = array_of([row.limit for row in at.rows]), len(at.rows)
        z, beam = len(how.starts), how.beam
        self.most = most = (max(self._limits) // z + 1) * z  # </s> follows the last word
        room = beam
        if how.early is not None:  # a step may end a beam more than the last one left missing
            room = min(max(how.early, how.enough) + beam, beam * most)
        _check_memory(sentences, room, how, caches, most, depth)
        self._starts = (ctypes.c_int64 * z)(*how.starts)
        self._divisors = None
        if how.divisor is not None:
            each = [1.0, *(how.divisor(length) for length in range(1, most + 1))]
            self._divisors = (ctypes.c_double * len(each))(*each)
        where = at.limits(most)
        self._bits, self._forced = bits_of(where), forced_of(where)
        self.passes, self.counts = np.empty((2, sentences), np.int32)
        self.lengths = np.empty((sentences, room), np.int32)
        self.totals = np.empty((sentences, room), np.float32)
        self.words = np.empty((sentences, room, most), np.int64)
        self.scores = np.empty((sentences, room, most), np.float32)
        self.search = Search(
            sentences=sentences,
            beam=beam,
            room=room,
            early=how.early or 0,
            enough=how.enough,
            candidates=how.candidates,
            words_a_step=z,
            pairs=how.pairs,
            starts=ctypes.addressof(self._starts),
            divisors=None if self._divisors is None else ctypes.addressof(self._divisors),
            limits=ctypes.addressof(self._limits),
            most=most,
            bits=address_of(self._bits),
            forced=address_of(self._forced),
            passes=address_of(self.passes),
            counts=address_of(self.counts),
            lengths=address_of(self.lengths),
            totals=address_of(self.totals),
            words=address_of(self.words),
            scores=address_of(self.scores),
        )

    def searched(self) -> list[Searched]:
        """Return what was found."""
        searched = []
        for s, (taken, number) in enumerate(
            zip(self.passes.tolist(), self.counts.tolist(), strict=True)
        ):
            ends = self.lengths[s, :number].tolist()
            texts, values = self.words[s, :number], self.scores[s, :number]
            searched.append(
                Searched(
                    taken,
                    self.totals[s, :number].tolist(),
                    [text[:n].tolist() for text, n in zip(texts, ends, strict=True)],
                    [value[:n].tolist() for value, n in zip(values, ends, strict=True)],
                )
            )
        return searched


def native_search(
    weights: NativeWeights, cache: NativeCache, linear: NativeMap, at: Positions, how: Searching
) -> list[Searched]:
    """Search a batch; see ``ChunkScorer.search``."""
    tables = _Tables(at, how, [weights])
    model = _searcher(NativeModel(weights, cache, linear))
    given = model, rules_of(at.rules), tables.search
    _run(_Search(library().paradec_search_new(*map(ctypes.byref, given))))
    return tables.searched()


class NativeModel(NamedTuple):
    """A model of a search, whose encoder has run."""

    weights: NativeWeights
    cache: NativeCache
    linear: NativeMap


def native_search_drafts(
    verifier: NativeModel, drafter: NativeModel, at: Positions, how: Searching, depth: int
) -> tuple[list[Searched], list[list[list[int]]]]:
    """Search a batch with drafts; see ``ChunkScorer.search`` and decoding/beam_drafts.py.

    Args:
        verifier: the model.
        drafter: the model that drafts; with the verifier's cache it is the same model.
        at: the first position of each row.
        how: the search goes, a word a step.
        depth: steps of a draft, at most.

    Returns:
        What was found; and of each sentence and pass: the steps before it, those that were drafted,
        those that were taken, and how many nodes it read.
    """
    joined = drafter.cache is verifier.cache
    caches = [model.weights for model in ([verifier] if joined else [verifier, drafter])]
    tables = _Tables(at, how, caches, depth)
    rounds = np.empty((len(at.rows), tables.most, 4), np.int32)
    drafting = Drafting(depth=depth, joined=joined, rounds=address_of(rounds))
    models = _searcher(verifier), _searcher(drafter)
    given = (*models, rules_of(at.rules), tables.search, drafting)
    _run(_Search(library().paradec_search_drafts_new(*map(ctypes.byref, given))))
    searched = tables.searched()
    return searched, [
        rows[: sentence.passes].tolist() for rows, sentence in zip(rounds, searched, strict=True)
    ]


def _check_memory(
    sentences: int,
    room: int,
    how: Searching,
    caches: Sequence[NativeWeights],
    most: int,
    depth: int,
) -> None:
    """Refuse a beam whose first pass does not fit into memory.

    Args:
        sentences: S.
        room: of the hypotheses that a sentence keeps.
        how: the search goes.
        caches: the models that have caches.
        most: words of the longest hypothesis.
        depth: steps of a draft.

    Raises:
        UsageError: it does not fit.
    """
    z, rows = len(how.starts), sentences * how.beam
    nodes = how.beam * (min(depth, most) + 2) * z  # of a sentence, that a cache has slots for
    keys = sum(w.stack.num_layers * w.stack.heads * w.stack.head_size for w in caches)
    words = 12  # bytes of a word and its score
    check_memory(
        sentences * (nodes * (8 * keys + how.candidates * words) + room * most * words), rows
    )


def _searcher(model: NativeModel) -> Searcher:
    """Describe a model and its source to the library."""
    return Searcher(
        stack=model.weights.stack.address,
        projection=model.linear.address,
        source=ctypes.addressof(model.cache.source_store),
    )


class _Search:
    """A search of the library, which goes with this whatever interrupts the caller."""

    def __init__(self, address: int | None) -> None:
        if address is None:
            raise MemoryError("no room for a native search")
        self.address = address
        self.free = weakref.finalize(self, library().paradec_search_free, address)
        self.free.atexit = False  # a thread that searches may go on until the process ends


def _run(search: _Search) -> None:
    """Run a search to its end, in calls between which Ctrl-C is noticed."""
    try:
        status = Returned.TIME_IS_UP
        while status == Returned.TIME_IS_UP:
            status = library().paradec_search_run(search.address, AT_MOST, num_threads())
    finally:
        search.free()
    check_pass(status)


def native_extend(
    best: Best, scores: np.ndarray, end: int, beam: int
) -> tuple[Hypotheses, Hypotheses]:
    """Extend hypotheses by a step; see ``MultiwordBeamDecoder.extend``.

    Args:
        best: the best words of each slot, S×W×z×K; in fp32.
        scores: S×W.
        end: ``</s>``.
        beam: B.

    Returns:
        z·B candidates that ended, and the next beam.
    """
    tokens, token_scores, ends = map(np.ascontiguousarray, best)
    sentences, width, z, candidates = tokens.shape
    each = 1
    for _ in range(z):
        each = min(beam, each * candidates)
    kept = min(beam, width * each)
    scores = np.ascontiguousarray(scores)
    step = Step(
        sentences=sentences,
        width=width,
        words=z,
        candidates=candidates,
        beam=beam,
        kept=kept,
        end=end,
        scores=address_of(scores),
        tokens=address_of(tokens),
        token_scores=address_of(token_scores),
        end_scores=address_of(ends),
    )
    ended, alive = _blank(sentences, z * beam, z), _blank(sentences, kept, z)
    check(
        library().paradec_extend(
            ctypes.byref(step), ctypes.byref(_point(ended)), ctypes.byref(_point(alive))
        )
    )
    return ended, alive


def _blank(sentences: int, count: int, z: int) -> Hypotheses:
    """Make room for hypotheses."""
    shape = sentences, count
    return (
        np.empty(shape, np.float32),
        np.empty(shape, np.int64),
        np.empty((*shape, z), np.int64),
        np.empty((*shape, z), np.float32),
    )


def _point(to: Hypotheses) -> Extended:
    """Tell the library where they are."""
    scores, parents, words, word_scores = map(address_of, to)
    return Extended(scores=scores, parents=parents, words=words, word_scores=word_scores)
