"""``--decoding auto_fast``: measures which decoder is fastest on this machine, and uses it.

Batches of about the same size and source length form a bin. All candidates decode the first batches
of a bin, in changing order, and greedy search's output is returned; slow candidates drop out. The
fastest candidate decodes the bin's later batches, by the ratio of its time to greedy search's (the
mean over batches plus its standard error); greedy search decodes them if no ratio is at most 0.98.
auto_fast watches the choice: the number of output tokens gives an estimate of greedy search's time,
and greedy search takes over if the estimate is shorter.

With ``--latency-budget-ms`` the candidates are ranked by quality (fairseq's beam search, lossless
candidates, gad_pp). The first one whose 90th percentile of milliseconds per sentence is within the
budget decodes.

With ``--beam`` the plain beam search stands in the place of greedy search, and the candidates are
drafted beams of several depths (``docs/beam-drafts.md``); the output is fairseq's ``--beam``.

All candidates use the dtype of ``--engine-dtype``, or the model's own.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...batch import Numbers
from ...config import DecodingConfig, flag
from ...decoding.provenance import FAIRSEQ, NATIVE, TORCH
from ...engine.native.library import library
from ...engine.settings import Engine
from ...model_facts import device_of
from ...records import Record
from ...row import Row
from ...token_rules import TokenRules
from ..base import Context
from ..stock import StockDecoder
from .candidates import LOSSLESS
from .choose import Trial, Watch, choose
from .measuring import MeasuringDecoder, greedy_passes
from .profile import FLAG, Bin, Measured, SpeedProfile, bin_of, fingerprint, this_machine

logger = logging.getLogger(__name__)


class AutoFastDecoder(MeasuringDecoder):
    """``--decoding auto_fast``.

    Raises:
        UsageError: the profile is damaged, or a drafter does not fit the models.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context)
        self.profile = None if config.speed_profile is None else SpeedProfile(config.speed_profile)
        self._known: dict[Bin, Measured] | None = None  # the profile's bins, after the first batch
        self._choices: dict[Bin, str] = {}
        self._chosen: str | None = None
        self._measured: dict[Bin, Measured] = {}
        self._watched: dict[Bin, Watch] = {}

    # ---- one batch -----------------------------------------------------------------------------

    def _decode(
        self, source: Numbers, rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Decode with the candidate of the batch's bin; measure if the bin has none yet."""
        where = bin_of(row.source for row in rows)
        if any(row.given for row in rows):  # what they take says nothing about other batches
            if where not in self._choices:
                self._look_up(where)
            self._chosen = self._choices.get(where, self.base)
            return self._decode_by(self._chosen, source, rows, rules)
        if where not in self._choices:
            self._look_up(where)
        self._chosen = self._choices.get(where)
        if self._chosen is None:
            hypos = self._measure(where, source, rows, rules)
            if self._trials[where].is_done:
                self._settle(where, self._trials[where])
            return hypos
        begin = self._now()
        hypos = self._decode_by(self._chosen, source, rows, rules)
        if self.quality[self._chosen] == LOSSLESS and self.config.latency_budget_ms is None:
            taken = self._now() - begin
            self._keep_watch(where, self._chosen, taken, greedy_passes(rows))
        return hypos

    @property
    def takes_drafts(self) -> bool:
        """Whether its candidates are all lossless."""
        return self.lossless

    def _keep_watch(self, where: Bin, label: str, seconds: float, passes: int) -> None:
        """Return the bin to greedy search if the choice is slower.

        The time of greedy search is estimated as its passes, one per token of the longest output,
        times its seconds per pass in the measurement of the bin.
        """
        if label == self.base or label not in self._warm:
            self._warm.add(label)
            return
        measured, watch = self._measured[where], self._watched.setdefault(where, Watch())
        watch.add(seconds, passes * measured.pass_seconds)
        if not watch.greedy_is_faster:
            return
        ratio = measured.ratios[label] = watch.seconds / watch.greedy
        self._choices[where] = self.base
        logger.info(
            "auto_fast: %s: %s from now on; %s took %.2f times as long as that would have, in "
            "%d batches",
            where,
            self.base,
            label,
            ratio,
            watch.batches,
        )
        if self.profile is not None:
            self.profile.save({where: measured})

    def provenance(self) -> Record:
        """Return a record's fields of provenance for the last batch, with the chosen candidate."""
        decoded_by = super().provenance() | {"chosen": self._chosen}
        chosen = self._generator(self._chosen or self.base)
        if isinstance(chosen, StockDecoder):
            dtype = Engine().dtype_of(self.models[0])
            return decoded_by | {"engine": FAIRSEQ, "engine_dtype": dtype}
        return decoded_by

    # ---- deciding ------------------------------------------------------------------------------

    def _exclude(self, label: str) -> None:
        """Exclude a candidate from all bins, also where it is the choice."""
        super()._exclude(label)
        for where, choice in list(self._choices.items()):
            if choice == label:
                self._choices[where] = self.base

    def _look_up(self, where: Bin) -> None:
        """Take a bin's choice from the profile, if it is there."""
        if self.profile is None:
            return
        if self._known is None:
            self._known = self.profile.open(self._key())
        if where in self._known:
            self._choose(where, self._known[where], f"from {FLAG} {self.profile.path}")

    def _key(self) -> dict[str, Any]:
        """Return the key of the measurements: machine, models, drafter and flags."""
        native = self.scorer.native
        flags = {"engine_dtype": self.config.engine_dtype, "engine": NATIVE if native else TORCH}
        built = Path(library()._name).stem if native else None  # says the instruction set, too
        return {
            "machine": this_machine(device_of(self.models[0])) | {"library": built},
            "models": [fingerprint(model) for model in self.models],
            "drafter": None if self.helper is None else fingerprint(self.helper),
            "flags": flags | {"candidates": list(self.candidates)},
        }

    def _settle(self, where: Bin, trial: Trial) -> None:
        """End the measurement of a bin, and choose its decoder."""
        trial.ratios = {label: values for label, values in trial.ratios.items() if values}
        measured = trial.measured(self._excluded)
        batches = f"{measured.batches} batch{'es' if measured.batches > 1 else ''}"
        self._choose(where, measured, f"measured on {batches}, {measured.seconds:.1f} s")
        del self._trials[where]
        if self.profile is not None:
            self.profile.save({where: measured})

    def _choose(self, where: Bin, measured: Measured, source: str) -> None:
        """Choose a bin's decoder by its measured times, and log the choice."""
        ratios, ms = (
            {label: x for label, x in figures.items() if label not in self._excluded}
            for figures in (measured.ratios, measured.ms)
        )
        budget = self.config.latency_budget_ms
        choice = choose(ratios, ms, self.quality, measured.tokens, budget, self.base)
        if not choice.in_budget:
            logger.warning(
                "%s %g: no decoder is as fast with %s; the fastest, %s, takes %.2f ms per sentence "
                "(90th percentile)",
                flag("latency_budget_ms"),
                budget,
                where,
                choice.label,
                ms[choice.label],
            )
        self._choices[where] = choice.label
        self._measured[where] = measured
        logger.info("auto_fast: %s: %s (%s)", where, choice.reason, source)
