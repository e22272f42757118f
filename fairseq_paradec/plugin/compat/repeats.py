"""A fix of fairseq's ``--no-repeat-ngram-size``."""

import math
from collections.abc import Sequence
from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor

from .patching import Function, around


def forbid_repeats() -> None:
    """Let ``--no-repeat-ngram-size`` forbid n-grams.

    Fault: without its CUDA extension fairseq 0.12 compares with the last tokens of its buffer,
    which are padding, and so forbids nothing.
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
        for row, written in enumerate(tokens[:, 1 : step + 1].tolist()):
            lprobs[row, repeating(written, self.no_repeat_ngram_size)] = -math.inf
        return lprobs


def repeating(tokens: Sequence[int], size: int) -> list[int]:
    """Return the tokens that would repeat an n-gram of this size after these tokens."""
    last = tokens[len(tokens) - size + 1 :] if size > 1 else []
    starts = range(len(tokens) - size + 1)
    return sorted({tokens[i + size - 1] for i in starts if [*tokens[i : i + size - 1]] == [*last]})
