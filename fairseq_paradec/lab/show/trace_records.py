"""From a trace's records, which docs/trace.md describes, to the states of their tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import UsageError
from ...records import Record, field, known, words
from .trace_view import EOS, Cell, Pass, Sentence, State

#: Values that are no log-probability; Python reads NaN and infinity from JSON.
LARGEST = 1e9


def read_sentence(record: Record, name: str) -> Sentence:
    """Make a sentence of its record.

    Raises:
        UsageError: a field is missing or malformed, or the passes do not give the output.
    """
    source = None if record.get("source") is None else words(record, "source", name)
    output = words(record, "output", name)
    done: list[str] = []
    passes: list[Pass] = []
    entries = field(record, "trace", list, name)
    reordered = any(type(entry) is dict and "positions" in entry for entry in entries)
    if reordered:
        passes, done = _read_reordered(entries, name)
    else:
        for number, entry in enumerate(entries, start=1):
            each = read_pass(entry, number, done, f"{name}, pass {number}")
            passes.append(each)
            done += each.committed
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
        reordered,
    )


def _origins(passes: Sequence[Pass], length: int) -> list[Cell]:
    """Return the output's tokens, each as the pass that committed it has it."""
    origins: dict[int, Cell] = {}
    for each in passes:
        for i, at in enumerate(each.places):
            own = each.verifier[at] if at < len(each.verifier) else None
            cell = _accepted(each.draft[at], own) if i < each.accepted else own
            if cell is not None:
                origins[at] = replace(cell, pass_number=each.number)
    return [origins[at] for at in range(length)]


def _accepted(draft: Cell, own: Cell | None) -> Cell:
    """Return an accepted draft with what is known of the verifier's own token in its place."""
    if own is None:
        return draft
    if draft.state == State.RESCUED:
        return replace(draft, runner_up=own.token, runner_up_log_prob=own.log_prob)
    log_prob = own.log_prob if draft.log_prob is None else draft.log_prob
    second, its_log_prob = own.runner_up, own.runner_up_log_prob
    return replace(draft, log_prob=log_prob, runner_up=second, runner_up_log_prob=its_log_prob)


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
        tokens, places = words(entry, "verifier", where), field(entry, "positions", list, where)
        new = dict(zip(places, tokens)) if all(type(at) is int for at in places) else {}
        if len(new) < len(tokens) or len(places) != len(tokens) or new.keys() & written.keys():
            raise UsageError(f"{where}: got positions {places!r}; allowed: a new one per token")
        cells = {at: Cell(token, State.PREVIOUS, at) for at, token in written.items()}
        for i, (at, token) in enumerate(zip(places, tokens)):
            cells[at] = _own(entry, i, token, State.BONUS, at)
        written |= new
        placed.append((number, cells, tokens, places))
    length = len(written)
    if set(written) != set(range(length)):
        raise UsageError(f"{name} contradicts itself: its passes leave positions open")
    passes = [
        Pass(
            number,
            0,
            [],
            [cells.get(at, Cell("", State.OPEN, at)) for at in range(length)],
            tokens,
            places,
        )
        for number, cells, tokens, places in placed
    ]
    return passes, [written[at] for at in range(length)]


def read_pass(entry: Any, number: int, done: Sequence[str], where: str) -> Pass:
    """Make a pass of its entry in the trace.

    The lines end where the output ends in ``</s>``; else after the first ``</s>`` from the
    bifurcation on.

    Raises:
        UsageError: as in ``read_sentence``.
    """
    if type(entry) is not dict:
        raise UsageError(f"{where}: got {repr(entry)[:80]}; allowed: an object")
    draft, verifier = words(entry, "draft", where), words(entry, "verifier", where)
    start, accepted = field(entry, "start", int, where), field(entry, "num_accepted", int, where)
    if start != len(done):
        raise UsageError(f"{where} starts at {start}, after {len(done)} committed tokens")
    if not 0 <= accepted <= len(draft):
        raise UsageError(f"{where} accepts {accepted} of {len(draft)} drafted tokens")
    committed = _committed(draft, verifier, accepted, field(entry, "num_committed", int, where))
    if committed is None:
        raise UsageError(f"{where} commits {entry['num_committed']} tokens, which it does not have")
    if EOS in committed:
        ends = [len(committed)] * 2
    else:
        ends = [_end(line, accepted) for line in (draft, verifier)]
    before = [Cell(token, State.PREVIOUS, at) for at, token in enumerate(done)]
    predicted = _verifier_cells(entry, draft, verifier, accepted, len(committed))
    draft, verifier = draft[: ends[0]], verifier[: ends[1]]
    return Pass(
        number,
        start,
        before + _draft_cells(entry, draft, verifier, accepted, len(committed)),
        before + predicted[: ends[1]],
        committed,
        list(range(start, start + len(committed))),
        accepted,
        predicted,
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
    entry: Mapping[str, Any], draft: list[str], verifier: list[str], accepted: int, count: int
) -> list[Cell]:
    """Judge the drafted tokens; ``count`` positions of the pass were committed."""
    cells = []
    for i, token in enumerate(draft):
        if i < accepted and i >= count:
            state = State.PENDING
        elif i < accepted:
            state = State.GIVEN if entry.get("given") is True else State.ACCEPTED
            state = State.RESCUED if i < len(verifier) and verifier[i] != token else state
        else:
            state = State.BIFURCATION if i == accepted < len(verifier) else State.DISCARDED
        cells.append(
            Cell(
                token,
                state,
                entry["start"] + i,
                _log_prob(entry, "draft_log_probs", i),
                known(entry, "draft_ranks", i, int),
                confidence=_share(entry, "draft_confidences", i),
            )
        )
    return cells


def _verifier_cells(
    entry: Mapping[str, Any], draft: list[str], verifier: list[str], accepted: int, count: int
) -> list[Cell]:
    """Judge the verifier's tokens; ``count`` positions of the pass were committed."""
    cells = []
    for i, token in enumerate(verifier):
        if i < accepted:
            agreed = State.ACCEPTED if i < count else State.PENDING
            state = agreed if draft[i] == token else State.DISCARDED
        elif i == accepted and i < len(draft):
            state = State.BIFURCATION
        else:
            state = State.BONUS if i < count else State.DISCARDED
        cells.append(_own(entry, i, token, state, entry["start"] + i))
    return cells


def _end(line: list[str], first: int) -> int:
    """Return where a line ends: after its first ``</s>`` at ``first`` or later."""
    return line.index(EOS, first) + 1 if EOS in line[first:] else len(line)


def _own(entry: Mapping[str, Any], i: int, token: str, state: State, position: int) -> Cell:
    """Return the verifier's token i of a pass, which stands at ``position``."""
    other = known(entry, "runner_up", i, str)
    return Cell(
        token,
        state,
        position,
        _log_prob(entry, "log_probs", i),
        None,
        other,
        None if other is None else _log_prob(entry, "runner_up_log_probs", i),
        known(entry, "directions", i, str),
    )


def _log_prob(entry: Mapping[str, Any], key: str, i: int) -> float | None:
    """Return a log-probability, -inf for null; None if it is missing or no number."""
    values = entry.get(key)
    if isinstance(values, list) and i < len(values) and values[i] is None:
        return -math.inf
    value = known(entry, key, i, (int, float))
    return float(value) if value is not None and abs(value) < LARGEST else None


def _share(entry: Mapping[str, Any], key: str, i: int) -> float | None:
    """Return a probability; None if it is missing or none."""
    value = known(entry, key, i, (int, float))
    return float(value) if value is not None and 0 <= value <= 1 else None
