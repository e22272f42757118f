"""Beam search by the native library: a step, or all steps of a batch."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ...token_rules import Best, Positions
from .library import Extended, Search, Step, library
from .passes import NativeCache, NativeWeights, array_of, bits_of, check_pass, rules_of
from .stack import NativeMap, address_of, check

#: Scores, parents, words and scores of words; see ``decoding/beam.py``'s Candidates.
Hypotheses = tuple[Tensor, Tensor, Tensor, Tensor]


class Searched(NamedTuple):
    """What a beam search has found for a sentence.

    Attributes:
        passes: how many passes its beam took part in.
        totals: of each hypothesis, in the order in which they were finished.
        words: of each, with ``</s>``.
        scores: of each, the words' log-probabilities.
    """

    passes: int
    totals: list[float]
    words: list[list[int]]
    scores: list[list[float]]


def native_search(
    weights: NativeWeights,
    cache: NativeCache,
    linear: NativeMap,
    at: Positions,
    start: int,
    beam: int,
    count: int,
) -> list[Searched]:
    """Search a batch, a word a step; see ``ChunkScorer.search``."""
    limits, sentences = array_of([row.limit for row in at.rows]), len(at.rows)
    most = max(limits) + 1  # </s> follows the last word
    where = at.limits(most)
    bits, forced = bits_of(where), where.forced
    passes, counts = torch.empty(2, sentences, dtype=torch.int32)
    lengths = torch.empty(sentences, beam, dtype=torch.int32)
    totals, scores = torch.empty(sentences, beam), torch.empty(sentences, beam, most)
    words = torch.empty(sentences, beam, most, dtype=torch.long)
    to = Search(
        sentences=sentences,
        beam=beam,
        candidates=count,
        start=start,
        limits=ctypes.addressof(limits),
        most=most,
        bits=address_of(bits),
        forced=address_of(forced),
        passes=passes.data_ptr(),
        counts=counts.data_ptr(),
        lengths=lengths.data_ptr(),
        totals=totals.data_ptr(),
        words=words.data_ptr(),
        scores=scores.data_ptr(),
    )
    check_pass(
        library().paradec_search(
            weights.stack.address,
            linear.address,
            ctypes.byref(rules_of(at.rules)),
            ctypes.byref(to),
            ctypes.byref(cache.source_store),
            torch.get_num_threads(),
        )
    )
    found = []
    for s, (taken, number) in enumerate(zip(passes.tolist(), counts.tolist(), strict=True)):
        ends = lengths[s, :number].tolist()
        texts, values = words[s, :number], scores[s, :number]
        found.append(
            Searched(
                taken,
                totals[s, :number].tolist(),
                [text[:n].tolist() for text, n in zip(texts, ends, strict=True)],
                [value[:n].tolist() for value, n in zip(values, ends, strict=True)],
            )
        )
    return found


def native_extend(best: Best, scores: Tensor, end: int, beam: int) -> tuple[Hypotheses, Hypotheses]:
    """Extend hypotheses by a step; see ``MultiwordBeamDecoder.extend``.

    Args:
        best: the best words of each slot, S×W×z×K; in fp32.
        scores: S×W.
        end: ``</s>``.
        beam: B.

    Returns:
        z·B candidates that ended, and the next beam.
    """
    tokens, token_scores, ends = (part.contiguous() for part in best)
    sentences, width, z, candidates = tokens.shape
    each = 1
    for _ in range(z):
        each = min(beam, each * candidates)
    kept = min(beam, width * each)
    scores = scores.contiguous()
    step = Step(
        sentences=sentences,
        width=width,
        words=z,
        candidates=candidates,
        beam=beam,
        kept=kept,
        end=end,
        scores=scores.data_ptr(),
        tokens=tokens.data_ptr(),
        token_scores=token_scores.data_ptr(),
        end_scores=ends.data_ptr(),
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
        torch.empty(shape),
        torch.empty(shape, dtype=torch.long),
        torch.empty(*shape, z, dtype=torch.long),
        torch.empty(*shape, z),
    )


def _point(to: Hypotheses) -> Extended:
    """Tell the library where they are."""
    scores, parents, words, word_scores = (part.data_ptr() for part in to)
    return Extended(scores=scores, parents=parents, words=words, word_scores=word_scores)
