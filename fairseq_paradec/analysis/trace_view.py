"""A sentence's trace with the state of every token, as in Xia et al. 2022 (GAD), Table 11.

D lines hold the drafter's tokens of a pass, V lines the verifier's. ``steps`` are those of Stern et
al. 2018, section 7.4. Pure functions of the records that docs/trace.md describes, for any method;
only the steps of blockwise decoding are special. ``trace_text.py`` shows the sentences in a
terminal, ``viewer.py`` on a page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .blocks import METHOD, block_sizes

EOS = "</s>"
#: Values that are no log-probability; Python reads NaN and infinity from JSON.
LARGEST = 1e9

PREVIOUS, ACCEPTED, RESCUED, BIFURCATION, BONUS, DISCARDED, PENDING, OPEN = (
    "previous", "accepted", "rescued", "bifurcation", "bonus", "discarded", "pending", "open",
)  # fmt: skip

#: The meaning of each state of a token.
MEANINGS = {
    PREVIOUS: "committed by earlier passes",
    ACCEPTED: "drafted and accepted",
    RESCUED: "accepted, though not the verifier's first choice",
    BIFURCATION: "first rejected draft (D), the verifier's token in its place (V)",
    BONUS: "committed where nothing was drafted",
    DISCARDED: "not used",
    PENDING: "agreed on, but the pass commits nothing yet",
    OPEN: "not written yet",
}

#: The origin of a token of the output, by its state in the pass that committed it.
ORIGINS = {
    ACCEPTED: "drafted and accepted",
    RESCUED: MEANINGS[RESCUED],
    BIFURCATION: "the verifier's own, in the place of a rejected draft",
    BONUS: "the model's own, where nothing was drafted",
}


@dataclass(frozen=True)
class Cell:
    """One token of a D or V line. Values that the trace lacks are None.

    Attributes:
        token: as in the dictionary.
        state: a key of ``MEANINGS``.
        position: in the output, from 0.
        log_prob: the verifier's log-probability of the token at this position; -inf where it was
            not allowed.
        rank: only of drafts: the number of tokens that the verifier scores strictly higher.
        runner_up: only of the verifier's own: its second choice; None if there was none.
        runner_up_log_prob: of ``runner_up``.
        direction: only of reordered models: as in ``TargetOrder.direction_name``.
        confidence: only of drafts: the drafter's own probability of the token.
    """

    token: str
    state: str
    position: int | None = None
    log_prob: float | None = None
    rank: int | None = None
    runner_up: str | None = None
    runner_up_log_prob: float | None = None
    direction: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Origin:
    """The origin of one token of the output. Values that the trace lacks are None.

    Attributes:
        pass_number: the pass that committed it, from 1.
        by: a key of ``ORIGINS``: its state in that pass.
        log_prob: the verifier's log-probability of the token in that pass.
        runner_up: the likeliest other token there: the verifier's second choice, or its first for
            a rescued token.
        runner_up_log_prob: of ``runner_up``.
        rank: of an accepted draft: the number of tokens that the verifier scores strictly higher.
        direction: of reordered models: as in ``Cell``.
        confidence: of an accepted draft: as in ``Cell``.
    """

    pass_number: int
    by: str
    log_prob: float | None
    runner_up: str | None
    runner_up_log_prob: float | None
    rank: int | None
    direction: str | None
    confidence: float | None = None


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
    """

    number: int
    start: int
    draft: list[Cell]
    verifier: list[Cell]
    committed: list[str]
    places: list[int]
    accepted: int = 0


@dataclass(frozen=True)
class Sentence:
    """One sentence of a trace.

    Attributes:
        name: ``sentence`` and its number, or its line's.
        decoding: the method, as the record calls it.
        source: its tokens; None if the record lacks them.
        output: its translation's tokens.
        passes: in order.
        origins: of each token of the output.
        flags: the method's own, as the record has them; empty if it has none.
    """

    name: str
    decoding: str
    source: list[str] | None
    output: list[str]
    passes: list[Pass]
    origins: list[Origin]
    flags: dict[str, Any]

    @property
    def drafted(self) -> int:
        """The number of drafted tokens, without those after the end."""
        return sum(len(one.draft) - one.start for one in self.passes)

    @property
    def rescued(self) -> int:
        """The number of accepted drafted tokens that were not the verifier's first choice."""
        return sum(origin.by == RESCUED for origin in self.origins)

    @property
    def accepted(self) -> int:
        """The number of accepted drafted tokens, including rescued ones."""
        return sum(origin.by == ACCEPTED for origin in self.origins) + self.rescued

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
    def in_blocks(self) -> bool:
        """Whether its steps are the blocks of blockwise decoding instead of passes."""
        return self.decoding == METHOD

    @property
    def steps(self) -> list[list[str]]:
        """Return the tokens of each step.

        A block is the verifier's own token of one pass and the drafts that the next pass accepts; a
        pass has the tokens that it committed, in the order in which they were written.
        """
        if not self.in_blocks:
            return [one.committed for one in self.passes]
        sizes = block_sizes([one.accepted for one in self.passes], len(self.output))
        ends = list(itertools.accumulate(sizes))
        return [self.output[end - size : end] for size, end in zip(sizes, ends)]

    @property
    def steps_summary(self) -> str:
        """Return tokens, steps and passes in one line."""
        tokens, steps = len(self.output), len(self.steps)
        return (
            f"tokens: {tokens}, steps: {steps}, tokens per step: {tokens / max(steps, 1):.2f}, "
            f"passes: {len(self.passes)}"
        )


# ---- records -> cells ------------------------------------------------------------------------


def read_sentence(record: dict[str, Any], name: str) -> Sentence:
    """Make a sentence of its record.

    Args:
        record: one line of a trace file.
        name: of the sentence, for errors too.

    Raises:
        UsageError: a field is missing or malformed, or the passes do not give the output.
    """
    source = None if record.get("source") is None else _tokens(record, "source", name)
    output = _tokens(record, "output", name)
    done: list[str] = []
    passes: list[Pass] = []
    entries = _field(record, "trace", list, name)
    if any(type(entry) is dict and "positions" in entry for entry in entries):
        passes, done = _read_reordered(entries, name)
    else:
        for number, entry in enumerate(entries, start=1):
            one = read_pass(entry, number, done, f"{name}, pass {number}")
            passes.append(one)
            done += one.committed
    if done != output:
        same = next((i for i, (a, b) in enumerate(zip(done, output)) if a != b), None)
        at = min(len(done), len(output)) if same is None else same
        raise UsageError(
            f"{name} contradicts itself: what its passes commit is not its output, from position "
            f"{at} on"
        )
    flags = record.get("flags")
    return Sentence(
        name,
        str(record.get("decoding", "")),
        source,
        output,
        passes,
        _origins(passes, len(output)),
        flags if isinstance(flags, dict) else {},
    )


def _origins(passes: Sequence[Pass], length: int) -> list[Origin]:
    """Return the origin of each of the output's tokens."""
    origins: dict[int, Origin] = {}
    for one in passes:
        for i, at in enumerate(one.places):
            own = one.verifier[at] if at < len(one.verifier) else None
            if i < one.accepted:
                origins[at] = _of_draft(one.number, one.draft[at], own)
            elif own is not None:
                origins[at] = Origin(
                    one.number, own.state, own.log_prob, own.runner_up, own.runner_up_log_prob,
                    None, own.direction,
                )  # fmt: skip
    return [origins[at] for at in range(length)]


def _of_draft(number: int, draft: Cell, own: Cell | None) -> Origin:
    """Return the origin of a draft accepted in pass ``number``; ``own``: the verifier's token."""
    other: tuple[str | None, float | None] = (None, None)
    log_prob = draft.log_prob
    if own is not None and draft.state == RESCUED:
        other = own.token, own.log_prob
    elif own is not None:
        other = own.runner_up, own.runner_up_log_prob
        log_prob = own.log_prob if log_prob is None else log_prob
    return Origin(number, draft.state, log_prob, *other, draft.rank, None, draft.confidence)


def _read_reordered(entries: list[Any], name: str) -> tuple[list[Pass], list[str]]:
    """Make the passes of a reordered model, and its tokens in natural order.

    Each V line is the whole output with open positions; there are no drafts.
    """
    written: dict[int, str] = {}
    placed = []
    for number, entry in enumerate(entries, start=1):
        where = f"{name}, pass {number}"
        if type(entry) is not dict:
            raise UsageError(f"{where}: got {repr(entry)[:80]}; allowed: an object")
        tokens, places = _tokens(entry, "verifier", where), _field(entry, "positions", list, where)
        new = dict(zip(places, tokens)) if all(type(at) is int for at in places) else {}
        if len(new) < len(tokens) or len(places) != len(tokens) or new.keys() & written.keys():
            raise UsageError(f"{where}: got positions {places!r}; allowed: a new one per token")
        cells = {at: Cell(token, PREVIOUS, at) for at, token in written.items()}
        for i, (at, token) in enumerate(zip(places, tokens)):
            cells[at] = _own(entry, i, token, BONUS, at)
        written |= new
        placed.append((number, cells, tokens, places))
    length = len(written)
    if set(written) != set(range(length)):
        raise UsageError(f"{name} contradicts itself: its passes leave positions open")
    passes = [
        Pass(
            number, 0, [], [cells.get(at, Cell("", OPEN, at)) for at in range(length)],
            tokens, places,
        )
        for number, cells, tokens, places in placed
    ]  # fmt: skip
    return passes, [written[at] for at in range(length)]


def read_pass(entry: Any, number: int, done: Sequence[str], where: str) -> Pass:
    """Make a pass of its entry in the trace.

    The lines end where the output ends in ``</s>``; else after the first ``</s>`` from the
    bifurcation on.

    Args:
        entry: one object of ``trace``.
        number: from 1.
        done: the tokens of the passes before.
        where: for errors.

    Raises:
        UsageError: as in ``read_sentence``.
    """
    if type(entry) is not dict:
        raise UsageError(f"{where}: got {repr(entry)[:80]}; allowed: an object")
    draft, verifier = _tokens(entry, "draft", where), _tokens(entry, "verifier", where)
    start, accepted = _field(entry, "start", int, where), _field(entry, "num_accepted", int, where)
    if start != len(done):
        raise UsageError(f"{where} starts at {start}, after {len(done)} committed tokens")
    if not 0 <= accepted <= len(draft):
        raise UsageError(f"{where} accepts {accepted} of {len(draft)} drafted tokens")
    committed = _committed(draft, verifier, accepted, _field(entry, "num_committed", int, where))
    if committed is None:
        raise UsageError(f"{where} commits {entry['num_committed']} tokens, which it does not have")
    if EOS in committed:
        draft, verifier = draft[: len(committed)], verifier[: len(committed)]
    else:
        draft, verifier = (_up_to_end(line, accepted) for line in (draft, verifier))
    before = [Cell(token, PREVIOUS, at) for at, token in enumerate(done)]
    return Pass(
        number,
        start,
        before + _draft_cells(entry, draft, verifier, accepted, len(committed)),
        before + _verifier_cells(entry, draft, verifier, accepted, len(committed)),
        committed,
        list(range(start, start + len(committed))),
        accepted,
    )


def _committed(
    draft: list[str], verifier: list[str], accepted: int, count: int
) -> list[str] | None:
    """Return the final tokens of a pass: accepted drafts, then the verifier's own, up to ``</s>``.

    None if there are not as many as ``count``.
    """
    if not 0 <= count <= accepted + len(verifier[accepted:]):
        return None
    tokens = (draft[:accepted] + verifier[accepted:])[:count]
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def _draft_cells(
    entry: dict[str, Any], draft: list[str], verifier: list[str], accepted: int, count: int
) -> list[Cell]:
    """Judge the drafted tokens; ``count`` positions of the pass were committed."""
    cells = []
    for i, token in enumerate(draft):
        if i < accepted and i >= count:
            state = PENDING
        elif i < accepted:
            state = RESCUED if i < len(verifier) and verifier[i] != token else ACCEPTED
        else:
            state = BIFURCATION if i == accepted < len(verifier) else DISCARDED
        cells.append(
            Cell(
                token,
                state,
                entry["start"] + i,
                _log_prob(entry, "draft_log_probs", i),
                _known(entry, "draft_ranks", i, int),
                confidence=_share(entry, "draft_confidences", i),
            )
        )
    return cells


def _verifier_cells(
    entry: dict[str, Any], draft: list[str], verifier: list[str], accepted: int, count: int
) -> list[Cell]:
    """Judge the verifier's tokens; ``count`` positions of the pass were committed."""
    cells = []
    for i, token in enumerate(verifier):
        if i < accepted:
            agreed = ACCEPTED if i < count else PENDING
            state = agreed if draft[i] == token else DISCARDED
        elif i == accepted and i < len(draft):
            state = BIFURCATION
        else:
            state = BONUS if i < count else DISCARDED
        cells.append(_own(entry, i, token, state, entry["start"] + i))
    return cells


def _up_to_end(line: list[str], first: int) -> list[str]:
    """Cut a line after its first ``</s>`` at ``first`` or later."""
    return line[: line.index(EOS, first) + 1] if EOS in line[first:] else line


def _own(entry: dict[str, Any], i: int, token: str, state: str, position: int) -> Cell:
    """Return the verifier's token i of a pass, which stands at ``position``."""
    other = _known(entry, "runner_up", i, str)
    return Cell(
        token,
        state,
        position,
        _log_prob(entry, "log_probs", i),
        None,
        other,
        None if other is None else _log_prob(entry, "runner_up_log_probs", i),
        _known(entry, "directions", i, str),
    )


def _log_prob(entry: dict[str, Any], key: str, i: int) -> float | None:
    """Return a log-probability, -inf for null; None if it is missing or no number."""
    values = entry.get(key)
    if isinstance(values, list) and i < len(values) and values[i] is None:
        return -math.inf
    value = _known(entry, key, i, (int, float))
    return float(value) if value is not None and abs(value) < LARGEST else None


def _share(entry: dict[str, Any], key: str, i: int) -> float | None:
    """Return a probability; None if it is missing or none."""
    value = _known(entry, key, i, (int, float))
    return float(value) if value is not None and 0 <= value <= 1 else None


def _known(entry: dict[str, Any], key: str, i: int, kind: Any) -> Any:
    """Return entry i of a list; None if the list is missing or short, or the kind is wrong."""
    values = entry.get(key)
    if not isinstance(values, list) or i >= len(values):
        return None
    value = values[i]
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _field(entry: dict[str, Any], key: str, kind: type, where: str) -> Any:
    """Return a required field."""
    if type(entry.get(key)) is not kind:
        raise UsageError(f"{where}: {key!r} is missing or no {kind.__name__}")
    return entry[key]


def _tokens(entry: dict[str, Any], key: str, where: str) -> list[str]:
    """Return a required list of tokens."""
    tokens: list[str] = _field(entry, key, list, where)
    if not all(isinstance(token, str) for token in tokens):
        raise UsageError(f"{where}: {key!r} holds other things than tokens")
    return tokens
