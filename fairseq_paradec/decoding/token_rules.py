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
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .row import Row


class Limits(NamedTuple):
    """The limits that hold at some positions of a chunk only, B×R each.

    Attributes:
        early: True where ``</s>`` is forbidden; None: nowhere.
        last: True where only ``</s>`` is allowed; None: nowhere.
        forced: the only allowed token, or ``<pad>`` for any; None: nowhere.
        free: True where suppressed tokens are allowed; None: nowhere.
    """

    early: Tensor | None = None
    last: Tensor | None = None
    forced: Tensor | None = None
    free: Tensor | None = None


class Scored(NamedTuple):
    """The choices at the positions of a chunk.

    Attributes:
        tokens: B×R, the best allowed token.
        scores: B×R, its log-probability.
        draft_scores: B×K, the log-probabilities of drafted tokens, -inf where forbidden; None
            without a draft.
        draft_ranks: B×K, the number of tokens that score strictly higher; None without a draft.
    """

    tokens: Tensor
    scores: Tensor
    draft_scores: Tensor | None = None
    draft_ranks: Tensor | None = None


class Best(NamedTuple):
    """The best tokens at the positions of a chunk.

    Attributes:
        tokens: B×R×N, allowed ones, the best first.
        scores: B×R×N, their log-probabilities; -inf where fewer are allowed.
        ends: B×R, that of ``</s>``, whether or not it is among them; -inf where forbidden.
    """

    tokens: Tensor
    scores: Tensor
    ends: Tensor


def starts_of(rows: Sequence[Row]) -> list[int]:
    """Return the position that follows each row's tokens."""
    return [len(row.tokens) for row in rows]


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

    def choose(
        self,
        scores: Tensor,
        rows: Sequence[Row],
        draft: Tensor | None = None,
        starts: list[int] | None = None,
        depths: Tensor | None = None,
    ) -> Scored:
        """Apply the rules and choose greedily at every position of a chunk.

        Args:
            scores: B×R×V; written to: forbidden tokens become -inf.
            rows: B rows, for their limits and prefixes.
            draft: B×K drafted tokens, ``<pad>`` after a shorter draft; K <= R.
            starts: B; chunk position j of row b predicts position ``starts[b] + j``. None: the
                first follows the row's tokens.
            depths: B×R; of a tree, chunk position j of row b predicts position
                ``starts[b] + depths[b, j]``.
        """
        self.restrict(scores, rows, starts_of(rows) if starts is None else starts, depths)
        best, choices = scores.max(dim=-1)
        if draft is None:
            return Scored(choices, best)
        part = scores[:, : draft.size(1)]
        drafted = part.gather(2, draft[:, :, None])  # B×K×1
        return Scored(choices, best, drafted.squeeze(2), part.gt(drafted).sum(dim=2))

    def candidates(
        self,
        scores: Tensor,
        rows: Sequence[Row],
        count: int,
        starts: list[int] | None = None,
        depths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Apply the rules and return the best tokens at every position of a chunk.

        Args:
            scores: B×R×V; see ``choose``.
            rows: see ``choose``.
            count: N, at most V.
            starts: see ``choose``.
            depths: see ``choose``.

        Returns:
            B×R×N tokens and their scores, the best first; of equal ones the token with the lower
            number. Where fewer tokens are allowed, the last scores are -inf.
        """
        self.restrict(scores, rows, starts_of(rows) if starts is None else starts, depths)
        best, tokens = scores.topk(min(count + 1, scores.size(-1)), dim=-1)
        # Of equal scores topk returns any: this is rare, and a sort takes far longer.
        equal = best[..., 1:].eq(best[..., :-1]) & best[..., 1:].isfinite()
        if bool(equal.any()):
            best, tokens = scores.sort(dim=-1, descending=True, stable=True)
        return tokens[..., :count], best[..., :count]

    def best(self, scores: Tensor, rows: Sequence[Row], count: int, starts: list[int]) -> Best:
        """Apply the rules and return the best tokens at every position, and ``</s>``.

        Args:
            scores: B×R×V; see ``choose``.
            rows: see ``choose``.
            count: N, at most V.
            starts: see ``choose``.
        """
        self.restrict(scores, rows, starts)
        best, tokens = scores.topk(count, dim=-1)
        return Best(tokens, best, scores[:, :, self.eos])

    def limits(
        self, rows: Sequence[Row], starts: list[int], width: int, depths: Tensor | None = None
    ) -> Limits:
        """Return the limits at the positions of a chunk.

        Args:
            rows: B rows, for their limits and prefixes.
            starts: B; chunk position j of row b predicts position ``starts[b] + j``.
            width: R.
            depths: B×R; see ``choose``.
        """
        early = last = forced = free = None
        positions = None
        reach = width if depths is None else int(depths.max()) + 1
        if min(starts) < max(self.min_len, self.forced_len):
            positions = self._positions(starts, width, depths)
            if self.min_len > 0:
                early = (positions < self.min_len) & (positions >= self.forced_len)
            if self.forced_len > 0:
                forced = self._forced(positions, rows)
                free = positions < self.forced_len if self.suppressed else None
        if any(start + reach > row.limit for start, row in zip(starts, rows, strict=True)):
            if positions is None:
                positions = self._positions(starts, width, depths)
            ends = torch.tensor([row.limit for row in rows], device=self.device)
            last = positions >= ends[:, None]
        return Limits(early, last, forced, free)

    def restrict(
        self,
        log_probs: Tensor,
        rows: Sequence[Row],
        starts: list[int],
        depths: Tensor | None = None,
    ) -> None:
        """Apply the rules at every position of a chunk.

        As in fairseq, the length limit overrides a prefix, and the width of the batch's prefixes
        overrides the minimal length and the suppressed tokens.

        Args:
            log_probs: B×R×V, or B×R×N over the first N tokens of the dictionary; written to:
                forbidden tokens become -inf.
            rows: see ``limits``.
            starts: see ``limits``.
            depths: see ``limits``.
        """
        early, last, forced, free = self.limits(rows, starts, log_probs.size(1), depths)
        log_probs[:, :, self.pad] = -math.inf
        if self.unk_penalty != 0:
            log_probs[:, :, self.unk] -= self.unk_penalty
        if early is not None:
            log_probs[:, :, self.eos].masked_fill_(early, -math.inf)
        if forced is not None:
            kept = log_probs.gather(2, forced[:, :, None])
            log_probs.masked_fill_(forced.ne(self.pad)[:, :, None], -math.inf)
            log_probs.scatter_(2, forced[:, :, None], kept)
        if last is not None:
            end_scores = log_probs[:, :, self.eos].clone()
            log_probs.masked_fill_(last[:, :, None], -math.inf)
            log_probs[:, :, self.eos] = end_scores
        if self.suppressed:
            self._suppress(log_probs, free)

    def _positions(self, starts: list[int], width: int, depths: Tensor | None) -> Tensor:
        """Return the target position that each chunk position predicts, B×R."""
        first = torch.tensor(starts, device=self.device)
        steps = torch.arange(width, device=self.device) if depths is None else depths
        return first[:, None] + steps

    def _forced(self, positions: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return each position's prefix token, or ``<pad>`` where a row has none, B×R."""
        filler = [self.pad] * self.forced_len
        table = torch.tensor([(r.prefix[: r.limit] + filler)[: self.forced_len] for r in rows])
        where = positions.clamp(max=self.forced_len - 1)
        forced = table.to(self.device).gather(1, where)
        return forced.masked_fill(positions >= self.forced_len, self.pad)

    def _suppress(self, log_probs: Tensor, free: Tensor | None) -> None:
        """Forbid the suppressed tokens, but where they are free."""
        tokens = self.suppressed_tokens
        if log_probs.size(2) <= self.suppressed[-1]:  # over a shortlist
            tokens = tokens[: bisect.bisect_left(self.suppressed, log_probs.size(2))]
        if free is None:
            log_probs.index_fill_(2, tokens, -math.inf)
            return
        kept = log_probs.index_select(2, tokens).masked_fill_(~free[:, :, None], -math.inf)
        log_probs.index_copy_(2, tokens, kept)

    @functools.cached_property
    def suppressed_tokens(self) -> Tensor:
        """``suppressed`` on the device."""
        return torch.tensor(self.suppressed, dtype=torch.long, device=self.device)
