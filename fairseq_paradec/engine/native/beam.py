"""A step of beam search by the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ...token_rules import Best
from .library import Extended, Step, library
from .stack import check

#: Scores, parents, words and scores of words; see ``decoding/beam.py``'s Candidates.
Hypotheses = tuple[Tensor, Tensor, Tensor, Tensor]


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
