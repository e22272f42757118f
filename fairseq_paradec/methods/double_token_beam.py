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

import numpy as np

from ..decoding.beam import Candidates, Extension
from ..token_rules import Best
from .beam import BeamDecoder
from .multiword_beam import at_places, largest


class DoubleTokenBeamDecoder(BeamDecoder):
    """``--decoding double_token_beam``: for models of ``--double-token``."""

    @property
    def most_words(self) -> int:
        """3W: a parent's 3W best right words make its best 3W pairs with any left word."""
        return 3 * self.beam_size

    def extend(self, best: Best, scores: np.ndarray) -> Extension:
        """Extend the beams by one pair of words; see BeamSearch.extend."""
        beam, count = self.beam_size, len(scores)
        left_words, others = best.tokens[:, :, 0], best.tokens[:, :, 1]  # S×W×N
        left, right = best.scores[:, :, 0], best.scores[:, :, 1]
        choices = left.shape[2]
        # 1. The best 2W left words over the whole beam.
        lefts = (scores[..., None] + left).reshape(count, -1)  # S×(W·N)
        left_totals, where = largest(lefts, 2 * beam)  # S×L
        parent, left_word = where // choices, at_places(left_words.reshape(count, -1), where)
        left_score = at_places(left.reshape(count, -1), where)
        # 2. The best 3W pairs with them.
        rights, right_words = at_places(right, parent), at_places(others, parent)  # S×L×N
        is_end = left_word == self.eos  # then the right word is </s> too
        end = at_places(best.ends[:, :, 1], parent)
        rights[is_end] = -math.inf
        rights[..., 0] = np.where(is_end, end, rights[..., 0])
        right_words[is_end] = self.eos
        pairs = (left_totals[..., None] + rights).reshape(count, -1)
        totals, where = largest(pairs, 3 * beam)  # S×P
        of_left = where // choices
        right_word = at_places(right_words.reshape(count, -1), where)
        parent, left_word = at_places(parent, of_left), at_places(left_word, of_left)
        left_score = at_places(left_score, of_left)
        words = np.stack((left_word, right_word), axis=2)  # S×P×2
        right_score = at_places(rights.reshape(count, -1), where)
        # (EOD, EOD) is one </s>.
        left_score = left_score + np.where(left_word == self.eos, right_score, 0)
        word_scores = np.stack((left_score, right_score), axis=2).astype(right_score.dtype)
        # 3. Ended pairs among the best W are finished.
        has_end = (words == self.eos).any(axis=2)
        among_best = np.arange(totals.shape[1]) < beam
        finished = np.where(has_end & among_best, totals, -math.inf)
        # 4. The best W of the others are the next beam.
        alive, index = largest(np.where(has_end, -math.inf, totals).astype(totals.dtype), beam)
        return Extension(
            Candidates(finished, parent, words, word_scores),
            Candidates(
                alive,
                at_places(parent, index),
                at_places(words, index),
                at_places(word_scores, index),
            ),
        )
