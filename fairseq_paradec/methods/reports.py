"""The reports of a generator: ``--stats-file``, ``--trace-file`` and the closing lines."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..batch import Batch
from ..config import DecodingConfig
from ..output import FAILED, complain, is_closed
from ..records import Record, open_report, write
from ..registry import METHODS
from ..row import Row

if TYPE_CHECKING:  # it imports torch
    from ..decoding.audit import Audit

logger = logging.getLogger(__name__)

#: Tokens a pass; with fewer a drafting method is slower than greedy search.
LEAST = 1.1


@dataclass
class DecodingStats:
    """Totals over the sentences decoded so far."""

    sentences: int = 0  # the number of sentences
    tokens: int = 0  # emitted tokens, with ``</s>`` and forced prefixes
    # decoder passes, summed over sentences (a pass over a batch counts once for each of its rows)
    passes: int = 0
    seconds: float = 0.0  # wall time of decoding, with the encoder, without audits and oracles

    def add(self, tokens: int, passes: int) -> None:
        """Count one sentence."""
        self.sentences += 1
        self.tokens += tokens
        self.passes += passes

    def closing_line(self, decoding: str) -> str:
        """Return the line that is printed after the last sentence."""
        return (
            f"{decoding}: {self.sentences} sentences, {self.tokens} tokens, {self.passes} passes, "
            f"{self.tokens / max(self.passes, 1):.2f} tokens per pass, {self.seconds:.2f} seconds"
        )


class Reports:
    """The reports of one generator.

    Args:
        config: the options of decoding, with the paths of the files.
        tgt_dict: the target dictionary.
        src_dict: the source dictionary, for the source's text; None: records have no source.
        audit: the Audit of ``--audit``, for its closing line.
        samples: whether outputs are sampled, for the closing line.
    """

    def __init__(
        self,
        config: DecodingConfig,
        tgt_dict: Any,
        src_dict: Any,
        audit: "Audit | None",
        samples: bool = False,
    ) -> None:
        self.config = config
        self.tgt_dict = tgt_dict
        self.src_dict = src_dict
        self.audit = audit
        self.samples = samples
        self.stats = DecodingStats()
        self._drafted = DecodingStats()  # of sentences with drafts
        self._files: dict[str, Any] = {}  # None: dropped

    def add(
        self,
        batch: Batch,
        rows: Sequence[Row],
        hypos: list[list[dict[str, Any]]],
        seconds: float,
        verdicts: Sequence[dict[str, Any] | None],
        provenance: Callable[[], Record],
    ) -> None:
        """Count a batch and write its records.

        Raises:
            UsageError: a file cannot be opened.
        """
        self.stats.seconds += seconds
        self.count(rows)
        if any(verdict and not (verdict["identical"] or verdict["tie"]) for verdict in verdicts):
            FAILED.add("--audit")
        self._open()
        if not any(self._files.values()):
            return
        decoded_by = provenance()
        for row, hypo, verdict, number in zip(rows, hypos, verdicts, batch.numbers, strict=True):
            record = self._record(row, hypo[0], verdict) | decoded_by
            if row.given:
                record["given"] = [p.given for p in row.passes]
            record |= {"id": number, "batch_size": len(rows), "batch_seconds": seconds}
            if self._files.get("stats"):
                self._write("stats", record)
            if self._files.get("trace"):
                trace = [p.as_json(self.tgt_dict.__getitem__) for p in row.passes]
                self._write("trace", record | {"trace": trace})

    def count(self, rows: Sequence[Row]) -> None:
        """Count sentences."""
        for row in rows:
            self.stats.add(len(row.tokens), len(row.passes))
            if any(record.num_drafted for record in row.passes):
                self._drafted.add(len(row.tokens), len(row.passes))

    def close(self) -> None:
        """Close the files, and log the closing lines, where the log is open."""
        for file in filter(None, self._files.values()):
            file.close()
        if self.stats.sentences > 0 and not is_closed(logger):
            self._say()

    def _say(self) -> None:
        """Log the closing lines."""
        line = self.stats.closing_line(self.config.decoding)
        if self.config.jacobi_length == "oracle":
            line += " (oracle lengths, found outside the timer)"
        if self.samples:
            line += " (sampled from the distribution of --path's model; not greedy's output)"
        logger.info(line)
        drafts = "block_size" in METHODS[self.config.decoding].reads
        if drafts and self._drafted.tokens < LEAST * self._drafted.passes:
            beam = METHODS[self.config.decoding].reads_beam(self.config)
            logger.warning(
                "%s: next to no drafts are accepted; --decoding %s would be faster",
                self.config.decoding,
                "multiword_beam" if beam else "greedy",
            )
        if self.audit is not None:
            self._conclude(self.audit)

    @staticmethod
    def _conclude(audit: "Audit") -> None:
        """Tell the audit's result, also where the log has errors alone (``LOGLEVEL=ERROR``)."""
        if audit.beyond > 0:
            logger.error(audit.closing_line())
        elif logger.getEffectiveLevel() <= logging.INFO:
            logger.info(audit.closing_line())
        else:
            complain(audit.closing_line())

    def _open(self) -> None:
        """Open the files at the first batch, so a generator that decodes nothing writes none."""
        paths = {"stats": self.config.stats_file, "trace": self.config.trace_file}
        for kind, path in paths.items():
            if path is not None and kind not in self._files:
                self._files[kind] = open_report(f"--{kind}-file", path)

    def _write(self, kind: str, record: Record) -> None:
        """Write a record; if that is impossible, drop the report: the outputs are worth more."""
        try:
            write(self._files[kind], record)
        except OSError as error:
            file, self._files[kind] = self._files[kind], None
            file.close()
            FAILED.add(f"--{kind}-file")
            logger.error(
                "--%s-file: %s cannot be written any more (%s): the report ends here, the "
                "translation goes on",
                kind,
                file.name,
                error.strerror,
            )

    def _record(self, row: Row, hypo: dict[str, Any], verdict: dict[str, Any] | None) -> Record:
        """Return one sentence's record, as docs/trace.md describes it."""
        source = None if self.src_dict is None else [self.src_dict[t] for t in row.source]
        return {
            "decoding": self.config.decoding,
            "flags": METHODS[self.config.decoding].flags(self.config),
            "source": source,
            "output": [self.tgt_dict[t] for t in row.tokens],
            "score": float(hypo["score"]),
            "positional_scores": row.scores,
            "num_tokens": len(row.tokens),
            "decoder_passes": len(row.passes),
            "mean_accepted": len(row.tokens) / len(row.passes),
            "num_drafted": [p.num_drafted for p in row.passes],
            "num_accepted": [p.num_accepted for p in row.passes],
            "audit": verdict,
        }
