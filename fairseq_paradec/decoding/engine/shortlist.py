"""Drafts out of the dictionary's first tokens only, which fairseq sorts by frequency."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...errors import option_error
from .chunk import ChunkScorer


def set_shortlist(scorer: ChunkScorer, size: int | None, words: Any) -> None:
    """Let a scorer's ``draft_projection`` be one to the first ``size`` tokens; None: to all.

    Args:
        scorer: nothing has been encoded yet.
        size: N.
        words: the target dictionary.

    Raises:
        UsageError: it holds no word or is no part of the dictionary, or there is no projection
            whose part could be taken.
    """
    if size is None:
        return
    if type(scorer.decoder.output_projection) is not nn.Linear:
        raise option_error(
            "--drafter-shortlist", size, "nothing with an adaptive softmax, which has its own parts"
        )
    if not words.nspecial < size <= len(words):
        raise option_error(
            "--drafter-shortlist", size,
            f"from {words.nspecial + 1} (one word besides the {words.nspecial} special symbols) to "
            f"{len(words)}, the whole dictionary",
        )  # fmt: skip
    scorer.shortlist = size
