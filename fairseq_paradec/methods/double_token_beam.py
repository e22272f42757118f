"""Beam search by pairs of words (imamura2020, Algorithm 1 and section 3.2).

| paper                                 | here                                                    |
|---------------------------------------|---------------------------------------------------------|
| W, the beam width; K, outputs         | ``beam_size``, fairseq's ``--beam``, both               |
| EOD                                   | ``</s>``                                                |
| DOUBLETOPK (line 7)                   | steps 1 and 2 of ``extend``                             |
| lines 8-12, FINALIZE                  | step 3                                                  |
| lines 13-20, EXPANDBEAM               | step 4                                                  |

A pair whose left word is EOD and whose right word is not is forbidden. Finished hypotheses rank by
fairseq's score / length**lenpen, where the length is that of the output; the log-probability of
``</s>`` is the sum over its EODs.
"""

import math

import torch
from torch import Tensor

from ..decoding.beam import Candidates, Extension
from ..token_rules import Best
from .beam import BeamDecoder


class DoubleTokenBeamDecoder(BeamDecoder):
    """``--decoding double_token_beam``: for models of ``--double-token``."""

    @property
    def most_words(self) -> int:
        """3W: a parent's 3W best right words make its best 3W pairs with any left word."""
        return 3 * self.beam_size

    def extend(self, best: Best, scores: Tensor) -> Extension:
        """Extend the beams by one pair of words; see BeamSearch.extend."""
        beam = self.beam_size
        left_words, others = best.tokens.unbind(dim=2)  # S×W×N, and the right ones
        left, right = best.scores.unbind(dim=2)
        # 1. The best 2W left words over the whole beam.
        lefts = (scores[..., None] + left).flatten(1)  # S×(W·N)
        left_totals, where = lefts.topk(min(2 * beam, lefts.size(1)))  # S×L
        parent, left_word = where // left.size(2), left_words.flatten(1).gather(1, where)
        left_score = left.flatten(1).gather(1, where)
        # 2. The best 3W pairs with them.
        picked = parent[..., None].expand(-1, -1, right.size(2))
        rights, right_words = right.gather(1, picked), others.gather(1, picked)  # S×L×N
        is_end = left_word.eq(self.eos)[..., None]  # then the right word is </s> too
        end = best.ends[:, :, 1].gather(1, parent)
        rights = rights.masked_fill(is_end, -math.inf)
        rights[..., :1] = torch.where(is_end, end[..., None], rights[..., :1])
        right_words = right_words.masked_fill(is_end, self.eos)
        pairs = (left_totals[..., None] + rights).flatten(1)
        totals, where = pairs.topk(min(3 * beam, pairs.size(1)))  # S×P
        of_left = where // rights.size(2)
        right_word = right_words.flatten(1).gather(1, where)
        parent, left_word = parent.gather(1, of_left), left_word.gather(1, of_left)
        left_score = left_score.gather(1, of_left)
        words = torch.stack((left_word, right_word), dim=2)  # S×P×2
        right_score = rights.flatten(1).gather(1, where)
        word_scores = torch.stack((left_score, right_score), dim=2)
        both = left_word.eq(self.eos)  # (EOD, EOD) is one </s>
        word_scores[..., 0] += torch.where(both, right_score, torch.zeros_like(right_score))
        # 3. Ended pairs among the best W are finished.
        has_end = words.eq(self.eos).any(dim=2)
        among_best = torch.arange(totals.size(1), device=totals.device) < beam
        finished = totals.masked_fill(~(has_end & among_best), -math.inf)
        # 4. The best W of the others are the next beam.
        alive, index = totals.masked_fill(has_end, -math.inf).topk(min(beam, totals.size(1)))
        picked = index[..., None].expand(-1, -1, 2)
        return Extension(
            Candidates(finished, parent, words, word_scores),
            Candidates(
                alive,
                parent.gather(1, index),
                words.gather(1, picked),
                word_scores.gather(1, picked),
            ),
        )
