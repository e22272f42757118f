"""Totals over the sentences of one trace, or of one file of statistics."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from .acceptance_by_position import Position
from .promises import OTHER_DTYPE, promise_of
from .symbols import typed
from .trace_view import Sentence

Row = dict[str, Any]

RESCUED = "rescued"

#: What an audit may find of a sentence.
IDENTICAL, TIES, BEYOND = "identical", "ties", "beyond ties"
VERDICTS = (IDENTICAL, TIES, OTHER_DTYPE, BEYOND)


@dataclass
class Tally:
    """Totals over the sentences of a trace or of statistics.

    Attributes:
        name: of the file.
        has_passes: a trace; statistics do not tell what happened in a pass.
        methods: sentences by decoding and its flags.
        counts: per sentence, in the file's order, by name of the count.
        audits: sentences by verdict; those that were not audited are left out.
        promises: sentences by what was promised of them; see ``promise_of``.
        beyond: the same, of those that the audit found to differ beyond ties.
        positions: how often the i-th token of a draft was accepted; none where nothing is drafted.
    """

    name: str
    has_passes: bool
    methods: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: dict[str, list[int]] = field(default_factory=dict)
    audits: Counter[str] = field(default_factory=Counter)
    promises: Counter[str] = field(default_factory=Counter)
    beyond: Counter[str] = field(default_factory=Counter)
    positions: Sequence[Position] = ()

    @property
    def kind(self) -> str:
        """Return a key of ``KINDS``."""
        return "trace" if self.has_passes else "statistics"

    def add(self, record: dict[str, Any], sentence: Sentence | None) -> None:
        """Count one sentence.

        Args:
            record: a line of the file, its schema checked.
            sentence: what was read from it, of a trace.

        Raises:
            UsageError: it lacks a count.
        """
        for name, count in COUNTS.items():
            self.counts.setdefault(name, []).append(count(record))
        if sentence is not None:
            self.counts.setdefault(RESCUED, []).append(sentence.rescued)
        self.methods[method(record)] += 1
        promise = promise_of(record)
        self.promises[promise] += 1
        audit = record.get("audit")
        if isinstance(audit, dict):
            differs = not (audit.get("identical") or audit.get("tie"))
            self.beyond[promise] += differs
            verdict = OTHER_DTYPE if promise == OTHER_DTYPE else BEYOND
            if not differs:
                verdict = IDENTICAL if audit.get("identical") else TIES
            self.audits[verdict] += 1


def _number(name: str) -> Callable[[dict[str, Any]], int]:
    """Return what reads a count of a record."""

    def read(record: dict[str, Any]) -> int:
        value = record.get(name)
        if type(value) is not int or value < 0:
            raise UsageError(f"{name!r} is missing or no count")
        return value

    return read


def _sum(name: str) -> Callable[[dict[str, Any]], int]:
    """Return what adds up a record's counts per pass."""

    def read(record: dict[str, Any]) -> int:
        values = record.get(name)
        if not isinstance(values, list) or any(type(v) is not int or v < 0 for v in values):
            raise UsageError(f"{name!r} is missing or no list of counts")
        return sum(values)

    return read


#: What statistics count of a sentence.
COUNTS: dict[str, Callable[[dict[str, Any]], int]] = {
    "tokens": _number("num_tokens"),
    "passes": _number("decoder_passes"),
    "drafted": _sum("num_drafted"),
    "accepted": _sum("num_accepted"),
}


def method(record: dict[str, Any]) -> tuple[str, str]:
    """Return a record's decoding and its flags as they are typed; what is off is left out.

    Raises:
        UsageError: there is no decoding, or the flags are none.
    """
    decoding, flags = record.get("decoding"), record.get("flags", {})
    if not isinstance(decoding, str) or not isinstance(flags, dict):
        raise UsageError("'decoding' or 'flags' is missing or not what it should be")
    return decoding, " ".join(typed(flags))


def decodings(one: Tally) -> list[str]:
    """Return the methods of a file, without their flags."""
    return list(dict.fromkeys(decoding for decoding, _ in one.methods))


def totals(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Return the table of all traces and statistics, a row for each.

    Args:
        tallies: of the page.
    """
    audited = any(one.audits for one in tallies)
    rows = []
    for one in tallies:
        sums = {name: sum(counts) for name, counts in one.counts.items()}
        row: Row = {
            "file": one.name,
            "decoding": "; ".join(decodings(one)),
            "promise": "; ".join(one.promises),
            "sentences": one.methods.total(),
            "tokens": sums["tokens"],
            "passes": sums["passes"],
            "tokens per pass": ratio(sums["tokens"], sums["passes"]),
            "drafted": sums["drafted"],
            "accepted": sums["accepted"],
            "accepted of drafted": ratio(sums["accepted"], sums["drafted"]),
            RESCUED: sums.get(RESCUED, "-"),
        }
        if audited:
            row["audited"] = one.audits.total()
            row |= {v: one.audits[v] if one.audits else "-" for v in VERDICTS}
        rows.append(row)
    notes = [
        "tokens: with `</s>`. passes: of the decoder. drafted, accepted: guessed tokens, and how "
        "many of them were let pass, those after the end of a sentence too. rescued: accepted, "
        "though not the verifier's own choice, which only a trace tells.",
        "promise: exact, greedy search's output; other dtype, the same in fp32, but these passes "
        "were in a lower precision; none; or not recorded, in files of version 1.",
    ]
    if audited:
        notes.append(
            "audited: compared with fairseq's own search; ties: the outputs part where two tokens' "
            "log-probabilities differ by less than 1e-4; other dtype: they part, but in fp32 they "
            "need not; beyond ties: they part otherwise."
        )
    return {"title": "Traces and statistics", "notes": notes, "rows": rows}


def ratio(part: int, whole: int) -> float | str:
    """Return a quotient with two decimals, or ``-`` where there is none."""
    return round(part / whole, 2) if whole else "-"


def per_sentence(one: Tally) -> dict[str, Any]:
    """Return the table of what a sentence of one file takes.

    Args:
        one: the file.
    """
    tokens, passes = one.counts["tokens"], one.counts["passes"]
    rows = [_spread(name, values, sum(values)) for name, values in one.counts.items()]
    rates = [t / p for t, p in zip(tokens, passes, strict=True) if p]
    if rates:
        rows.insert(2, _spread("tokens per pass", rates, ratio(sum(tokens), sum(passes))))
    return {"title": "Sentences", "notes": [], "rows": rows}


def _spread(name: str, values: Sequence[float], total: float | str) -> Row:
    """Return one row: what sentences have of something."""
    return {
        "per sentence": name,
        "total": total,
        "mean": round(statistics.fmean(values), 2),
        "median": round(statistics.median(values), 2),
        "lowest": round(min(values), 2),
        "highest": round(max(values), 2),
    }
