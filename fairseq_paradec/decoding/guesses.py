"""Guesses of a block's tokens: the last pass's predictions, then first guesses."""

from typing import Any

from ..errors import option_error
from ..row import Row


class Guesses:
    """The guesses for the positions of a row after its committed tokens.

    First guesses: ``pad`` and ``bos`` are that token everywhere; ``source-copy`` is the source's
    token at the same position; ``ngram`` continues the last token as an earlier pass of the
    sentence did. ``<pad>`` is always wrong, since it is never predicted.
    """

    def __init__(self, how: str, pad: int, start: int) -> None:
        self.tokens: list[int] = []
        self.how = how
        self.pad = pad
        self.filler = start if how in ("bos", "source-copy") else pad
        # The predictions of all passes in sequence, with <pad> after each pass; and, for each token
        # with a successor there, the index of its last occurrence.
        self.seen: list[int] = []
        self.latest: dict[int, int] = {}

    def of_size(self, row: Row, size: int) -> list[int]:
        """Return the guesses for the next positions; new ones are first guesses."""
        self.tokens = self.tokens[:size]  # the block may be shorter than before
        self.tokens += self._first(row, size - len(self.tokens))
        return list(self.tokens)

    def _first(self, row: Row, count: int) -> list[int]:
        """Guess ``count`` positions that follow the row's tokens and guesses."""
        known = len(row.tokens) + len(self.tokens)
        tokens: list[int] = []
        if self.how == "source-copy":
            tokens = row.source[known : known + count]
        elif self.how == "ngram" and known > 0:
            tokens = self._continue((self.tokens or row.tokens)[-1], count)
        return tokens + [self.filler] * (count - len(tokens))

    def observe(self, predicted: list[int], num_final: int) -> None:
        """Take a pass's predictions that are not final as the next guesses."""
        self.tokens = predicted[num_final:]
        if self.how == "ngram":
            offset = len(self.seen)
            self.latest |= zip(predicted[:-1], range(offset, offset + len(predicted) - 1))
            self.seen += [*predicted, self.pad]

    def _continue(self, key: int, count: int) -> list[int]:
        """Return the tokens after the last ``key`` that an earlier pass predicted."""
        where = self.latest.get(key)
        if where is None:
            return []
        following = self.seen[where + 1 : where + 1 + count]
        if self.pad in following:
            return following[: following.index(self.pad)]
        return following


def check_first_guess(how: str, src_dict: Any, tgt_dict: Any) -> None:
    """Refuse ``source-copy`` without a joined dictionary."""
    if how == "source-copy" and src_dict != tgt_dict:
        raise option_error(
            "--jacobi-init",
            how,
            "pad, bos, ngram; a source token can only be a guess where source and target share one "
            "dictionary",
        )
