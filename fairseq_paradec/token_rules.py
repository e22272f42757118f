"""Which tokens greedy search may choose, at every position of a chunk.

fairseq's beam search applies its limits at the one position that a step predicts. TokenRules
applies them at each position of a chunk, so that the output equals greedy search's.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .batch import AsCTranslate2
    from .row import Row


class Limits(NamedTuple):
    """The limits that hold at some positions of a chunk only, B×R each."""

    early: np.ndarray | None = None  # True where ``</s>`` is forbidden; None: nowhere
    last: np.ndarray | None = None  # True where only ``</s>`` is allowed; None: nowhere
    # the only allowed token, or ``<pad>`` for any; None: nowhere
    forced: np.ndarray | None = None
    free: np.ndarray | None = None  # True where suppressed tokens are allowed; None: nowhere


class Scored(NamedTuple):
    """The choices at the positions of a chunk, on the host."""

    tokens: np.ndarray  # B×R, the best allowed token
    scores: np.ndarray  # B×R, its log-probability
    # B×K, the log-probabilities of drafted tokens, -inf where forbidden; None without a draft
    draft_scores: np.ndarray | None = None
    # B×K, the number of tokens that score strictly higher; None without a draft
    draft_ranks: np.ndarray | None = None


class Best(NamedTuple):
    """The best tokens at the positions of a chunk, on the host."""

    tokens: np.ndarray  # B×R×N, allowed ones, the best first
    scores: np.ndarray  # B×R×N, their log-probabilities; -inf where fewer are allowed
    # B×R, that of ``</s>``, whether or not it is among them; -inf where forbidden
    ends: np.ndarray


@dataclass(frozen=True)
class Sampling:
    """The distribution of fairseq's ``--sampling``; see engine/sampling.py."""

    topk: int = -1  # fairseq's ``--sampling-topk``: the number of tokens to draw from; up to 0: all
    # fairseq's ``--sampling-topp``: draw from the fewest tokens, the likeliest first, whose
    # probabilities add up to this; up to 0: from all. As in fairseq, topk is then not read.
    topp: float = -1.0


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
        suppressed: other tokens that are not chosen from forced_len on (fairseq's
            ``tokens_to_suppress``), in ascending order.
        ngram: n-grams of so many tokens are not written twice (fairseq's ``no_repeat_ngram_size``);
            a forced token may. 0: they may all.
        penalty: of tokens that were written before: a score below 0 is multiplied by it, another
            divided (Keskar et al. 2019, section 4.1). 1: there is none.
        of_logits: the penalty is of logits, as in CTranslate2 and in transformers' greedy search;
            else of log-probabilities, as in transformers' beams.
        sequences: the last token of each is not written behind the others, if there are some; a
            forced token may.
        first: a token that the three rules above read before all others, as those of transformers
            read the decoder's first input; None: they read what is written alone.
        renormalised: log-probabilities are of the allowed tokens; else of all, as in fairseq.
        as_ctranslate2: how a beam ends by CTranslate2's rules; None: by fairseq's.
        sampling: draws each token by its position's random number, of the row's ``lots``; None: the
            best one is taken.
    """

    pad: int
    unk: int
    eos: int
    start: int
    min_len: int
    unk_penalty: float
    temperature: float
    forced_len: int
    suppressed: tuple[int, ...] = ()
    ngram: int = 0
    penalty: float = 1.0
    of_logits: bool = False
    sequences: tuple[tuple[int, ...], ...] = ()
    first: int | None = None
    renormalised: bool = False
    as_ctranslate2: "AsCTranslate2 | None" = None
    sampling: Sampling | None = None

    def at(
        self,
        rows: "Sequence[Row]",
        starts: list[int] | None = None,
        depths: np.ndarray | None = None,
        behind: "Behind | None" = None,
    ) -> "Positions":
        """Return the positions of a chunk under these rules; see Positions."""
        return Positions(self, rows, starts_of(rows) if starts is None else starts, depths, behind)

    @property
    def read_texts(self) -> bool:
        """Whether what is allowed depends on the tokens before a position."""
        return self.ngram > 0 or self.penalty != 1 or len(self.sequences) > 0

    @functools.cached_property
    def suppressed_tokens(self) -> np.ndarray:
        """``suppressed`` as an array."""
        return np.array(self.suppressed, dtype=np.int64)

    @functools.cached_property
    def sequence_tokens(self) -> np.ndarray:
        """The tokens of ``sequences``, one behind the other."""
        return np.array([token for tokens in self.sequences for token in tokens], dtype=np.int64)

    @functools.cached_property
    def sequence_sizes(self) -> np.ndarray:
        """How many tokens each of ``sequences`` has."""
        return np.array([*map(len, self.sequences)], dtype=np.int32)

    def forbidden(self, tokens: Sequence[int]) -> list[int]:
        """Return what ``ngram`` and ``sequences`` forbid behind tokens."""
        written = tuple(tokens)
        last = [s[-1] for s in self.sequences if _ends_with(written, s[:-1])]
        return last + (repeating(tokens, self.ngram) if self.ngram > 0 else [])


#: Of each row, and of its chunk positions from the first on, the tokens before the position that
#: the row does not have yet. What is before further positions is not known.
Behind = Sequence[Sequence[Sequence[int]]]


def along(drafts: Sequence[Sequence[int]]) -> Behind:
    """Return what is before the positions of chunks that are drafted, each token after another."""
    return [[draft[:j] for j in range(len(draft) + 1)] for draft in drafts]


def _ends_with(tokens: tuple[int, ...], some: tuple[int, ...]) -> bool:
    """Return whether some tokens are the last ones of others."""
    return tokens[len(tokens) - len(some) :] == some if len(some) <= len(tokens) else False


def repeating(tokens: Sequence[int], size: int) -> list[int]:
    """Return the tokens that would repeat an n-gram of this size after these tokens."""
    last = list(tokens[len(tokens) - size + 1 :]) if size > 1 else []
    starts = range(len(tokens) - size + 1)
    return sorted({tokens[i + size - 1] for i in starts if list(tokens[i : i + size - 1]) == last})


class Positions(NamedTuple):
    """What a chunk predicts, and what is allowed there; ``TokenRules.at`` makes it."""

    rules: TokenRules  # which tokens are allowed
    rows: "Sequence[Row]"  # B rows, for their limits and prefixes
    # B; chunk position j of row b predicts position ``starts[b] + j``. By default the first follows
    # the row's tokens.
    starts: list[int]
    # B×R; of a tree, chunk position j of row b predicts position ``starts[b] + depths[b, j]``.
    # None: the chunk is no tree.
    depths: np.ndarray | None
    # Read if the rules ``read_texts``. None: the rows' own tokens are before their first positions.
    behind: Behind | None = None

    def texts(self, width: int) -> list[list[list[int]]]:
        """Return the tokens before each position of a chunk, B×R; none where they are not known."""
        behind = [[[]] for _ in self.rows] if self.behind is None else self.behind
        both = zip(self.rows, behind, strict=True)
        known = ([[*row.tokens, *more] for more in some[:width]] for row, some in both)
        return [texts + [[]] * (width - len(texts)) for texts in known]

    def penalise(self, scores: Any) -> None:
        """Lower the scores of tokens that were written before; see ``TokenRules.penalty``.

        Args:
            scores: B×R×V, logits or log-probabilities, as the rules say; written to.
        """
        penalty = self.rules.penalty
        if penalty == 1:
            return
        _, width, size = scores.shape
        for b, j, text in self._read(width):
            tokens = sorted({token for token in text if token < size})
            scores[b, j, tokens] = _penalised(scores[b, j, tokens], penalty)

    def _read(self, width: int) -> Iterator[tuple[int, int, list[int]]]:
        """Yield the text before each position of a chunk, as rules read it."""
        first = [] if self.rules.first is None else [self.rules.first]
        for b, texts in enumerate(self.texts(width)):
            for j, text in enumerate(texts):
                yield b, j, first + text

    def limits(self, width: int) -> Limits:
        """Return the limits at the positions of a chunk of R = ``width``."""
        rules, rows, starts, depths, _ = self
        early = last = forced = free = None
        positions = None
        reach = width if depths is None else int(depths.max()) + 1
        if min(starts) < max(rules.min_len, rules.forced_len):
            positions = self._numbers(width)
            begins = positions < rules.forced_len
            if rules.forced_len > 0:
                forced = self._forced(positions)
                begins = begins if rules.as_ctranslate2 is None else forced != rules.pad
                free = begins if rules.suppressed else None
            if rules.min_len > 0:
                early = (positions < rules.min_len) & ~begins
        if any(start + reach > row.limit for start, row in zip(starts, rows, strict=True)):
            if positions is None:
                positions = self._numbers(width)
            last = positions >= np.array([row.limit for row in rows])[:, None]
        return Limits(early, last, forced, free)

    def restrict(self, log_probs: Any) -> None:
        """Apply the rules at every position of a chunk.

        As in fairseq, the length limit overrides a prefix, and the width of the batch's prefixes
        overrides the minimal length and the suppressed tokens; by CTranslate2's rules each row's
        own prefix does, and the penalty of ``<unk>``. What is forced may repeat an n-gram.

        Args:
            log_probs: B×R×V, or B×R×N over the first N tokens of the dictionary, an array or a
                tensor, of logits that ``penalise`` has seen if the penalty is of logits; written
                to: forbidden tokens become -inf.
        """
        rules = self.rules
        _, width, size = log_probs.shape
        early, last, forced, free = self.limits(width)
        if not rules.of_logits:
            self.penalise(log_probs)
        log_probs[:, :, rules.pad] = -math.inf
        if rules.unk_penalty != 0:
            if rules.as_ctranslate2 is None or forced is None:
                log_probs[:, :, rules.unk] -= rules.unk_penalty
            else:
                log_probs[(*(forced == rules.pad).nonzero(), rules.unk)] -= rules.unk_penalty
        if early is not None:
            log_probs[(*early.nonzero(), rules.eos)] = -math.inf
        if forced is not None:
            where = (forced != rules.pad).nonzero()
            _leave_only(log_probs, where, forced[where])
        if last is not None:
            where = last.nonzero()
            _leave_only(log_probs, where, rules.eos)
        if rules.ngram > 0 or rules.sequences:
            self._forbid_texts(log_probs, last, forced)
        tokens = rules.suppressed_tokens
        tokens = tokens[tokens < size]  # it may be over a shortlist
        if free is None:
            log_probs[:, :, tokens] = -math.inf
        else:
            rows, columns = (~free).nonzero()
            log_probs[rows[:, None], columns[:, None], tokens] = -math.inf
        if rules.renormalised:
            log_probs -= _log_sums(log_probs)

    def _forbid_texts(
        self, log_probs: Any, last: np.ndarray | None, forced: np.ndarray | None
    ) -> None:
        """Forbid what must not follow a text, where nothing is forced; see ``Limits``."""
        _, width, size = log_probs.shape
        for b, j, text in self._read(width):
            free = forced is None or forced[b, j] == self.rules.pad
            if not free or (last is not None and last[b, j]):
                continue
            tokens = [token for token in self.rules.forbidden(text) if token < size]
            log_probs[b, j, tokens] = -math.inf

    def lots(self, width: int) -> np.ndarray:
        """Return the random numbers of a chunk's positions, B×R; of those past a limit any."""
        numbers = self._numbers(width)
        rows = zip(self.rows, numbers, strict=True)
        return np.stack([row.lots[positions.clip(max=row.limit)] for row, positions in rows])

    def _numbers(self, width: int) -> np.ndarray:
        """Return the target position that each chunk position predicts, B×R."""
        steps = np.arange(width) if self.depths is None else self.depths
        numbers: np.ndarray = np.array(self.starts)[:, None] + steps
        return numbers

    def _forced(self, positions: np.ndarray) -> np.ndarray:
        """Return each position's prefix token, or ``<pad>`` where a row has none, B×R."""
        pad, width = self.rules.pad, self.rules.forced_len
        filler = [pad] * width
        table = np.array([(row.prefix[: row.limit] + filler)[:width] for row in self.rows])
        forced = np.take_along_axis(table, positions.clip(max=width - 1), axis=1)
        return np.where(positions >= width, pad, forced)


def _penalised(values: Any, penalty: float) -> Any:
    """Return scores of an array or a tensor under a penalty."""
    if isinstance(values, np.ndarray):
        return np.where(values < 0, values * penalty, values / penalty)
    return (values * penalty).where(values < 0, values / penalty)


def _log_sums(log_probs: Any) -> Any:
    """Return the log of the sum of probabilities, of an array or a tensor: B×R×V -> B×R×1."""
    if isinstance(log_probs, np.ndarray):
        return np.logaddexp.reduce(log_probs, axis=2, keepdims=True)
    return log_probs.logsumexp(2, keepdim=True)


def _leave_only(log_probs: Any, where: tuple[np.ndarray, ...], tokens: Any) -> None:
    """Forbid all tokens but one at some positions of a chunk."""
    kept = log_probs[(*where, tokens)]
    log_probs[where] = -math.inf
    log_probs[(*where, tokens)] = kept
