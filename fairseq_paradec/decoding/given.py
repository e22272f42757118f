"""Drafts that are given: an earlier translation of the same or nearly the same text.

It is drafted as far as it holds. Behind a difference it is taken up again where the last two tokens
of the output occur in it, at the place nearest to where the output would be if each difference had
replaced a token. Where it gives nothing, another drafter drafts.

Source: prompt lookup decoding (Saxena 2023) with the earlier output in the place of the prompt;
the acceptance rule and the loop are those of every drafter, so the output is greedy search's.
"""

from collections.abc import Sequence

from ..engine.native.drafts import NativeDrafting
from ..row import Row
from .loop import Drafter, Proposal, Verdict, native_form, num_to_score


def taken_up(given: Sequence[int], tokens: Sequence[int], place: int) -> int | None:
    """Return where an earlier output goes on behind an output's tokens; None: nowhere.

    Args:
        given: the earlier output, with ``</s>``.
        tokens: the output's tokens so far.
        place: where in ``given`` the output is, if differences only replaced tokens; of two places
            at the same distance the later one counts.
    """
    if not tokens:
        return 0
    last = list(tokens[-2:])
    places = [at for at in range(2, len(given)) if list(given[at - 2 : at]) == last]
    return min(places, key=lambda at: (abs(at - place), -at), default=None)


class GivenDrafter(Drafter):
    """Drafts from each row's earlier output, and by another drafter where that gives nothing.

    Args:
        behind: the other drafter. It is asked in passes in which a row needs it; its drafts for the
            other rows are dropped.
        rows: the batch, whose ``given`` are the earlier outputs; empty: there is none.
        eos: ``</s>``, with which an earlier output ends.
    """

    def __init__(self, behind: Drafter, rows: Sequence[Row], eos: int) -> None:
        self.behind = behind
        self.eos = eos
        self.given = [self._whole(row.given) for row in rows]
        self.places = [0] * len(rows)
        self.own: list[bool] = []  # of the last proposal: whether a row's draft is ``behind``'s

    def _whole(self, given: list[int]) -> list[int]:
        """End an earlier output with ``</s>``."""
        end = given.index(self.eos) if self.eos in given else len(given)
        return [*given[:end], self.eos] if given else []

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft the rest of each earlier output, up to the row's limit."""
        drafts = []
        for b, (row, given) in enumerate(zip(rows, self.given, strict=True)):
            at = taken_up(given, row.tokens, self.places[b]) if given else None
            if at is not None:
                self.places[b] = at
            # At a row's last position only </s> is allowed, so it is not drafted.
            drafts.append([] if at is None else given[at : at + row.room - 1])
        self.own = [not draft for draft in drafts]
        known = list(map(bool, drafts))
        if not any(self.own):
            return Proposal(drafts, num_to_score(drafts, self.eos), given=known)
        return self._joined(self.behind.propose(rows), drafts)._replace(given=known)

    def _joined(self, proposal: Proposal, drafts: list[list[int]]) -> Proposal:
        """Put drafts in the place of another drafter's; an empty one leaves that as it is."""
        tokens, num_scored, confidences, parents = proposal[:4]
        pick = [d or t for d, t in zip(drafts, tokens, strict=True)]
        scored = [
            known if draft else own
            for draft, known, own in zip(
                drafts, num_to_score(drafts, self.eos), num_scored, strict=True
            )
        ]
        if confidences is not None:  # a tree's path needs them: nothing is surer than one path
            confidences = [
                [1.0] * len(d) if d else c for d, c in zip(drafts, confidences, strict=True)
            ]
        if parents is not None:
            parents = [
                list(range(-1, len(d) - 1)) if d else p
                for d, p in zip(drafts, parents, strict=True)
            ]
            scored = [1 + len(row) for row in pick]
        return Proposal(pick, scored, confidences, parents=parents)

    def natively(self) -> NativeDrafting | None:
        """Describe the other drafter: the library follows the rows' earlier outputs itself."""
        return native_form(self.behind)

    def observe(self, verdict: Verdict) -> None:
        """Move on, and say to the other drafter which drafts were its own."""
        counts = verdict.num_committed
        self.places = [at + n for at, n in zip(self.places, counts, strict=True)]
        self.behind.observe(verdict._replace(own=self.own))

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the earlier outputs of these rows."""
        self.given = [self.given[b] for b in stay]
        self.places = [self.places[b] for b in stay]
        self.behind.drop(stay)
