"""How many tokens to draft for a row, by what its last pass accepted."""

from __future__ import annotations


class AdaptiveBlock:
    """As many tokens as the row's last pass wrote, and one more; at first as many as may be.

    A pass writes what it accepts and the verifier's own token, so the next block has two tokens
    more than were accepted: a block that was accepted whole grows by two, as in Hugging Face's
    assisted generation (Gante 2023, ``num_assistant_tokens_schedule="heuristic"``), and one that
    was not shrinks at once, where that shrinks by one. It is never below two tokens (if two are
    allowed), nor below what a pass accepted.

    Args:
        most: the longest block, from 1 up.
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def first(self) -> int:
        """Return the block of a row's first pass."""
        return self.most

    def after(self, num_accepted: int) -> int:
        """Return the block that follows upon a pass that drafted something."""
        return min(self.most, num_accepted + 2)
