"""A sentence's trace with the state of every token, as in Xia et al. 2022 (GAD), Table 11.

D lines hold the drafter's tokens of a pass, V lines the verifier's. ``steps`` are those of Stern et
al. 2018, section 7.4; only those of blockwise decoding are special. ``trace_records.py`` reads the
sentences, ``trace_text.py`` shows them in a terminal, ``viewer.py`` on a page.
"""

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..analysis.blocks import METHOD, block_sizes

EOS = "</s>"


class State(enum.StrEnum):
    """What became of a token in a pass."""

    PREVIOUS = enum.auto()
    ACCEPTED = enum.auto()
    RESCUED = enum.auto()
    BIFURCATION = enum.auto()
    BONUS = enum.auto()
    DISCARDED = enum.auto()
    PENDING = enum.auto()
    OPEN = enum.auto()
    GIVEN = enum.auto()


#: The meaning of each state of a token.
MEANINGS: dict[str, str] = {
    State.PREVIOUS: "committed by earlier passes",
    State.ACCEPTED: "drafted and accepted",
    State.GIVEN: "accepted from an earlier translation",
    State.RESCUED: "accepted, though not the verifier's first choice",
    State.BIFURCATION: "first rejected draft (D), the verifier's token in its place (V)",
    State.BONUS: "committed where nothing was drafted",
    State.DISCARDED: "not used",
    State.PENDING: "agreed on, but the pass commits nothing yet",
    State.OPEN: "not written yet",
}

#: The origin of a token of the output, by its state in the pass that committed it.
ORIGINS: dict[str, str] = {
    State.ACCEPTED: "drafted and accepted",
    State.GIVEN: MEANINGS[State.GIVEN],
    State.RESCUED: MEANINGS[State.RESCUED],
    State.BIFURCATION: "the verifier's own, in the place of a rejected draft",
    State.BONUS: "the model's own, where nothing was drafted",
}


@dataclass(frozen=True)
class Cell:
    """One token of a D or V line, or of the output. Values that the trace lacks are None."""

    token: str  # as in the dictionary
    state: State
    position: int | None = None  # in the output, from 0
    # the verifier's log-probability of the token at this position; -inf where it was not allowed
    log_prob: float | None = None
    # only of drafts: the number of tokens that the verifier scores strictly higher
    rank: int | None = None
    # only of the verifier's own: its second choice; None if there was none
    runner_up: str | None = None
    runner_up_log_prob: float | None = None  # of ``runner_up``
    direction: str | None = None  # only of reordered models: as in ``TargetOrder.direction_name``
    confidence: float | None = None  # only of drafts: the drafter's own probability of the token
    # only of a token of the output: the pass that committed it, from 1; 0: of others. Its ``state``
    # is the one in that pass, ``runner_up`` the likeliest other token there: the verifier's second
    # choice, or its first for a rescued token
    pass_number: int = 0


@dataclass(frozen=True)
class Pass:
    """One decoder pass.

    Attributes:
        number: from 1.
        start: the number of tokens that earlier passes committed, the first cells of each line.
        draft: the D line, from position 0 on.
        verifier: the V line, from position 0 on; the two may differ in length.
        committed: the tokens that the pass added to the output, as they were written.
        places: their positions in the output.
        accepted: the number of accepted drafted tokens.
        predicted: all that the verifier predicted, from ``start`` on, also behind the end.
    """

    number: int
    start: int
    draft: list[Cell]
    verifier: list[Cell]
    committed: list[str]
    places: list[int]
    accepted: int = 0
    predicted: Sequence[Cell] = ()


class Step(NamedTuple):
    """Tokens that are written together."""

    number: int  # of the pass that completes it
    places: Sequence[int]  # positions of its tokens, in the order in which they were written


@dataclass(frozen=True)
class Sentence:
    """One sentence of a trace."""

    name: str  # ``sentence`` and its number, or its line's
    decoding: str  # the method, as the record calls it
    source: list[str] | None  # its tokens; None if the record lacks them
    output: list[str]  # its translation's tokens
    passes: list[Pass]  # in order
    origins: list[Cell]  # each token of the output, as the pass that committed it has it
    flags: dict[str, Any]  # the method's own, as the record has them; empty if it has none
    reordered: bool = False  # whether the passes write at any position

    @property
    def drafted(self) -> int:
        """The number of drafted tokens, without those after the end."""
        return sum(len(each.draft) - each.start for each in self.passes)

    @property
    def rescued(self) -> int:
        """The number of accepted drafted tokens that were not the verifier's first choice."""
        return sum(origin.state == State.RESCUED for origin in self.origins)

    @property
    def accepted(self) -> int:
        """The number of accepted drafted tokens, including rescued and given ones."""
        states = (State.ACCEPTED, State.GIVEN, State.RESCUED)
        return sum(origin.state in states for origin in self.origins)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass; a forced prefix and ``</s>`` are tokens too, as in the statistics."""
        return len(self.output) / max(len(self.passes), 1)

    @property
    def summary(self) -> str:
        """Return tokens, passes and accepted drafts in one line."""
        return (
            f"tokens: {len(self.output)}, passes: {len(self.passes)}, "
            f"tokens per pass: {self.tokens_per_pass:.2f}, "
            f"drafted tokens accepted: {self.accepted} (rescued: {self.rescued})"
        )

    @property
    def steps(self) -> list[Step]:
        """Return the steps: those of blockwise decoding are blocks, all others are passes.

        A block is the verifier's own token of one pass and the drafts that the next pass accepts.
        """
        if self.decoding != METHOD:
            return [Step(each.number, each.places) for each in self.passes]
        sizes = block_sizes([each.accepted for each in self.passes], len(self.output))
        ends = itertools.accumulate(sizes)
        return [
            Step(self.origins[end - 1].pass_number, range(end - size, end))
            for size, end in zip(sizes, ends)
        ]

    @property
    def written_in(self) -> list[int]:
        """Return the step that wrote each token of the output, from 1."""
        steps = enumerate(self.steps, start=1)
        numbers = {place: number for number, step in steps for place in step.places}
        return [numbers[place] for place in range(len(self.output))]

    @property
    def steps_summary(self) -> str:
        """Return tokens, steps and passes in one line."""
        tokens, steps = len(self.output), len(self.steps)
        return (
            f"tokens: {tokens}, steps: {steps}, tokens per step: {tokens / max(steps, 1):.2f}, "
            f"passes: {len(self.passes)}"
        )


def source_of(sentences: Sequence[Sentence]) -> list[str] | None:
    """Return the source's tokens, equal for all methods; None if no record has them."""
    return next((each.source for each in sentences if each.source is not None), None)
