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
import torch
from torch import Tensor

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

    def extend(self, best: Best, scores: Tensor) -> Extension:
        """Extend the beams by the z words of a step; see BeamSearch.extend."""
        return extend(best, scores, self.eos, self.beam_size, self.scorer.native)


def extend(best: Best, scores: Tensor, eos: int, beam: int, native: bool = False) -> Extension:
    """Extend the beams by the z words of a step; see BeamSearch.extend.

    Args:
        best: each slot's best words, S×W×z×K, of which K is ``beam`` + 1 or all there are.
        scores: S×W, the hypotheses' scores so far, -inf for no hypothesis.
        eos: ``</s>``.
        beam: B.
        native: by the native library; ``best`` is in fp32 and on the CPU.
    """
    if native:
        both = native_extend(best, np.asarray(scores), eos, beam)
        return Extension(*(Candidates(*map(torch.from_numpy, parts)) for parts in both))
    if beam == 1:
        return _extend_greedily(best, scores, eos)
    words, top, end = best  # S×W×z×K, S×W×z×K, S×W×z
    count, width, z, _ = words.shape
    # Line 6: the best words of each slot; </s> is handled separately.
    top = top.masked_fill(words.eq(eos), -math.inf)
    # Line 7: word after word, each hypothesis keeps its best continuations (C of them).
    totals = scores[:, :, None]  # S×W×C
    chosen = words.new_zeros(count, width, 1, z)  # S×W×C×z
    chosen_scores = top.new_zeros(count, width, 1, z)
    done: list[Candidates] = []
    for i in range(z):
        ending = totals + end[:, :, i, None]  # S×W×C
        longer = (totals[..., None] + top[:, :, i, None]).flatten(2)  # S×W×(C·K)
        totals, pick = longer.topk(min(beam, longer.size(2)))  # S×W×C'
        # Lines 9-11: a hypothesis that ends here, among the best of this length, is finished.
        pool = torch.cat((ending.flatten(1), totals.flatten(1)), dim=1)
        rank, where = pool.topk(min(beam, pool.size(1)))  # S×B
        ends_here = where < ending[0].numel()
        last = where.clamp(max=ending[0].numel() - 1)
        parent = last // ending.size(2)
        ended_words = chosen.flatten(1, 2).gather(1, last[..., None].expand(-1, -1, z)).clone()
        values = chosen_scores.flatten(1, 2).gather(1, last[..., None].expand(-1, -1, z))
        ended_words[..., i] = eos
        values[..., i] = end[:, :, i].gather(1, parent)
        rank = rank.masked_fill(~ends_here, -math.inf)
        done.append(Candidates(rank, parent, ended_words, values))
        # Line 8: the words at the indices.
        before = (pick // top.size(3))[..., None].expand(-1, -1, -1, z)
        chosen, chosen_scores = chosen.gather(2, before), chosen_scores.gather(2, before)
        chosen[..., i] = words[:, :, i].gather(2, pick % top.size(3))
        chosen_scores[..., i] = top[:, :, i].gather(2, pick % top.size(3))
    # Line 17: the best over the beam.
    alive, where = totals.flatten(1).topk(min(beam, totals[0].numel()))
    parent = where // totals.size(2)
    index = where[..., None].expand(-1, -1, z)
    words = chosen.flatten(1, 2).gather(1, index)
    word_scores = chosen_scores.flatten(1, 2).gather(1, index)
    joined = Candidates(*(torch.cat(parts, dim=1) for parts in zip(*done, strict=True)))
    return Extension(joined, Candidates(alive, parent, words, word_scores))


def _extend_greedily(choices: Best, scores: Tensor, eos: int) -> Extension:
    """Take the best word of each slot; the first ``</s>`` ends the hypothesis."""
    words, best = choices.tokens[..., 0], choices.scores[..., 0]  # S×1×z
    totals = scores + best[:, 0].cumsum(dim=1)  # S×z
    ends = words[:, 0].eq(eos)
    end, has_end = ends.int().argmax(dim=1, keepdim=True), ends.any(dim=1, keepdim=True)
    parent = torch.zeros_like(end)
    finished = totals.gather(1, end).masked_fill(~has_end, -math.inf)
    alive = totals[:, -1:].masked_fill(has_end, -math.inf)
    return Extension(
        Candidates(finished, parent, words, best), Candidates(alive, parent, words, best)
    )
