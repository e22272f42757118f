"""Which tokens greedy search may choose, at every position of a chunk.

fairseq's beam search applies its limits at the one position that a step predicts. TokenRules
applies them at each position of a chunk, so that the output equals greedy search's.
"""

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
    """The limits that hold at some positions of a chunk only, B×R each."""

    early: Tensor | None = None  # True where ``</s>`` is forbidden; None: nowhere
    last: Tensor | None = None  # True where only ``</s>`` is allowed; None: nowhere
    forced: Tensor | None = None  # the only allowed token, or ``<pad>`` for any; None: nowhere
    free: Tensor | None = None  # True where suppressed tokens are allowed; None: nowhere


class Scored(NamedTuple):
    """The choices at the positions of a chunk."""

    tokens: Tensor  # B×R, the best allowed token
    scores: Tensor  # B×R, its log-probability
    # B×K, the log-probabilities of drafted tokens, -inf where forbidden; None without a draft
    draft_scores: Tensor | None = None
    # B×K, the number of tokens that score strictly higher; None without a draft
    draft_ranks: Tensor | None = None


class Best(NamedTuple):
    """The best tokens at the positions of a chunk."""

    tokens: Tensor  # B×R×N, allowed ones, the best first
    scores: Tensor  # B×R×N, their log-probabilities; -inf where fewer are allowed
    ends: Tensor  # B×R, that of ``</s>``, whether or not it is among them; -inf where forbidden


def starts_of(rows: "Sequence[Row]") -> list[int]:
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

    def at(
        self, rows: "Sequence[Row]", starts: list[int] | None = None, depths: Tensor | None = None
    ) -> "Positions":
        """Return the positions of a chunk under these rules; see Positions."""
        return Positions(self, rows, starts_of(rows) if starts is None else starts, depths)

    @functools.cached_property
    def suppressed_tokens(self) -> Tensor:
        """``suppressed`` on the device."""
        return torch.tensor(self.suppressed, dtype=torch.long, device=self.device)


class Positions(NamedTuple):
    """What a chunk predicts, and what is allowed there; ``TokenRules.at`` makes it."""

    rules: TokenRules  # which tokens are allowed
    rows: "Sequence[Row]"  # B rows, for their limits and prefixes
    # B; chunk position j of row b predicts position ``starts[b] + j``. By default the first follows
    # the row's tokens.
    starts: list[int]
    # B×R; of a tree, chunk position j of row b predicts position ``starts[b] + depths[b, j]``.
    # None: the chunk is no tree.
    depths: Tensor | None

    def choose(self, scores: Tensor, draft: Tensor | None = None) -> Scored:
        """Apply the rules and choose greedily at every position.

        Args:
            scores: B×R×V; written to: forbidden tokens become -inf.
            draft: B×K drafted tokens, ``<pad>`` after a shorter draft; K <= R.
        """
        self.restrict(scores)
        best, choices = scores.max(dim=-1)
        if draft is None:
            return Scored(choices, best)
        part = scores[:, : draft.size(1)]
        drafted = part.gather(2, draft[:, :, None])  # B×K×1
        return Scored(choices, best, drafted.squeeze(2), part.gt(drafted).sum(dim=2))

    def candidates(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Apply the rules and return the best tokens at every position.

        Args:
            scores: B×R×V; see ``choose``.
            count: N, at most V.

        Returns:
            B×R×N tokens and their scores, the best first; of equal ones the token with the lower
            number. Where fewer tokens are allowed, the last scores are -inf.
        """
        self.restrict(scores)
        best, tokens = scores.topk(min(count + 1, scores.size(-1)), dim=-1)
        # Of equal scores topk returns any: this is rare, and a sort takes far longer.
        equal = best[..., 1:].eq(best[..., :-1]) & best[..., 1:].isfinite()
        if bool(equal.any()):
            best, tokens = scores.sort(dim=-1, descending=True, stable=True)
        return tokens[..., :count], best[..., :count]

    def best(self, scores: Tensor, count: int) -> Best:
        """Apply the rules and return the best tokens at every position, and ``</s>``.

        Args:
            scores: B×R×V; see ``choose``.
            count: N, at most V.
        """
        self.restrict(scores)
        best, tokens = scores.topk(count, dim=-1)
        return Best(tokens, best, scores[:, :, self.rules.eos])

    def limits(self, width: int) -> Limits:
        """Return the limits at the positions of a chunk of R = ``width``."""
        rules, rows, starts, depths = self
        early = last = forced = free = None
        positions = None
        reach = width if depths is None else int(depths.max()) + 1
        if min(starts) < max(rules.min_len, rules.forced_len):
            positions = self._numbers(width)
            if rules.min_len > 0:
                early = (positions < rules.min_len) & (positions >= rules.forced_len)
            if rules.forced_len > 0:
                forced = self._forced(positions)
                free = positions < rules.forced_len if rules.suppressed else None
        if any(start + reach > row.limit for start, row in zip(starts, rows, strict=True)):
            if positions is None:
                positions = self._numbers(width)
            ends = torch.tensor([row.limit for row in rows], device=rules.device)
            last = positions >= ends[:, None]
        return Limits(early, last, forced, free)

    def restrict(self, log_probs: Tensor) -> None:
        """Apply the rules at every position of a chunk.

        As in fairseq, the length limit overrides a prefix, and the width of the batch's prefixes
        overrides the minimal length and the suppressed tokens.

        Args:
            log_probs: B×R×V, or B×R×N over the first N tokens of the dictionary; written to:
                forbidden tokens become -inf.
        """
        rules = self.rules
        early, last, forced, free = self.limits(log_probs.size(1))
        log_probs[:, :, rules.pad] = -math.inf
        if rules.unk_penalty != 0:
            log_probs[:, :, rules.unk] -= rules.unk_penalty
        if early is not None:
            log_probs[:, :, rules.eos].masked_fill_(early, -math.inf)
        if forced is not None:
            kept = log_probs.gather(2, forced[:, :, None])
            log_probs.masked_fill_(forced.ne(rules.pad)[:, :, None], -math.inf)
            log_probs.scatter_(2, forced[:, :, None], kept)
        if last is not None:
            end_scores = log_probs[:, :, rules.eos].clone()
            log_probs.masked_fill_(last[:, :, None], -math.inf)
            log_probs[:, :, rules.eos] = end_scores
        if rules.suppressed:
            self._suppress(log_probs, free)

    def _numbers(self, width: int) -> Tensor:
        """Return the target position that each chunk position predicts, B×R."""
        first = torch.tensor(self.starts, device=self.rules.device)
        steps = self.depths
        if steps is None:
            steps = torch.arange(width, device=self.rules.device)
        return first[:, None] + steps

    def _forced(self, positions: Tensor) -> Tensor:
        """Return each position's prefix token, or ``<pad>`` where a row has none, B×R."""
        pad, width = self.rules.pad, self.rules.forced_len
        filler = [pad] * width
        table = torch.tensor([(r.prefix[: r.limit] + filler)[:width] for r in self.rows])
        where = positions.clamp(max=width - 1)
        forced = table.to(self.rules.device).gather(1, where)
        return forced.masked_fill(positions >= width, pad)

    def _suppress(self, log_probs: Tensor, free: Tensor | None) -> None:
        """Forbid the suppressed tokens, but where they are free."""
        tokens, suppressed = self.rules.suppressed_tokens, self.rules.suppressed
        if log_probs.size(2) <= suppressed[-1]:  # over a shortlist
            tokens = tokens[: bisect.bisect_left(suppressed, log_probs.size(2))]
        if free is None:
            log_probs.index_fill_(2, tokens, -math.inf)
            return
        kept = log_probs.index_select(2, tokens).masked_fill_(~free[:, :, None], -math.inf)
        log_probs.index_copy_(2, tokens, kept)
