"""How often the i-th token of a draft is accepted.

A detailed view of the mean accepted tokens of xia2022 (Table 2) and the mean accepted blocks of
stern2018. Pure functions of the records that docs/trace.md describes, for any method that drafts.

A draft counts at position i (from 1) of its pass if a token was guessed there, the verifier judged
it, and the output did not end before it. Positions beyond the pass's room or after ``</s>`` do not
count. ``<pad>``, the initial token of Jacobi blocks, is no guess.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.table import Cells, Table, column

#: The records' symbols for the end of a sentence and for a position without a guess.
EOS, NO_GUESS = "</s>", "<pad>"


@dataclass
class Position:
    """One position of the drafts."""

    position: int  # from 1
    drafted: int = 0  # passes whose draft counts here
    reached: int = 0  # of these, the passes whose earlier drafted tokens were all accepted
    accepted: int = 0  # of these, the passes whose token here was accepted too
    rescued: int = 0  # accepted tokens that were not the verifier's own choice

    @property
    def rate(self) -> float:
        """The share of drafts that were accepted up to here."""
        return self.accepted / self.drafted

    @property
    def rate_if_reached(self) -> float | None:
        """The share accepted where nothing before was rejected; None without such passes.

        Cut drafts do not bias it: the product up to i estimates the acceptance of the first i
        tokens of a full draft.
        """
        return self.accepted / self.reached if self.reached else None


def count(records: Iterable[Mapping[str, Any]]) -> list[Position]:
    """Count all passes of some sentences.

    Returns:
        The positions of the longest draft; none without drafts.
    """
    positions: list[Position] = []
    for record in records:
        for entry in record["trace"]:
            _add(positions, entry["draft"], entry["verifier"], entry["num_accepted"])
    return positions


def _add(
    positions: list[Position], draft: Sequence[str], verifier: Sequence[str], good: int
) -> None:
    """Count a pass."""
    for i, (guess, answer) in enumerate(zip(draft, verifier, strict=False)):
        if guess == NO_GUESS:
            return
        if i == len(positions):
            positions.append(Position(i + 1))
        here = positions[i]
        here.drafted += 1
        here.reached += good >= i
        here.accepted += good > i
        here.rescued += good > i and guess != answer
        # The output ends with an accepted </s>, or with the verifier's in a rejected draft's place.
        if (good > i and guess == EOS) or (good == i and answer == EOS):
            return


SHARE = column("accepted_share", "% of drafted", "%")
SHARE_IF_REACHED = column("accepted_share_if_reached", "% of these", "%")


def rows(positions: Sequence[Position]) -> list[Cells]:
    """Return a table's rows, shares in %."""
    return [
        {
            "position": here.position,
            "drafted": here.drafted,
            "accepted": here.accepted,
            SHARE: round(100 * here.rate, 1),
            "all_before_accepted": here.reached,
            SHARE_IF_REACHED: None
            if here.rate_if_reached is None
            else round(100 * here.rate_if_reached, 1),
            "rescued": here.rescued,
        }
        for here in positions
    ]


NOTES = (
    "A draft counts at a position of its pass if a token was guessed there, the verifier judged "
    "it, and the output did not end before it; <pad> is no guess (</s>, the filler of "
    "--jacobi-init bos, is one). accepted: with all before it. rescued: accepted, though not the "
    "verifier's own choice.",
    "% of these: of the drafts with nothing rejected before; a cut draft is no rejection.",
)


def as_table(positions: Sequence[Position]) -> Table:
    """Return the table; it has no rows without drafts."""
    return Table.of(rows(positions), "Acceptance by position in the draft", NOTES)
