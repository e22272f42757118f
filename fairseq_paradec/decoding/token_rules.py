"""Which tokens greedy search may choose, at every position of a chunk.

fairseq's beam search applies its limits at the one position that a step predicts. TokenRules
applies them at each position of a chunk, so that the output equals greedy search's.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .row import Row


@dataclass(frozen=True)
class TokenRules:
    """fairseq's limits on greedy search (``SequenceGenerator._generate``).

    Attributes:
        pad: never chosen.
        unk: its log-probability is lowered by unk_penalty.
        eos: ends a row; always chosen at a row's limit, never before min_len.
        start: the decoder's first input.
        min_len: the first position where ``</s>`` is allowed.
        unk_penalty: subtracted from the log-probability of ``<unk>`` (natural log).
        temperature: the divisor of the logits.
        forced_len: the width of the batch's prefixes. Before this position a row's prefix token is
            forced, if it has one, and min_len does not apply.
        device: the model's device.
        suppressed: other tokens that are not chosen from forced_len on (fairseq's
            ``tokens_to_suppress``), in ascending order.
    """

    pad: int
    unk: int
    eos: int
    start: int
    min_len: int
    unk_penalty: float
    temperature: float
    forced_len: int
    device: torch.device
    suppressed: tuple[int, ...] = ()

    def choose(self, log_probs: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Apply the rules and choose greedily at every position of a chunk.

        Args:
            log_probs: B×R×V; written to: forbidden tokens become -inf.
            rows: B rows; chunk position j of row b predicts position ``len(rows[b].tokens) + j``.

        Returns:
            The choices' log-probabilities and the choices, B×R each.
        """
        self.restrict(log_probs, rows, [len(row.tokens) for row in rows])
        best, choices = log_probs.max(dim=-1)
        return best, choices

    def restrict(self, log_probs: Tensor, rows: Sequence[Row], starts: list[int]) -> None:
        """Apply the rules at every position of a chunk.

        Args:
            log_probs: B×R×V, or B×R×N over the first N tokens of the dictionary; written to:
                forbidden tokens become -inf.
            rows: B rows, for their limits and prefixes.
            starts: B; chunk position j of row b predicts position ``starts[b] + j``.
        """
        width = log_probs.size(1)
        log_probs[:, :, self.pad] = -math.inf
        if self.unk_penalty != 0:
            log_probs[:, :, self.unk] -= self.unk_penalty
        if min(starts) < max(self.min_len, self.forced_len):
            self._restrict_start(log_probs, self._positions(starts, width), rows)
        if any(start + width > row.limit for start, row in zip(starts, rows, strict=True)):
            limits = torch.tensor([row.limit for row in rows], device=self.device)
            past = self._positions(starts, width) >= limits[:, None]  # B×R
            end_scores = log_probs[:, :, self.eos].clone()
            log_probs.masked_fill_(past[:, :, None], -math.inf)
            log_probs[:, :, self.eos] = end_scores
        if self.suppressed:
            self._suppress(log_probs, starts)

    def _positions(self, starts: list[int], width: int) -> Tensor:
        """Return the target position that each chunk position predicts, B×R."""
        first = torch.tensor(starts, device=self.device)
        return first[:, None] + torch.arange(width, device=self.device)

    def _suppress(self, log_probs: Tensor, starts: list[int]) -> None:
        """Forbid the suppressed tokens, as fairseq does: not before ``forced_len``."""
        tokens = self._suppressed
        if log_probs.size(2) <= self.suppressed[-1]:  # over a shortlist
            tokens = tokens[: bisect.bisect_left(self.suppressed, log_probs.size(2))]
        if min(starts) >= self.forced_len:
            log_probs.index_fill_(2, tokens, -math.inf)
            return
        free = self._positions(starts, log_probs.size(1)) >= self.forced_len  # B×R
        kept = log_probs.index_select(2, tokens).masked_fill_(free[:, :, None], -math.inf)
        log_probs.index_copy_(2, tokens, kept)

    @functools.cached_property
    def _suppressed(self) -> Tensor:
        """``suppressed`` on the device."""
        return torch.tensor(self.suppressed, device=self.device)

    def _restrict_start(self, log_probs: Tensor, positions: Tensor, rows: Sequence[Row]) -> None:
        """Forbid an early ``</s>``, and allow only the prefix token where a row has one.

        As in fairseq, the length limit overrides a prefix, and the width of the batch's prefixes
        overrides the minimal length.
        """
        early = (positions < self.min_len) & (positions >= self.forced_len)
        log_probs[:, :, self.eos].masked_fill_(early, -math.inf)
        if self.forced_len == 0:
            return
        filler = [self.pad] * self.forced_len
        table = torch.tensor([(r.prefix[: r.limit] + filler)[: self.forced_len] for r in rows])
        where = positions.clamp(max=self.forced_len - 1)
        forced = table.to(self.device).gather(1, where)  # B×R
        forced = forced.masked_fill(positions >= self.forced_len, self.pad)
        kept = log_probs.gather(2, forced[:, :, None])
        is_forced = forced.ne(self.pad)[:, :, None]
        log_probs.masked_fill_(is_forced, -math.inf)
        log_probs.scatter_(2, forced[:, :, None], kept)
