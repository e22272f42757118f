"""Totals over the sentences of one trace, or of one file of statistics."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...errors import UsageError
from ...records import Record, count, counts
from ..analysis.acceptance_by_position import Position, as_table
from ..analysis.promises import OTHER_DTYPE, promise_of
from ..data.table import Cells, Table
from .symbols import typed
from .trace_view import Sentence

RESCUED = "rescued"

#: Verdicts of an audit on a sentence.
IDENTICAL, TIES, BEYOND = "identical", "ties", "beyond ties"
VERDICTS = (IDENTICAL, TIES, OTHER_DTYPE, BEYOND)

#: The counts of a sentence.
COUNTS: dict[str, Callable[[Record], int]] = {
    "tokens": lambda record: count(record, "num_tokens"),
    "passes": lambda record: count(record, "decoder_passes"),
    "drafted": lambda record: sum(counts(record, "num_drafted")),
    "accepted": lambda record: sum(counts(record, "num_accepted")),
}


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
        """Return a key of ``report.KINDS``."""
        return "trace" if self.has_passes else "statistics"

    @property
    def decodings(self) -> list[str]:
        """The methods, without their flags."""
        return list(dict.fromkeys(decoding for decoding, _ in self.methods))

    @property
    def notes(self) -> list[str]:
        """The methods with their flags and numbers of sentences."""
        return [
            f"`{' '.join(filter(None, how))}`: sentences: {n}" for how, n in self.methods.items()
        ]

    @property
    def tables(self) -> list[Table]:
        """Counts per sentence, and acceptance by position."""
        return [self._per_sentence(), *([as_table(self.positions)] if self.positions else [])]

    def add(self, record: Record, sentence: Sentence | None) -> None:
        """Count one sentence.

        Args:
            record: a line of the file, its schema checked.
            sentence: read from the record; None for statistics.

        Raises:
            UsageError: a field is missing or malformed.
        """
        for name, number in COUNTS.items():
            self.counts.setdefault(name, []).append(number(record))
        if sentence is not None:
            self.counts.setdefault(RESCUED, []).append(sentence.rescued)
        decoding, flags = record.get("decoding"), record.get("flags", {})
        if not isinstance(decoding, str) or not isinstance(flags, dict):
            raise UsageError("'decoding' or 'flags' is missing or not what it should be")
        self.methods[decoding, " ".join(typed(flags))] += 1
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

    def row(self, audited: bool) -> Cells:
        """Return the file's row of ``totals``."""
        sums = {name: sum(numbers) for name, numbers in self.counts.items()}
        row: Cells = {
            "file": self.name,
            "decoding": "; ".join(self.decodings),
            "promise": "; ".join(self.promises),
            "sentences": self.methods.total(),
            "tokens": sums["tokens"],
            "passes": sums["passes"],
            "tokens_per_pass": ratio(sums["tokens"], sums["passes"]),
            "drafted": sums["drafted"],
            "accepted": sums["accepted"],
            "accepted_of_drafted": ratio(sums["accepted"], sums["drafted"]),
            RESCUED: sums.get(RESCUED),
        }
        if audited:
            row["audited"] = self.audits.total()
            row |= {v.replace(" ", "_"): self.audits[v] if self.audits else None for v in VERDICTS}
        return row

    def _per_sentence(self) -> Table:
        """Return the table of counts per sentence."""
        tokens, passes = self.counts["tokens"], self.counts["passes"]
        rows = [_spread(name, values, sum(values)) for name, values in self.counts.items()]
        rates = [t / p for t, p in zip(tokens, passes, strict=True) if p]
        if rates:
            rows.insert(2, _spread("tokens per pass", rates, ratio(sum(tokens), sum(passes))))
        return Table.of(rows, "Sentences")


def totals(tallies: Sequence[Tally]) -> Table:
    """Return the table of all traces and statistics, a row for each."""
    audited = any(tally.audits for tally in tallies)
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
    return Table.of([tally.row(audited) for tally in tallies], "Traces and statistics", notes)


def ratio(part: int, whole: int) -> float | None:
    """Return a quotient with two decimals; None if there is none."""
    return round(part / whole, 2) if whole else None


def _spread(name: str, values: Sequence[float], total: float | None) -> Cells:
    """Return one row: the distribution of a count over sentences."""
    spread = {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
    }
    row: Cells = {"per_sentence": name, "total": total}
    return row | {key: round(value, 2) for key, value in spread.items()}
