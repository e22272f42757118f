"""The loop: draft tokens, score them in one pass, accept a prefix of them, roll the cache back.

Every method of this package is this loop with its own drafter and acceptance rule. The rows of a
batch advance independently; a finished row leaves the batch.
"""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from ..engine.native.drafts import NativeDrafting
from ..records import PassRecord
from ..row import Row
from ..token_rules import Best, Positions, Scored, TokenRules, along, starts_of
from .acceptance import ExactMatch
from .trace import PassDetails
from .trees import Nodes, Trees, branches, plant

if TYPE_CHECKING:
    from ..engine.scorers import Scorer


class Proposal(NamedTuple):
    """What a drafter proposes for every row of the batch.

    Attributes:
        tokens: B lists of drafted tokens; a row may draft fewer than others, or none.
        num_scored: B, the number of scored positions of each row, at least 1. The first predicts
            the next token. With n drafted tokens it is n, or n+1 to also predict the token after
            the last drafted one (the bonus token).
        confidences: B lists of the drafter's probabilities of its tokens; None if not known.
        parents: if the drafted tokens are trees, each token's parent; see ``trees``. All nodes are
            scored.
        given: B, whether a row's draft is from an earlier output; None: no row's is.
    """

    tokens: list[list[int]]
    num_scored: list[int]
    confidences: list[list[float]] | None = None
    parents: list[list[int]] | None = None
    given: list[bool] | None = None


class Verdict(NamedTuple):
    """The verifier's answer to a proposal.

    Attributes:
        choices: B lists of the verifier's own tokens, one per scored position.
        num_accepted: B, the number of accepted drafted tokens.
        num_committed: B, the number of final tokens, before the row is cut at ``</s>``.
        hidden: the output of the scorer's ``step``, B×R×D for one model; of a tree, on the path
            that was looked at.
        paths: B, the accepted nodes of trees; None without trees.
        own: B, whether a row's draft is what the drafter that reads this proposed in this pass;
            None: each one is. If none is, it was not asked.
    """

    choices: list[list[int]]
    num_accepted: list[int]
    num_committed: list[int]
    hidden: Any
    paths: list[list[int]] | None = None
    own: list[bool] | None = None

    @property
    def num_own(self) -> list[int]:
        """B, ``num_accepted``, with 0 where the draft is another drafter's."""
        if self.own is None:
            return self.num_accepted
        return [n if own else 0 for n, own in zip(self.num_accepted, self.own, strict=True)]

    @property
    def asked(self) -> bool:
        """Whether the drafter that reads this was asked in this pass."""
        return self.own is None or any(self.own)


class Drafter(abc.ABC):
    """A method's own part: it drafts tokens and reads the verifier's answer."""

    @abc.abstractmethod
    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft the tokens that follow each row's committed ones."""

    def natively(self) -> NativeDrafting | None:
        """Describe the drafter to the native loop; None, the default: it does not know it."""
        return None

    def observe(self, verdict: Verdict) -> None:  # noqa: B027
        """Read the verifier's answer; the default does nothing."""

    def drop(self, stay: Sequence[int]) -> None:  # noqa: B027
        """Drop the state of finished rows; the default does nothing.

        Args:
            stay: indices in the last proposal of the rows that stay, in order.
        """


def native_form(drafter: Drafter) -> NativeDrafting | None:
    """Return what describes a drafter to the native loop; None: the library does not know it.

    A class that drafts otherwise than the one that it inherits the description from is not known.
    """
    kinds = type(drafter).__mro__

    def owner(name: str) -> type:
        return next(kind for kind in kinds if name in vars(kind))

    described = owner("natively")
    if all(issubclass(described, owner(name)) for name in ("propose", "observe", "drop")):
        return drafter.natively()
    return None


class Verifier(Protocol):
    """The scorer's methods that the loop calls; see ChunkScorer."""

    def step(self, tokens: np.ndarray) -> Any:
        """Run a pass over one chunk, B×R."""

    def choose(self, hidden: Any, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose at every position for the output of ``step``; see ``choices.choose``."""
        ...

    def choose_traced(
        self, hidden: Any, at: Positions, draft: np.ndarray | None
    ) -> tuple[Scored, Best]:
        """Choose, and return the best two tokens at every position, for a trace."""
        ...

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll each row back to its own length."""

    def reorder(self, index: Sequence[int]) -> None:
        """Pick rows."""


def no_draft(num_rows: int) -> Proposal:
    """Propose no tokens, so that a pass predicts the next token of each row."""
    return Proposal([[] for _ in range(num_rows)], [1] * num_rows)


def num_to_score(drafts: list[list[int]], eos: int) -> list[int]:
    """Return how many positions are scored: with the bonus token's, but behind ``</s>``."""
    return [len(d) + (not d or d[-1] != eos) for d in drafts]


def draft_and_verify(
    scorer: Verifier,
    rows: Sequence[Row],
    drafter: Drafter,
    acceptance: ExactMatch,
    rules: TokenRules,
    record_tokens: bool = False,
) -> None:
    """Decode all rows to their end; writes their tokens, scores and pass records.

    Args:
        scorer: the verifier; ``encode`` has been called for these rows, in this order. Drafts of
            trees need a Scorer.
        rows: the sentences, with no committed tokens.
        drafter: proposes tokens.
        acceptance: counts the accepted and committed tokens.
        rules: which tokens are allowed at a position (limits, forced tokens), and the first input.
        record_tokens: keep each pass's tokens and log-probabilities, for a trace.
    """
    live = list(rows)
    while live:
        # 1. Propose: B lists of tokens that follow the committed ones.
        # 2. Score: the chunk is the last committed token and the draft, B×R.
        proposal = drafter.propose(live)
        seen = _score(scorer, live, proposal, acceptance, rules, record_tokens)
        drafts, num_scored, scored = seen.drafts, seen.num_scored, seen.scored
        # 3. Accept.
        choices = [c[:n] for c, n in zip(scored.tokens.tolist(), num_scored, strict=True)]
        if acceptance.exact:  # the emitted tokens are the verifier's choices
            accepted = list(map(_agreement, drafts, choices))
            final, scores = choices, scored.scores.tolist()
        else:
            assert seen.draft is not None
            num_accepted = acceptance.accept(seen.draft, scored)  # B
            accepted = num_accepted.tolist()
            final, scores = _emitted(seen.draft, scored, num_accepted)
        # 4. Commit the final tokens, and roll the cache back to them.
        committed = list(map(acceptance.commit, accepted, map(len, drafts), num_scored))
        for b, row in enumerate(live):
            record = PassRecord(len(row.tokens), len(drafts[b]), accepted[b], committed[b])
            row.commit(final[b][: committed[b]], scores[b], rules.eos)
            row.passes.append(record)
            if seen.details is not None:
                record.tokens = seen.details.of_row(b, drafts[b], choices[b])
            if proposal.given is not None and proposal.given[b]:
                record.note_given()
            if seen.trees is not None:
                record.num_nodes = len(seen.trees.nodes[b].tokens)
            if row.on_pass is not None:
                row.on_pass(row.passes)
        paths = _roll_back(scorer, live, seen, accepted)
        drafter.observe(Verdict(choices, accepted, committed, seen.hidden, paths))
        # 5. Finished rows leave the batch.
        for row in live:
            row.tell_finish()
        stay = [b for b, row in enumerate(live) if not row.finished]
        if len(stay) < len(live):
            live = [live[b] for b in stay]
            if live:
                scorer.reorder(stay)
                drafter.drop(stay)


class _Seen(NamedTuple):
    """A pass as the loop looks at it; of a tree, one path."""

    drafts: list[list[int]]  # B lists of drafted tokens
    num_scored: list[int]  # B, the number of scored positions
    hidden: Any  # the scorer's states there
    scored: Scored  # the choices there
    draft: np.ndarray | None  # B×K, the drafted tokens, for a relaxed rule or a trace
    details: PassDetails | None  # for a trace
    trees: Trees | None  # the pass's, if the draft is trees
    branches: list[list[int]]  # the path of each tree, as numbers of nodes


def _score(
    scorer: Verifier,
    rows: Sequence[Row],
    proposal: Proposal,
    acceptance: ExactMatch,
    rules: TokenRules,
    record_tokens: bool,
) -> _Seen:
    """Run a pass, and choose at every position that is looked at; see ``draft_and_verify``."""
    drafts, num_scored, confidences, parents, _ = proposal
    chunk = _chunk(rows, proposal, rules)
    whole = record_tokens or not acceptance.exact
    trees, scored = None, None
    paths: list[list[int]] = []
    if parents is None:
        hidden = scorer.step(chunk)  # B×R×D
        at = rules.at(rows, behind=along(drafts) if rules.read_texts else None)
    else:
        assert confidences is not None
        scores_trees = cast("Scorer", scorer)
        nodes = list(map(Nodes, drafts, parents, confidences))
        trees = plant(nodes, starts_of(rows))
        hidden = scores_trees.step(chunk, trees.mask)
        paths, hidden, at, scored = branches(
            scores_trees, hidden, rules, rows, trees, acceptance, whole
        )
        drafts = [[d[i] for i in path] for d, path in zip(drafts, paths, strict=True)]
        both = zip(confidences, paths, strict=True)
        confidences = [[shares[i] for i in path] for shares, path in both]
        num_scored = num_to_score(drafts, rules.eos)
    draft = _rectangle(drafts, rules.pad) if whole else None  # B×K
    details = None
    if record_tokens:
        scored, best = scorer.choose_traced(hidden, at, draft)
        details = PassDetails(best, scored, confidences)
    elif scored is None:
        scored = scorer.choose(hidden, at, draft)
    return _Seen(drafts, num_scored, hidden, scored, draft, details, trees, paths)


def _roll_back(
    scorer: Verifier, rows: Sequence[Row], seen: _Seen, num_accepted: list[int]
) -> list[list[int]] | None:
    """Keep the committed tokens in the cache; return the accepted nodes of trees."""
    if seen.trees is None:
        scorer.keep(starts_of(rows))
        return None
    paths = [row[:count] for row, count in zip(seen.branches, num_accepted, strict=True)]
    cast("Scorer", scorer).gather(*seen.trees.slots(paths))
    return paths


def _chunk(rows: Sequence[Row], proposal: Proposal, rules: TokenRules) -> np.ndarray:
    """Return the inputs of a pass, B×R: each row's last committed token and its draft."""
    width = max(proposal.num_scored)
    last = [row.tokens[-1] if row.tokens else rules.start for row in rows]
    inputs = [[t, *draft][:width] for t, draft in zip(last, proposal.tokens, strict=True)]
    return _rectangle(inputs, rules.pad)


def _agreement(draft: list[int], choices: list[int]) -> int:
    """Count the drafted tokens before the first that is not the verifier's choice."""
    count = 0
    for drafted, chosen in zip(draft, choices, strict=False):
        if drafted != chosen:
            break
        count += 1
    return count


def _rectangle(lists: list[list[int]], fill: int) -> np.ndarray:
    """Make a B×K array of B lists; shorter lists are filled up at their end."""
    width = max(map(len, lists))
    return np.array([tokens + [fill] * (width - len(tokens)) for tokens in lists], np.int64)


def _emitted(
    draft: np.ndarray, scored: Scored, num_accepted: np.ndarray
) -> tuple[list[list[int]], list[list[float]]]:
    """Return what a pass emits, with scores: the accepted drafts, then the verifier's tokens."""
    tokens, scores = scored.tokens.copy(), scored.scores.copy()  # B×R
    is_drafted = np.arange(draft.shape[1]) < num_accepted[:, None]  # B×K
    for whole, part in ((tokens, draft), (scores, scored.draft_scores)):
        assert part is not None
        np.copyto(whole[:, : draft.shape[1]], part, where=is_drafted)
    return tokens.tolist(), scores.tolist()
