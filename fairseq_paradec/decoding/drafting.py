"""What drafters share: the block size of each row, and drafting from a model's scores."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.chunk import pick
from ..engine.projection import DraftProjection
from ..errors import UsageError
from ..row import Row
from ..token_rules import TokenRules
from .loop import Drafter, Proposal, Verdict, no_draft, num_to_score
from .trees import CHOICES, Nodes, likeliest


class BlockSizes:
    """The largest number of drafted tokens for each row of a batch.

    A fixed size is always ``most``. An adaptive size starts as ``most``; after each pass it is one
    more than the tokens that the pass wrote for the row: the accepted tokens and the verifier's
    own. So a block that is fully accepted grows by two, as in Hugging Face's assisted generation
    (Gante 2023, ``num_assistant_tokens_schedule="heuristic"``). Any other block takes that size at
    once, where Hugging Face's shrinks by one.
    """

    def __init__(self, most: int, num_rows: int, adaptive: bool) -> None:
        self.most = most
        self.adaptive = adaptive
        self.sizes = [most] * num_rows

    def __getitem__(self, b: int) -> int:
        return self.sizes[b]

    def observe(self, num_accepted: Sequence[int], own: Sequence[bool] | None = None) -> None:
        """Adapt to the accepted counts of a pass; ``own``: as in Verdict, others stay."""
        if self.adaptive:
            adapted = [min(self.most, count + 2) for count in num_accepted]
            mine = own or [True] * len(adapted)
            both = zip(adapted, self.sizes, mine, strict=True)
            self.sizes = [new if ours else old for new, old, ours in both]

    def drop(self, stay: Sequence[int]) -> None:
        """Keep these rows only."""
        self.sizes = [self.sizes[b] for b in stay]


def propose_trees(nodes: list[Nodes]) -> Proposal:
    """Return the proposal of each row's tree; all of its nodes are scored."""
    tokens, parents, shares = map(list, zip(*nodes, strict=True))
    return Proposal(tokens, [1 + len(row) for row in tokens], shares, parents=parents)


class ModelDrafter(Drafter):
    """Drafts the best token of a model's states at each of the next positions.

    Args:
        scorer: of the model whose projection is used.
        projection: the draft projection, of all tokens or of a shortlist.
        rules: which tokens are allowed at a position.
        sizes: the number of drafted tokens of each row; of a tree, its depth.
        traced: also give the drafted tokens' probabilities, for a trace.
        most_nodes: draft trees of at most this many nodes; None: no trees.
    """

    def __init__(
        self,
        scorer: Any,
        projection: DraftProjection,
        rules: TokenRules,
        sizes: BlockSizes,
        traced: bool = False,
        most_nodes: int | None = None,
    ) -> None:
        self.scorer = scorer
        self.projection = projection
        self.rules = rules
        self.sizes = sizes
        self.traced = traced
        self.most_nodes = most_nodes

    @abc.abstractmethod
    def hidden(self, rows: Sequence[Row], count: int) -> Any:
        """Return the states that predict the next ``count`` positions of each row, B×K×D."""

    @abc.abstractmethod
    def nan_error(self) -> UsageError:
        """Return the error for a model whose scores are NaN."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft up to a row's block size, its limit and the first ``</s>``."""
        # At a row's last position only </s> is allowed, so it is not drafted.
        counts = [min(row.room - 1, self.sizes[b]) for b, row in enumerate(rows)]
        if max(counts) == 0:
            return no_draft(len(rows))
        hidden = self.hidden(rows, max(counts))
        if self.most_nodes is not None:
            return self._trees(hidden, rows, counts, self.most_nodes)
        scored = self.projection.choose(
            self.scorer.projection, hidden, self.rules.at(rows), self.traced
        )
        if np.isnan(scored.scores).any():
            raise self.nan_error()
        drafts = []
        for draft, count in zip(scored.tokens.tolist(), counts, strict=True):
            draft = draft[:count]
            eos = self.rules.eos
            drafts.append(draft[: draft.index(eos) + 1] if eos in draft else draft)
        confidences = None
        if self.traced:
            shares = np.exp(scored.scores).tolist()
            confidences = [row[: len(d)] for row, d in zip(shares, drafts, strict=True)]
        return Proposal(drafts, num_to_score(drafts, self.rules.eos), confidences)

    def _trees(self, hidden: Any, rows: Sequence[Row], counts: list[int], most: int) -> Proposal:
        """Draft the likeliest paths of each row, as trees of at most ``most`` nodes."""
        tokens, log_probs = self.projection.candidates(
            self.scorer.projection, hidden, self.rules.at(rows), CHOICES
        )
        if np.isnan(log_probs).any():
            raise self.nan_error()
        offered = zip(tokens.tolist(), log_probs.tolist(), counts, strict=True)
        return propose_trees(
            [likeliest(*row_choices, most, self.rules.eos) for row_choices in offered]
        )

    def observe(self, verdict: Verdict) -> None:
        """Adapt the blocks."""
        self.sizes.observe(verdict.num_accepted, verdict.own)

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the blocks of these rows."""
        self.sizes.drop(stay)


class StateDrafter(ModelDrafter):
    """Drafts from the verifier's state that predicted the last committed token."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.states: Any = None  # B×D after the first pass

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft tokens for each row; none before the first pass."""
        return no_draft(len(rows)) if self.states is None else super().propose(rows)

    def observe(self, verdict: Verdict) -> None:
        """Keep the states after the accepted tokens, B×R×D -> B×D."""
        if self.states is not None:  # the first pass has no draft
            super().observe(verdict)
        # A row that ends with a drafted </s> may have no state after it, and needs none.
        last = verdict.hidden.shape[1] - 1
        where = np.array([[min(count, last)] for count in verdict.num_accepted])
        self.states = pick(verdict.hidden, where)[:, 0]

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the block sizes and states of these rows."""
        super().drop(stay)
        assert self.states is not None  # rows finish in passes
        self.states = self.states[list(stay)]
