"""A fix of fairseq's ``--no-repeat-ngram-size``."""

import math
from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor

from ...token_rules import repeating
from .patching import Function, around


def forbid_repeats() -> None:
    """Let ``--no-repeat-ngram-size`` forbid n-grams.

    Fault: without its CUDA extension fairseq 0.12 compares with the last tokens of its buffer,
    which are padding, and so forbids nothing. Where it does forbid, a prefix that repeats itself
    leaves its search nothing to write, which ends in an assertion; what is forced may repeat here.
    """

    @around(NGramRepeatBlock, "_no_repeat_ngram")
    def _no_repeat_ngram(
        original: Function,
        self: Any,
        tokens: Tensor,
        lprobs: Tensor,
        bsz: int,
        beam_size: int,
        step: int,
    ) -> Tensor:
        # The first token is the start symbol, which is </s> and may come again.
        forced = (lprobs > -math.inf).sum(1) == 1  # one token alone is allowed
        for row, written in enumerate(tokens[:, 1 : step + 1].tolist()):
            if not forced[row]:
                lprobs[row, repeating(written, self.no_repeat_ngram_size)] = -math.inf
        return lprobs
