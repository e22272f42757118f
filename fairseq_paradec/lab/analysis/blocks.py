"""The blocks of blockwise decoding, as the paper counts them (Stern et al. 2018).

A block is the model's own next token and the accepted drafts after it. The pass that verifies the
drafts also finds the first token of the next block (section 4), so a pass of the trace holds the
end of one block and the start of the next.
"""

from collections.abc import Sequence

#: The ``--decoding`` with these blocks, and the one whose blocks are single tokens.
METHOD, SINGLE_TOKENS = "blockwise", "greedy"


def block_sizes(num_accepted: Sequence[int], num_tokens: int) -> list[int]:
    """Return the sizes of an output's blocks, ``</s>`` counted."""
    starts: list[int] = []
    committed = 0
    for accepted in num_accepted:
        starts.append(committed + accepted)  # the model's own token, after the accepted drafts
        committed += accepted + 1
    starts = [start for start in starts if start < num_tokens] + [num_tokens]
    return [end - start for start, end in zip(starts, starts[1:], strict=False)]
