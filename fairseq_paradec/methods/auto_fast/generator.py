"""``--decoding auto_fast``: measures which decoder is fastest on this machine, and uses it.

Batches of about the same size and source length form a bin. All candidates decode the first batches
of a bin, in changing order, and greedy search's output is returned; slow candidates drop out. The
fastest candidate decodes the bin's later batches, by the ratio of its time to greedy search's that
two of three batches reach; greedy search decodes them if no ratio is at most 0.98. auto_fast
watches the choice: the number of output tokens gives an estimate of greedy search's time, and
greedy search takes over if the estimate is shorter.

With ``--latency-budget-ms`` the candidates are ranked by quality (fairseq's beam search, lossless
candidates, gad_pp). The first one whose 90th percentile of milliseconds per sentence is within the
budget decodes.

All candidates use the dtype of ``--engine-dtype``, or the model's own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...decoding.engine.settings import Engine
from ...decoding.provenance import FAIRSEQ
from ...decoding.row import Row
from ...decoding.token_rules import TokenRules
from ...options import DecodingConfig, flag
from ..base import MethodGenerator
from ..registry import BLOCK_NAT, HEADS, METHODS
from .candidates import GREEDY, LOSSLESS, Drafter, candidates
from .choose import LATER_LIMITS, Trial, Watch, choose
from .profile import (
    FLAG,
    Bin,
    Measured,
    SpeedProfile,
    bin_of,
    fingerprint,
    this_machine,
)
from .stock_beam import StockBeam
from .ties import gap, tie_gap

logger = logging.getLogger(__name__)


class AutoFastGenerator(MethodGenerator):
    """``--decoding auto_fast``.

    Args:
        models: the model, or an ensemble.
        tgt_dict: the target dictionary.
        config: the options of decoding.
        build: makes the generator of a candidate's config, on the same models and with the same
            limits; with ``decoding`` "beam", fairseq's own search.
        drafter: the BlockNatModel or BlockHeads of ``--drafter-path``.
        kwargs: see MethodGenerator.

    Raises:
        UsageError: the profile is damaged, or a drafter does not fit the models.
    """

    def __init__(
        self,
        models: Sequence[Any],
        tgt_dict: Any,
        config: DecodingConfig,
        build: Callable[[DecodingConfig], Any],
        drafter: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(models, tgt_dict, config, **kwargs)
        self.timer: Callable[[], float] = time.perf_counter
        own_heads = getattr(models[0], "block_heads", None) if len(models) == 1 else None
        is_model = hasattr(drafter, "shares_encoder")
        self.helper = drafter
        self.drafter = drafter if is_model else None
        self.heads = own_heads if is_model or drafter is None else drafter
        drafters = {}
        if self.drafter is not None:
            drafters[BLOCK_NAT] = Drafter(self.drafter.block_size, config.drafter_path)
        if self.heads is not None:
            path = None if is_model else config.drafter_path
            drafters[HEADS] = Drafter(self.heads.block_size, path)
        offered = candidates(config, drafters, len(tgt_dict), self.beam_size)
        self.candidates = {one.label: one for one in offered}
        self.quality = {one.label: one.quality for one in offered}
        self.profile = None if config.speed_profile is None else SpeedProfile(config.speed_profile)
        self._build = build
        self._generators: dict[str, Any] = {}
        # The candidates share scorers, since one of them decodes at a time.
        self._scorers: dict[Any, Any] = {}
        self.join(self._scorers, self.record_tokens)
        self._warm: set[str] = set()
        self._excluded: set[str] = set()  # candidates that failed or were not lossless
        self._trials: dict[Bin, Trial] = {}
        self._known: dict[Bin, Measured] | None = None  # the profile's bins, after the first batch
        self._choices: dict[Bin, str] = {}
        self._chosen: str | None = None
        self._measured: dict[Bin, Measured] = {}
        self._watched: dict[Bin, Watch] = {}
        self._generator(GREEDY)
        for label, one in self.candidates.items():
            method = METHODS.get(one.config.decoding)
            if method is not None and method.drafter is not None:
                self._generator(label)  # raises an error now if the drafter does not fit
                break

    # ---- candidates ----------------------------------------------------------------------------

    def _generator(self, label: str) -> Any:
        """Return a candidate's generator, built at its first use."""
        if label not in self._generators:
            config = self.candidates[label].config
            built = self._build(config)
            if config.decoding == "beam":
                built = StockBeam(built, self.model.models)
            else:
                built.join(self._scorers, self.record_tokens)
            self._generators[label] = built
        return self._generators[label]

    def compile_seconds(self) -> float:
        """Return the seconds of compilation so far, with those of the candidates."""
        engines = (getattr(built, "engine", None) for built in self._generators.values())
        others = (engine.compiling.seconds for engine in engines if engine is not None)
        return super().compile_seconds() + sum(others)

    # ---- one batch -----------------------------------------------------------------------------

    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Decode with the candidate of the batch's bin; measure if the bin has none yet."""
        where = bin_of(row.source for row in rows)
        if where not in self._choices:
            self._look_up(where, rules.device)
        self._chosen = self._choices.get(where)
        if self._chosen is None:
            return self._measure(where, net_input, rows, rules)
        begin, compiling = self._now(rules.device), self.compile_seconds()
        hypos = self._decode_by(self._chosen, net_input, rows, rules)
        if self.quality[self._chosen] == LOSSLESS and self.lossless:
            taken = self._now(rules.device) - begin - (self.compile_seconds() - compiling)
            self._keep_watch(where, self._chosen, taken, _greedy_passes(rows))
        return hypos

    def _keep_watch(self, where: Bin, label: str, seconds: float, passes: int) -> None:
        """Return the bin to greedy search if the choice is slower.

        The time of greedy search is estimated as its passes, one per token of the longest output,
        times its seconds per pass in the measurement of the bin.
        """
        if label == GREEDY or label not in self._warm:
            self._warm.add(label)
            return
        measured, watch = self._measured[where], self._watched.setdefault(where, Watch())
        watch.add(seconds, passes * measured.pass_seconds)
        if not watch.greedy_is_faster:
            return
        ratio = measured.ratios[label] = watch.seconds / watch.greedy
        self._choices[where] = GREEDY
        logger.info(
            "auto_fast: %s: greedy from now on; %s took %.2f times as long as that would have, in "
            "%d batches", where, label, ratio, watch.batches,
        )  # fmt: skip
        if self.profile is not None:
            self.profile.save({where: measured})

    def _decode_by(
        self, label: str, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules
    ) -> list[list[dict[str, Any]]]:
        """Decode with one candidate."""
        generator = self._generator(label)
        prepared = generator._prepare(rows, net_input, rules)
        hypos: list[list[dict[str, Any]]] = generator._decode(net_input, rows, rules, prepared)
        return hypos

    def provenance(self) -> dict[str, Any]:
        """Return a record's fields of provenance for the last batch, with the chosen candidate."""
        decoded_by = super().provenance() | {"chosen": self._chosen}
        chosen = self._generator(self._chosen or GREEDY)
        if isinstance(chosen, StockBeam):
            dtype = Engine().dtype_of(self.model.models[0])
            return decoded_by | {"engine": FAIRSEQ, "engine_dtype": dtype, "compiled": False}
        return decoded_by | {"compiled": chosen.scorer.compiled}

    # ---- measuring -----------------------------------------------------------------------------

    def _measure(
        self, where: Bin, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules
    ) -> list[list[dict[str, Any]]]:
        """Decode one batch with every running candidate; return greedy search's output."""
        trial = self._trials.get(where)
        if trial is None:
            plain = [c.label for c in self.candidates.values() if not c.config.compile]
            if self.config.compile:
                plain.append(f"{GREEDY} --compile")
            trial = self._trials[where] = Trial(self._not_excluded(plain))
        labels = list(dict.fromkeys((GREEDY, *trial.running)))
        self._warm_up(labels, net_input, rows, rules)
        labels = self._not_excluded(labels)
        labels = trial.in_turn(labels)
        outputs = {label: rows if label == GREEDY else _twins(rows) for label in labels}
        seconds, hypos = {}, {}
        for label in labels:
            compiling, begin = self.compile_seconds(), self._now(rules.device)
            hypos[label] = self._decode_by(label, net_input, outputs[label], rules)
            seconds[label] = self._now(rules.device) - begin - (self.compile_seconds() - compiling)
        trial.add(seconds, len(rows), _greedy_passes(rows))
        for label in labels:
            if self.quality[label] == LOSSLESS:
                self._compare(label, outputs[label], rows)
        self._drop(trial)
        if trial.is_done:
            self._settle(where, trial)
        return hypos[GREEDY]

    def _warm_up(
        self,
        labels: Sequence[str],
        net_input: dict[str, Tensor],
        rows: Sequence[Row],
        rules: TokenRules,
    ) -> None:
        """Decode the batch once, untimed, with every candidate that has not decoded yet."""
        cold = [label for label in labels if label not in self._warm]
        begin = self._now(rules.device)
        for label in cold:
            try:
                self._decode_by(label, net_input, _twins(rows), rules)
            except Exception as error:  # a drafter's, for example; greedy search still works
                if label == GREEDY:
                    raise
                logger.warning("auto_fast: %s fails and is out of the run: %s", label, error)
                self._exclude(label)
        self._warm |= set(cold)
        if cold:
            seconds = self._now(rules.device) - begin
            logger.info("auto_fast: warmed up %d decoders in %.1f s", len(cold), seconds)

    def _now(self, device: torch.device) -> float:
        """Return the clock's seconds after all work on the device is done."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self.timer()

    def _compare(self, label: str, ours: Sequence[Row], greedy: Sequence[Row]) -> None:
        """Warn of outputs that differ from greedy search's; exclude the candidate unless a tie."""
        dtype = next(self.model.models[0].parameters()).dtype
        allowed = tie_gap(dtype, self.config.engine_dtype)
        for row, other in zip(ours, greedy, strict=True):
            if row.tokens == other.tokens:
                continue
            difference = gap(row, other)
            tie = difference < allowed
            logger.warning(
                "auto_fast: %s differs from greedy in a sentence (gap of log-probabilities %.2e, "
                "%s)", label, difference,
                "a tie, as rounding makes them" if tie else "NOT a tie: no longer a candidate",
            )  # fmt: skip
            if not tie:
                self._exclude(label)
                return

    def _exclude(self, label: str) -> None:
        """Exclude a candidate from all bins, also where it is the choice."""
        self._excluded |= {label, f"{label} --compile"}
        for trial in self._trials.values():
            trial.running = self._not_excluded(trial.running)
        for where, choice in list(self._choices.items()):
            if choice == label:
                self._choices[where] = GREEDY

    def _not_excluded(self, labels: Sequence[str]) -> list[str]:
        """Return the labels without those of excluded candidates."""
        return [label for label in labels if label not in self._excluded]

    def _drop(self, trial: Trial) -> None:
        """Drop slow candidates; then add the compiled variants of the best two."""
        exact = [one for one in trial.running if self.quality[one] == LOSSLESS]
        trial.drop(exact)
        if self.config.compile and trial.batches == LATER_LIMITS[0][0]:
            left = [one for one in exact if one in trial.running and GREEDY not in one.split()]
            compiled = [f"{one} --compile" for one in sorted(left, key=trial.median)[:2]]
            trial.running += self._not_excluded([one for one in compiled if one in self.candidates])
            # They have no times yet; the bin is settled after they have.
            for one in compiled:
                trial.ratios.setdefault(one, [])

    # ---- deciding ------------------------------------------------------------------------------

    def _look_up(self, where: Bin, device: torch.device) -> None:
        """Take a bin's choice from the profile, if it is there."""
        if self.profile is None:
            return
        if self._known is None:
            self._known = self.profile.open(self._key(device))
        if where in self._known:
            self._choose(where, self._known[where], f"from {FLAG} {self.profile.path}")

    def _key(self, device: torch.device) -> dict[str, Any]:
        """Return the key of the measurements: machine, models, drafter and flags."""
        helper = self.drafter if self.drafter is not None else self.heads
        names = ("compile", "engine", "engine_dtype")
        flags: dict[str, Any] = {name: getattr(self.config, name) for name in names}
        return {
            "machine": this_machine(device),
            "models": [fingerprint(model, with_weights=True) for model in self.model.models],
            "drafter": None if helper is None else fingerprint(helper, with_weights=True),
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
        choice = choose(ratios, ms, self.quality, budget)
        if not choice.in_budget:
            logger.warning(
                "%s %g: no decoder is as fast with %s; the fastest, %s, takes %.2f ms per sentence "
                "(90th percentile)",
                flag("latency_budget_ms"), budget, where, choice.label, ms[choice.label],
            )  # fmt: skip
        self._choices[where] = choice.label
        self._measured[where] = measured
        logger.info("auto_fast: %s: %s (%s)", where, choice.reason, source)


def _greedy_passes(rows: Sequence[Row]) -> int:
    """Return the number of passes of greedy search for these outputs."""
    return max(len(row.tokens) for row in rows)


def _twins(rows: Sequence[Row]) -> list[Row]:
    """Return rows of the same sentences without committed tokens."""
    return [Row(row.index, row.source, row.limit, row.prefix) for row in rows]
