"""Totals over the sentences of one trace, or of one file of statistics."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...errors import UsageError
from ...records import Record, count, counts
from ..analysis.acceptance_by_position import Position
from ..analysis.promises import OTHER_DTYPE, promise_of
from ..data.table import Cells, Table
from .symbols import typed
from .trace_view import Sentence

RESCUED = "rescued"

#: Verdicts of an audit on a sentence.
IDENTICAL, TIES, BEYOND = "identical", "ties", "beyond ties"
VERDICTS = (IDENTICAL, TIES, OTHER_DTYPE, BEYOND)


@dataclass
class Tally:
    """Totals over the sentences of a trace or of statistics."""

    name: str  # of the file
    has_passes: bool  # whether the file is a trace; statistics have no passes
    # number of sentences by decoding and flags
    methods: Counter[tuple[str, str]] = field(default_factory=Counter)
    # values per sentence, in the file's order, by name
    counts: dict[str, list[int]] = field(default_factory=dict)
    audits: Counter[str] = field(default_factory=Counter)  # number of audited sentences by verdict
    # number of sentences by promise; see ``promise_of``
    promises: Counter[str] = field(default_factory=Counter)
    # number of sentences that differ beyond ties, by promise
    beyond: Counter[str] = field(default_factory=Counter)
    positions: Sequence[Position] = ()  # acceptance by position in the draft; empty without drafts

    @property
    def kind(self) -> str:
        """Return a key of ``KINDS``."""
        return "trace" if self.has_passes else "statistics"

    def add(self, record: Record, sentence: Sentence | None) -> None:
        """Count one sentence.

        Args:
            record: a line of the file, its schema checked.
            sentence: read from the record; None for statistics.

        Raises:
            UsageError: it lacks a count.
        """
        for name, number in COUNTS.items():
            self.counts.setdefault(name, []).append(number(record))
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


#: The counts of a sentence.
COUNTS: dict[str, Callable[[Record], int]] = {
    "tokens": lambda record: count(record, "num_tokens"),
    "passes": lambda record: count(record, "decoder_passes"),
    "drafted": lambda record: sum(counts(record, "num_drafted")),
    "accepted": lambda record: sum(counts(record, "num_accepted")),
}


def method(record: Record) -> tuple[str, str]:
    """Return a record's decoding and its flags as typed, without those that are off.

    Raises:
        UsageError: a field is missing or malformed.
    """
    decoding, flags = record.get("decoding"), record.get("flags", {})
    if not isinstance(decoding, str) or not isinstance(flags, dict):
        raise UsageError("'decoding' or 'flags' is missing or not what it should be")
    return decoding, " ".join(typed(flags))


def decodings(one: Tally) -> list[str]:
    """Return the methods of a file, without their flags."""
    return list(dict.fromkeys(decoding for decoding, _ in one.methods))


def totals(tallies: Sequence[Tally]) -> Table:
    """Return the table of all traces and statistics, a row for each."""
    audited = any(one.audits for one in tallies)
    rows = []
    for one in tallies:
        sums = {name: sum(counts) for name, counts in one.counts.items()}
        row: Cells = {
            "file": one.name,
            "decoding": "; ".join(decodings(one)),
            "promise": "; ".join(one.promises),
            "sentences": one.methods.total(),
            "tokens": sums["tokens"],
            "passes": sums["passes"],
            "tokens_per_pass": ratio(sums["tokens"], sums["passes"]),
            "drafted": sums["drafted"],
            "accepted": sums["accepted"],
            "accepted_of_drafted": ratio(sums["accepted"], sums["drafted"]),
            RESCUED: sums.get(RESCUED),
        }
        if audited:
            row["audited"] = one.audits.total()
            row |= {v.replace(" ", "_"): one.audits[v] if one.audits else None for v in VERDICTS}
        rows.append(row)
    notes = [
        "tokens: with `</s>`. passes: of the decoder. drafted, accepted: guessed tokens, and the "
        "accepted ones, including those after the end of a sentence. rescued: accepted, though not "
        "the verifier's own choice; only traces record it.",
        "promise: exact, greedy search's output; other dtype, greedy search's output in fp32, but "
        "decoded in a lower precision; sampled, from the model's distribution; none; or not "
        "recorded, in files of version 1.",
    ]
    if audited:
        notes.append(
            "audited: compared with fairseq's own search; ties: the outputs first differ where two "
            "tokens' log-probabilities differ by less than 1e-4; other dtype: they differ, but may "
            "agree in fp32; beyond ties: they differ otherwise."
        )
    return Table.of(rows, "Traces and statistics", notes)


def ratio(part: int, whole: int) -> float | None:
    """Return a quotient with two decimals; None if there is none."""
    return round(part / whole, 2) if whole else None


def per_sentence(one: Tally) -> Table:
    """Return the table of counts per sentence of one file."""
    tokens, passes = one.counts["tokens"], one.counts["passes"]
    rows = [_spread(name, values, sum(values)) for name, values in one.counts.items()]
    rates = [t / p for t, p in zip(tokens, passes, strict=True) if p]
    if rates:
        rows.insert(2, _spread("tokens per pass", rates, ratio(sum(tokens), sum(passes))))
    return Table.of(rows, "Sentences")


def _spread(name: str, values: Sequence[float], total: float | None) -> Cells:
    """Return one row: the distribution of a count over sentences."""
    return {
        "per_sentence": name,
        "total": total,
        "mean": round(statistics.fmean(values), 2),
        "median": round(statistics.median(values), 2),
        "lowest": round(min(values), 2),
        "highest": round(max(values), 2),
    }
