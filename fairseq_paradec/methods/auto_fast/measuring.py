"""The candidates of auto_fast: decoding by one of them, and measuring one batch with all."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...batch import Numbers
from ...config import DecodingConfig
from ...decoding.ties import gap, score_gap, tie_gap
from ...model_checks import has_heads, is_block_nat
from ...model_facts import device_of, heads_of, is_heads
from ...registry import BLOCK_NAT, HEADS, METHODS, TRANSFORMER
from ...row import Row
from ...token_rules import TokenRules
from ..base import Context, Decoder
from ..build import build_decoder
from .candidates import GREEDY, LOSSLESS, Drafter, beam_candidates, candidates
from .choose import Trial
from .profile import Bin

logger = logging.getLogger(__name__)


class MeasuringDecoder(Decoder):
    """A generator with candidates, each of which can decode a batch.

    Raises:
        UsageError: a drafter does not fit the models.
    """

    #: What stands for greedy search: with ``--beam`` the plain beam search.
    base = GREEDY

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context)
        drafter = context.drafter
        self.timer: Callable[[], float] = time.perf_counter
        self.helper = drafter
        beside = drafter is not None and is_heads(drafter)
        self.drafter = None if beside else drafter
        self.heads = (
            heads_of(drafter if beside else models[0]) if beside or has_heads(models) else None
        )
        drafters = {}
        if self.drafter is not None:
            kind = BLOCK_NAT if is_block_nat([drafter]) else TRANSFORMER
            drafters[kind] = Drafter(getattr(drafter, "block_size", None) or 0, config.drafter_path)
        if self.heads is not None:
            path = config.drafter_path if beside else None
            drafters[HEADS] = Drafter(self.heads.block_size, path)
        if self.beam_size > 1 and config.latency_budget_ms is None:
            offered = beam_candidates(config, drafters, models[0])
            self.base = offered[0].label
        else:
            offered = candidates(config, drafters, len(self.words), config.beam, models[0])
        self.candidates = {candidate.label: candidate for candidate in offered}
        self.quality = {candidate.label: candidate.quality for candidate in offered}
        self._generators: dict[str, Any] = {}
        # The candidates share scorers, since one of them decodes at a time.
        self._scorers: dict[Any, Any] = {}
        self.join(self._scorers, self.record_tokens)
        self._warm: set[str] = set()
        self._excluded: set[str] = set()  # candidates that failed or were not lossless
        self._trials: dict[Bin, Trial] = {}
        self._generator(self.base)
        for label, candidate in self.candidates.items():
            method = METHODS.get(candidate.config.decoding)
            if method is not None and method.drafter is not None:
                self._generator(label)  # raises an error now if the drafter does not fit
                break

    def _generator(self, label: str) -> Any:
        """Return a candidate's generator, built at its first use."""
        if label not in self._generators:
            config = self.candidates[label].config
            lent = self.context.drafter if config.drafter_path is not None else None
            built = build_decoder(self.models, config, self.context._replace(drafter=lent))
            built.join(self._scorers, self.record_tokens)
            self._generators[label] = built
        return self._generators[label]

    def _decode_by(
        self, label: str, source: Numbers, rows: Sequence[Row], rules: TokenRules
    ) -> list[list[dict[str, Any]]]:
        """Decode with one candidate."""
        generator = self._generator(label)
        prepared = generator._prepare(rows, source, rules)
        hypos: list[list[dict[str, Any]]] = generator._decode(source, rows, rules, prepared)
        return hypos

    def _measure(
        self, where: Bin, source: Numbers, rows: Sequence[Row], rules: TokenRules
    ) -> list[list[dict[str, Any]]]:
        """Decode one batch with every running candidate; return greedy search's output."""
        for row in rows:
            row.on_finish = row.admit = None  # telling takes time, and that of one candidate only
        trial = self._trials.get(where)
        if trial is None:
            trial = self._trials[where] = Trial(
                self._not_excluded(list(self.candidates)), base=self.base
            )
        labels = list(dict.fromkeys((self.base, *trial.running)))
        self._warm_up(labels, source, rows, rules)
        labels = self._not_excluded(labels)
        labels = trial.in_turn(labels)
        outputs = {
            label: rows if label == self.base else [row.fresh() for row in rows] for label in labels
        }
        seconds, hypos = {}, {}
        for label in labels:
            begin = self._now()
            hypos[label] = self._decode_by(label, source, outputs[label], rules)
            seconds[label] = self._now() - begin
        trial.add(seconds, hypos, greedy_passes(rows))
        for label in labels:
            if self.quality[label] == LOSSLESS:
                self._compare(label, outputs[label], rows)
        self._drop(trial)
        return hypos[self.base]

    def _warm_up(
        self,
        labels: Sequence[str],
        source: Numbers,
        rows: Sequence[Row],
        rules: TokenRules,
    ) -> None:
        """Decode the batch once, untimed, with every candidate that has not decoded yet."""
        cold = [label for label in labels if label not in self._warm]
        begin = self._now()
        for label in cold:
            try:
                self._decode_by(label, source, [row.fresh() for row in rows], rules)
            except Exception as error:  # a drafter's, for example; greedy search still works
                if label == self.base:
                    raise
                logger.warning("auto_fast: %s fails and is out of the run: %s", label, error)
                self._exclude(label)
        self._warm |= set(cold)
        if cold:
            seconds = self._now() - begin
            logger.info("auto_fast: warmed up %d decoders in %.1f s", len(cold), seconds)

    def _now(self) -> float:
        """Return the clock's seconds after all work on the device is done."""
        device = device_of(self.models[0])
        if device != "cpu":
            import torch

            torch.cuda.synchronize(device)
        return self.timer()

    def _compare(self, label: str, ours: Sequence[Row], greedy: Sequence[Row]) -> None:
        """Warn of outputs that differ from greedy search's; exclude the candidate unless a tie."""
        allowed = tie_gap(self.engine.dtype_of(self.models[0]))
        for row, other in zip(ours, greedy, strict=True):
            if row.tokens == other.tokens:
                continue
            difference = gap(row, other) if self.base == GREEDY else score_gap(row, other)
            tie = difference < allowed
            logger.warning(
                "auto_fast: %s differs from %s in a sentence (gap of log-probabilities %.2e, %s)",
                label,
                self.base,
                difference,
                "a tie, as rounding makes them" if tie else "NOT a tie: no longer a candidate",
            )
            if not tie:
                self._exclude(label)
                return

    def _exclude(self, label: str) -> None:
        """Exclude a candidate from all bins."""
        self._excluded.add(label)
        for trial in self._trials.values():
            trial.running = self._not_excluded(trial.running)

    def _not_excluded(self, labels: Sequence[str]) -> list[str]:
        """Return the labels without those of excluded candidates."""
        return [label for label in labels if label not in self._excluded]

    def _drop(self, trial: Trial) -> None:
        """Drop slow candidates."""
        trial.drop([label for label in trial.running if self.quality[label] == LOSSLESS])


def greedy_passes(rows: Sequence[Row]) -> int:
    """Return the number of passes of greedy search for these outputs."""
    return max(len(row.tokens) for row in rows)
