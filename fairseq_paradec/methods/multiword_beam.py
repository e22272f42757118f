"""Beam search by steps of z words (zhang2020, Algorithm 1), for any target order.

| paper                                 | here                                                    |
|---------------------------------------|---------------------------------------------------------|
| B, the beam                           | ``beam_size``, fairseq's ``--beam``; W hypotheses live  |
| z = h·c, words a step                 | ``order.tokens_per_step``                               |
| P, W_p, top_B of each word (line 6)   | ``top``, ``words``                                      |
| outer addition, top_B (line 7)        | the loop of ``extend``                                  |
| tracewords (line 8)                   | ``chosen``                                              |
| finish(w) (line 10)                   | a word is ``</s>``                                      |
| prune (line 17)                       | ``alive``                                               |

Details that the paper leaves open, or that would lose outputs, follow fairseq's search; at z = 1
both searches are identical. Slots after the first ``</s>`` are untrained: a hypothesis ends there,
with the words and the score up to it, so equal translations are one hypothesis. It is finished if
it is among the best B of all candidates of as many words, and the beam is refilled from those that
continue. If a step finishes several, the best is taken; with a beam of 1, the first (greedy
search). ``</s>`` is forbidden below ``--min-len`` only, not in the whole first step. Finished
hypotheses rank by score / length**lenpen, or by --length-formula google. A search ends as fairseq's
does, or by --beam-stop settled as the authors' (``BeamSearch``).
"""

import math

import numpy as np

from ..decoding.beam import Candidates, Extension
from ..engine.native.beam import native_extend
from ..token_rules import Best
from .beam import BeamDecoder


class MultiwordBeamDecoder(BeamDecoder):
    """``--decoding multiword_beam``: for IBDecoder, IMDecoder, SA, R2L and plain Transformers."""

    @property
    def most_words(self) -> int:
        """B, and ``</s>``, which may be among them; of greedy search the best one."""
        return 1 if self.beam_size == 1 else self.beam_size + 1

    def extend(self, best: Best, scores: np.ndarray) -> Extension:
        """Extend the beams by the z words of a step; see BeamSearch.extend."""
        return extend(best, scores, self.eos, self.beam_size, self.scorer.native)


def extend(best: Best, scores: np.ndarray, eos: int, beam: int, native: bool = False) -> Extension:
    """Extend the beams by the z words of a step; see BeamSearch.extend.

    Args:
        best: each slot's best words, S×W×z×K, of which K is ``beam`` + 1 or all there are.
        scores: S×W, the hypotheses' scores so far, -inf for no hypothesis.
        eos: ``</s>``.
        beam: B.
        native: by the native library; ``best`` is in fp32.
    """
    if native:
        return Extension(*(Candidates(*parts) for parts in native_extend(best, scores, eos, beam)))
    if beam == 1:
        return _extend_greedily(best, scores, eos)
    words, top, end = best  # S×W×z×K, S×W×z×K, S×W×z
    count, width, z, choices = words.shape
    # Line 6: the best words of each slot; </s> is handled separately.
    top = np.where(words == eos, -math.inf, top).astype(top.dtype)
    # Line 7: word after word, each hypothesis keeps its best continuations (C of them).
    totals = scores[:, :, None]  # S×W×C
    chosen = np.zeros((count, width, 1, z), words.dtype)  # S×W×C×z
    chosen_scores = np.zeros((count, width, 1, z), top.dtype)
    done: list[Candidates] = []
    for i in range(z):
        ending = totals + end[:, :, i, None]  # S×W×C
        longer = (totals[..., None] + top[:, :, i, None]).reshape(count, width, -1)  # S×W×(C·K)
        totals, pick = largest(longer, beam)  # S×W×C'
        # Lines 9-11: a hypothesis that ends here, among the best of this length, is finished.
        each = ending.shape[2]
        pool = np.concatenate((ending.reshape(count, -1), totals.reshape(count, -1)), axis=1)
        rank, where = largest(pool, beam)  # S×B
        last = where.clip(max=width * each - 1)
        parent = last // each
        ended_words = at_places(chosen.reshape(count, -1, z), last)
        values = at_places(chosen_scores.reshape(count, -1, z), last)
        ended_words[..., i] = eos
        values[..., i] = at_places(end[:, :, i], parent)
        rank = np.where(where < width * each, rank, -math.inf).astype(rank.dtype)
        done.append(Candidates(rank, parent, ended_words, values))
        # Line 8: the words at the indices.
        before = (pick // choices)[..., None]
        chosen = np.take_along_axis(chosen, before, axis=2)
        chosen_scores = np.take_along_axis(chosen_scores, before, axis=2)
        chosen[..., i] = np.take_along_axis(words[:, :, i], pick % choices, axis=2)
        chosen_scores[..., i] = np.take_along_axis(top[:, :, i], pick % choices, axis=2)
    # Line 17: the best over the beam.
    alive, where = largest(totals.reshape(count, -1), beam)
    parent = where // totals.shape[2]
    words = at_places(chosen.reshape(count, -1, z), where)
    word_scores = at_places(chosen_scores.reshape(count, -1, z), where)
    joined = Candidates(*(np.concatenate(parts, axis=1) for parts in zip(*done, strict=True)))
    return Extension(joined, Candidates(alive, parent, words, word_scores))


def largest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest values of the last dimension, and their places, the largest first.

    Of equal values the first comes first. NaN is the largest, so that it is noticed.
    """
    order = np.argsort(np.where(np.isnan(values), -math.inf, -values), axis=-1, kind="stable")
    places = order[..., :count]
    return np.take_along_axis(values, places, axis=-1), places


def at_places(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return values at places of the second dimension: S×N×... and S×C -> S×C×..., a copy."""
    return values[np.arange(len(values))[:, None], places]


def _extend_greedily(choices: Best, scores: np.ndarray, eos: int) -> Extension:
    """Take the best word of each slot; the first ``</s>`` ends the hypothesis."""
    words, best = choices.tokens[..., 0], choices.scores[..., 0]  # S×1×z
    totals = scores + best[:, 0].cumsum(axis=1)  # S×z
    ends = words[:, 0] == eos
    end, has_end = ends.argmax(axis=1)[:, None], ends.any(axis=1, keepdims=True)
    parent = np.zeros_like(end)
    finished = np.where(has_end, at_places(totals, end), -math.inf)
    alive = np.where(has_end, -math.inf, totals[:, -1:])
    return Extension(
        Candidates(finished, parent, words, best), Candidates(alive, parent, words, best)
    )
