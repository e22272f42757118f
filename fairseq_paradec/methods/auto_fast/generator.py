"""``--decoding auto_fast``: find out which decoder is fastest here, and use that one.

Batches of about the same size and source length are a bin. In each bin the first batches are
decoded by every candidate, in changing order, and greedy's output is what is returned; candidates
that fall behind drop out. From then on the fastest one decodes, by its time over greedy's for the
same batch in two of three batches; and greedy search unless another is at least 2% faster there.
The choice is watched: greedy's time for an output is known from its number of tokens, and where it
would have been the shorter one after all, greedy search takes over.

With ``--latency-budget-ms`` the candidates stand in order of quality (fairseq's beam search, those
with greedy's output, gad_pp), and the first whose 90th percentile of milliseconds per sentence is
within the budget decodes.

No candidate uses another dtype than ``--engine-dtype`` says, or the model's own.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...decoding.audit import TIE_GAP
from ...decoding.engine.compiled import Compiled
from ...decoding.engine.settings import Engine
from ...decoding.provenance import FAIRSEQ
from ...decoding.row import Row
from ...decoding.token_rules import TokenRules
from ...decoding.trace import PassRecord
from ...options import DEFAULTS_OF_METHOD, DecodingConfig, flag
from ..base import MethodGenerator
from .profile import (
    FLAG,
    Bin,
    Measured,
    SpeedProfile,
    bin_of,
    fingerprint,
    this_machine,
)

logger = logging.getLogger(__name__)

GREEDY = "greedy"
# What another candidate's time over greedy's must not exceed, for greedy to be left.
WORTH_IT = 0.98
# What counts of a candidate's ratios: that which so many of the batches do not exceed. Sentences
# differ, and who is faster in every other batch only may well be slower in the next thousand.
SURE = 2 / 3
# A bin is measured on so many batches, or for about so many seconds.
BATCHES, SECONDS = 16, 10.0
# Who takes this many times as long as greedy in both of the first two batches drops out,
HOPELESS = 1.5
# and later, after so many batches, who takes this many times as long as the best one.
DROPS = ((3, 1.3), (5, 1.1))
# Below this precision rounding alone makes log-probabilities differ by about so much.
_COARSE_GAP = {torch.float16: 0.02, torch.bfloat16: 0.15}
_ENGINE = {"fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.bfloat16}
# A drafter's logits over fewer words than twice this are cheap anyway.
SHORTLIST = 2000

# Quality, best first.
BEAM, LOSSLESS, RELAXED = range(3)


@dataclass(frozen=True)
class Candidate:
    """One way to decode.

    Attributes:
        label: its flags as a user types them, but for the drafter's path.
        config: of its generator.
        quality: ``BEAM``, ``LOSSLESS`` or ``RELAXED``.
    """

    label: str
    config: DecodingConfig
    quality: int = LOSSLESS


@dataclass
class _Trial:
    """A bin while it is measured.

    Attributes:
        where: which bin.
        running: the candidates that have not dropped out.
        ratios: of each, its time over greedy's, batch by batch.
        ms: of each, its milliseconds per sentence.
        batches: how many were measured.
        greedy: seconds and passes of greedy search, all batches together.
        seconds: spent on other candidates than greedy.
    """

    where: Bin
    running: list[str]
    ratios: dict[str, list[float]] = field(default_factory=dict)
    ms: dict[str, list[float]] = field(default_factory=dict)
    batches: int = 0
    greedy: tuple[float, int] = (0.0, 0)
    seconds: float = 0.0

    def add(self, seconds: dict[str, float], sentences: int, passes: int) -> None:
        """Take the seconds that each candidate needed for one batch, and greedy's passes."""
        self.greedy = (self.greedy[0] + seconds[GREEDY], self.greedy[1] + passes)
        greedy = max(seconds[GREEDY], 1e-9)
        for label, taken in seconds.items():
            self.ratios.setdefault(label, []).append(max(taken, 1e-9) / greedy)
            self.ms.setdefault(label, []).append(1000 * max(taken, 1e-9) / sentences)
        self.batches += 1
        self.seconds += sum(seconds.values()) - seconds[GREEDY]

    def median(self, label: str) -> float:
        """Return a candidate's median ratio to greedy."""
        return statistics.median(self.ratios[label])

    def measured(self, without: set[str]) -> Measured:
        """Return the figures of all candidates but some."""
        labels = [label for label in self.ratios if label not in without]
        return Measured(
            self.batches,
            self.seconds,
            {label: _percentile(self.ratios[label], SURE) for label in labels},
            {label: _percentile(self.ms[label], 0.9) for label in labels},
            max(self.greedy[0] / max(1, self.greedy[1]), 1e-9),
        )


class AutoFastGenerator(MethodGenerator):
    """``--decoding auto_fast``.

    Args:
        models: the model, or an ensemble.
        tgt_dict: the target dictionary.
        config: how to decode.
        build: makes the generator of a candidate's config, on the same models and with the same
            limits; with ``decoding`` "beam", fairseq's own search.
        drafter: what ``--drafter-path`` named: a BlockNatModel or BlockHeads.
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
        blocks = {
            "gad": None if self.drafter is None else self.drafter.block_size,
            "blockwise": None if self.heads is None else self.heads.block_size,
        }
        path_of = {"gad": config.drafter_path if is_model else None}
        path_of["blockwise"] = None if is_model else config.drafter_path
        offered = candidates(config, blocks, path_of, len(tgt_dict), self.beam_size)
        self.candidates = {one.label: one for one in offered}
        self.profile = None if config.speed_profile is None else SpeedProfile(config.speed_profile)
        self._build = build
        self._generators: dict[str, Any] = {}
        # Scorers: a batch's cache serves one decoder at a time.
        self._shared: dict[Any, Any] = {("scorer", config.compile, None): self.scorer}
        self._warm: set[str] = set()
        self._broken: set[str] = set()  # those that did not keep their promise
        self._trials: dict[Bin, _Trial] = {}
        self._known: dict[Bin, Measured] | None = None  # of the profile, once a batch is there
        self._choices: dict[Bin, str] = {}
        self._chosen: str | None = None
        self._found: dict[Bin, Measured] = {}
        self._watched: dict[Bin, _Watch] = {}
        self._generator(GREEDY)
        for label, one in self.candidates.items():
            if one.config.decoding in ("gad", "blockwise"):
                self._generator(label)  # finds out now whether the drafter fits
                break

    @property
    def lossless(self) -> bool:
        """Yes, but with a budget."""
        return self.config.latency_budget_ms is None

    # ---- candidates ----------------------------------------------------------------------------

    def _generator(self, label: str) -> Any:
        """Return a candidate's generator, built when it is first needed."""
        if label not in self._generators:
            config = self.candidates[label].config
            built = self._build(config)
            if config.decoding == "beam":
                built = _StockBeam(built, self.model.models)
            else:
                built.record_tokens = self.record_tokens
                self._share(built, "scorer")
                if hasattr(built, "draft_scorer"):
                    self._share(built, "draft_scorer")
            self._generators[label] = built
        return self._generators[label]

    def _share(self, built: Any, name: str) -> None:
        """Let generators of one kind have one scorer, so that weights are kept once."""
        own = getattr(built, name)
        kind = (name, built.config.compile, getattr(own, "shortlist", None))
        setattr(built, name, self._shared.setdefault(kind, own))

    # ---- one batch -----------------------------------------------------------------------------

    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Decode by the candidate of the batch's bin; measure if that is not known yet."""
        where = bin_of(row.source for row in rows)
        if where not in self._choices:
            self._look_up(where, rules.device)
        self._chosen = self._choices.get(where)
        if self._chosen is None:
            return self._measure(where, net_input, rows, rules)
        begin, compiling = self._now(rules.device), Compiled.seconds
        hypos = self._decode_by(self._chosen, net_input, rows, rules)
        if self.candidates[self._chosen].quality == LOSSLESS and self.lossless:
            taken = self._now(rules.device) - begin - (Compiled.seconds - compiling)
            self._keep_watch(where, self._chosen, taken, _greedy_passes(rows))
        return hypos

    def _keep_watch(self, where: Bin, label: str, seconds: float, passes: int) -> None:
        """Go back to greedy search where the choice turns out to be the slower one.

        What greedy search would have taken is known from its passes, one a token of the longest
        output, and from what one of them took while the bin was measured.
        """
        if label == GREEDY or label not in self._warm:
            self._warm.add(label)
            return
        found, watch = self._found[where], self._watched.setdefault(where, _Watch())
        watch.batches += 1
        watch.seconds += seconds
        watch.greedy += passes * found.pass_seconds
        if watch.batches < BATCHES or watch.seconds <= watch.greedy:
            return
        ratio = found.ratios[label] = watch.seconds / watch.greedy
        self._choices[where] = GREEDY
        logger.info(
            "auto_fast: %s: greedy from now on; %s took %.2f times as long as that would have, in "
            "%d batches", where, label, ratio, watch.batches,
        )  # fmt: skip
        if self.profile is not None:
            self.profile.save({where: found})

    def _decode_by(
        self, label: str, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules
    ) -> list[list[dict[str, Any]]]:
        """Decode by one candidate."""
        generator = self._generator(label)
        prepared = generator._prepare(rows, net_input, rules)
        hypos: list[list[dict[str, Any]]] = generator._decode(net_input, rows, rules, prepared)
        return hypos

    def provenance(self) -> dict[str, Any]:
        """Return what records say of how the last batch was decoded: by whom, too."""
        decoded_by = super().provenance() | {"chosen": self._chosen}
        chosen = self._generator(self._chosen or GREEDY)
        if isinstance(chosen, _StockBeam):
            dtype = Engine().dtype_of(self.model.models[0])
            return decoded_by | {"engine": FAIRSEQ, "engine_dtype": dtype, "compiled": False}
        return decoded_by | {"compiled": chosen.scorer.compiled}

    # ---- measuring -----------------------------------------------------------------------------

    def _measure(
        self, where: Bin, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules
    ) -> list[list[dict[str, Any]]]:
        """Decode one batch by every candidate that is left; greedy's output counts."""
        trial = self._trials.get(where)
        if trial is None:
            plain = [c.label for c in self.candidates.values() if not c.config.compile]
            if self.config.compile:
                plain.append(f"{GREEDY} --compile")
            trial = self._trials[where] = _Trial(where, self._unbroken(plain))
        labels = list(dict.fromkeys((GREEDY, *trial.running)))
        self._warm_up(labels, net_input, rows, rules)
        labels = self._unbroken(labels)
        # Forwards, backwards, and then from the next one on.
        turn = trial.batches // 2 % len(labels)
        labels = labels[turn:] + labels[:turn]
        if trial.batches % 2:
            labels.reverse()
        outputs = {label: rows if label == GREEDY else _twins(rows) for label in labels}
        seconds, hypos = {}, {}
        for label in labels:
            compiling, begin = Compiled.seconds, self._now(rules.device)
            hypos[label] = self._decode_by(label, net_input, outputs[label], rules)
            seconds[label] = self._now(rules.device) - begin - (Compiled.seconds - compiling)
        trial.add(seconds, len(rows), _greedy_passes(rows))
        for label in labels:
            if self.candidates[label].quality == LOSSLESS:
                self._compare(label, outputs[label], rows)
        self._drop(trial)
        late = trial.seconds > SECONDS and trial.batches >= DROPS[0][0]
        alone = len(trial.running) <= 1 and trial.batches >= DROPS[-1][0]
        if trial.batches >= BATCHES or late or alone or trial.running == [GREEDY]:
            self._settle(trial)
        return hypos[GREEDY]

    def _warm_up(
        self,
        labels: Sequence[str],
        net_input: dict[str, Tensor],
        rows: Sequence[Row],
        rules: TokenRules,
    ) -> None:
        """Let every candidate decode once in a run before it is timed."""
        cold = [label for label in labels if label not in self._warm]
        begin = self._now(rules.device)
        for label in cold:
            try:
                self._decode_by(label, net_input, _twins(rows), rules)
            except Exception as error:  # of a drafter, say: greedy search can do without
                if label == GREEDY:
                    raise
                logger.warning("auto_fast: %s fails and is out of the run: %s", label, error)
                self._exclude(label)
        self._warm |= set(cold)
        if cold:
            seconds = self._now(rules.device) - begin
            logger.info("auto_fast: warmed up %d decoders in %.1f s", len(cold), seconds)

    def _now(self, device: torch.device) -> float:
        """Read the clock when all work on the device is done, seconds."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self.timer()

    def _compare(self, label: str, ours: Sequence[Row], greedy: Sequence[Row]) -> None:
        """Warn of outputs that are not greedy's; beyond a tie the candidate is out of the run."""
        allowed = self._tie_gap()
        for mine, other in zip(ours, greedy, strict=True):
            if mine.tokens == other.tokens:
                continue
            gap = _gap(mine, other)
            tie = gap < allowed
            logger.warning(
                "auto_fast: %s differs from greedy in a sentence (gap of log-probabilities %.2e, "
                "%s)", label, gap,
                "a tie, as rounding makes them" if tie else "NOT a tie: no longer a candidate",
            )  # fmt: skip
            if not tie:
                self._exclude(label)
                return

    def _exclude(self, label: str) -> None:
        """Take a candidate out of the run, also where it was chosen."""
        self._broken |= {label, f"{label} --compile"}
        for trial in self._trials.values():
            trial.running = self._unbroken(trial.running)
        for where, choice in list(self._choices.items()):
            if choice == label:
                self._choices[where] = GREEDY

    def _unbroken(self, labels: Sequence[str]) -> list[str]:
        """Leave out the candidates that broke their promise."""
        return [label for label in labels if label not in self._broken]

    def _tie_gap(self) -> float:
        """Return up to which difference of log-probabilities two tokens tie in this precision."""
        dtype = next(self.model.models[0].parameters()).dtype
        dtype = _ENGINE.get(self.config.engine_dtype or "", dtype)
        return _COARSE_GAP.get(dtype, TIE_GAP)

    def _drop(self, trial: _Trial) -> None:
        """Drop who falls behind; then let the best two show what compiling is to them."""
        exact = [one for one in trial.running if self.candidates[one].quality == LOSSLESS]
        best = min([1.0, *map(trial.median, exact)])
        for label in exact:
            ratios = trial.ratios[label]
            limits = [limit * best for after, limit in DROPS if len(ratios) >= after]
            behind = bool(limits) and trial.median(label) > min(limits)
            if behind or (len(ratios) > 1 and min(ratios) > HOPELESS):
                trial.running.remove(label)
        if self.config.compile and trial.batches == DROPS[0][0]:
            left = [one for one in exact if one in trial.running and GREEDY not in one.split()]
            twins = [f"{one} --compile" for one in sorted(left, key=trial.median)[:2]]
            trial.running += self._unbroken([one for one in twins if one in self.candidates])
            # They have no figures yet: until they have, nothing is decided.
            for one in twins:
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
        """Say what the measurements depend on."""
        helper = self.drafter if self.drafter is not None else self.heads
        flags = {"compile": self.config.compile, "engine_dtype": self.config.engine_dtype}
        return {
            "machine": this_machine(device),
            "models": [fingerprint(model, with_weights=True) for model in self.model.models],
            "drafter": None if helper is None else fingerprint(helper, with_weights=True),
            "flags": flags | {"candidates": list(self.candidates)},
        }

    def _settle(self, trial: _Trial) -> None:
        """End measuring a bin."""
        trial.ratios = {label: values for label, values in trial.ratios.items() if values}
        found = trial.measured(self._broken)
        batches = f"{found.batches} batch{'es' if found.batches > 1 else ''}"
        self._choose(trial.where, found, f"measured on {batches}, {found.seconds:.1f} s")
        del self._trials[trial.where]
        if self.profile is not None:
            self.profile.save({trial.where: found})

    def _choose(self, where: Bin, found: Measured, source: str) -> None:
        """Choose a bin's decoder by what was measured, and say so."""
        ratios, ms = (
            {label: x for label, x in figures.items() if label not in self._broken}
            for figures in (found.ratios, found.ms)
        )
        exact = [one for one in ratios if self.candidates[one].quality == LOSSLESS]
        others = [one for one in exact if one != GREEDY]
        rival = min(others, key=ratios.__getitem__, default=GREEDY)
        choice = rival if ratios[rival] <= WORTH_IT else GREEDY
        told = f"{choice}, {1 / ratios[choice]:.2f}x greedy"
        if choice == GREEDY and rival != GREEDY:
            told = f"greedy; the next best, {rival}, is {1 / ratios[rival]:.2f}x as fast"
        budget = self.config.latency_budget_ms
        if budget is not None:
            lists = [
                [one for one in ratios if self.candidates[one].quality == quality]
                for quality in (BEAM, LOSSLESS, RELAXED)
            ]
            lists[LOSSLESS] = [choice, *sorted(exact, key=ms.__getitem__)]
            ranked = [one for labels in lists for one in labels]
            within = [one for one in ranked if ms[one] <= budget]
            choice = within[0] if within else min(ranked, key=ms.__getitem__)
            told = f"{choice}, {ms[choice]:.2f} ms per sentence of {budget:g} allowed"
            if not within:
                logger.warning(
                    "%s %g: no decoder is as fast with %s; the fastest, %s, takes %.2f ms per "
                    "sentence (90th percentile)",
                    flag("latency_budget_ms"), budget, where, choice, ms[choice],
                )  # fmt: skip
        self._choices[where] = choice
        self._found[where] = found
        logger.info("auto_fast: %s: %s (%s)", where, told, source)


class _StockBeam:
    """fairseq's own search, called as a candidate.

    Args:
        generator: fairseq's.
        models: what it decodes.
    """

    def __init__(self, generator: Any, models: Any) -> None:
        self.generator, self.models = generator, models

    def _prepare(self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules) -> Any:
        """Make nothing."""

    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Search; the rows get the best hypothesis, and a pass for each of its tokens."""
        prefix = None
        if rules.forced_len > 0:
            prefix = torch.tensor([row.prefix for row in rows], device=rules.device)
        found: list[list[dict[str, Any]]] = self.generator.generate(
            list(self.models), {"net_input": net_input}, prefix_tokens=prefix, bos_token=rules.start
        )
        for row, hypos in zip(rows, found, strict=True):
            row.tokens = hypos[0]["tokens"].tolist()
            row.scores = hypos[0]["positional_scores"].tolist()
            row.passes = [PassRecord(i, 0, 0, 1) for i in range(len(row.tokens))]
            row.finished = True
            for hypo in hypos:
                hypo |= {"steps": len(hypo["tokens"]), "history": []}
        return found


def candidates(
    config: DecodingConfig,
    blocks: dict[str, int | None],
    drafter_paths: dict[str, str | None],
    vocabulary: int,
    beam: int,
) -> list[Candidate]:
    """List what auto_fast may choose among.

    Args:
        config: auto_fast's own.
        blocks: by drafting method, the block size of its drafter's training; None: no drafter.
        drafter_paths: by drafting method, its ``drafter_path``.
        vocabulary: the target dictionary's size.
        beam: fairseq's ``--beam``; with a latency budget, that search is one of them.
    """
    with_budget = config.latency_budget_ms is not None
    sliding: dict[str, Any] = {"jacobi_window": "sliding"}
    ways: list[tuple[int, str, dict[str, Any]]] = [(LOSSLESS, GREEDY, {})]
    if with_budget:
        ways.insert(0, (BEAM, "beam", {}))
    for more in ({"block_size": 3}, {"block_size": 5}, {"block_size": 5, "adaptive_block": True}):
        ways.append((LOSSLESS, "hgj", more | sliding))
    for decoding, size in blocks.items():
        if size is None:
            continue
        whole = {"block_size": size}
        ways.append((LOSSLESS, decoding, whole))
        if 2 <= size // 2 < size:
            ways.append((LOSSLESS, decoding, {"block_size": size // 2}))
        ways.append((LOSSLESS, decoding, whole | {"adaptive_block": True}))
        if vocabulary > 2 * SHORTLIST:
            short = {"adaptive_block": True, "drafter_shortlist": SHORTLIST}
            ways.append((LOSSLESS, decoding, whole | short))
        if decoding == "gad" and with_budget:
            for topk, margin in ((3, 1.0), (5, 3.0)):
                rule = {"accept_topk": topk, "accept_margin": margin}
                ways.append((RELAXED, "gad_pp", whole | rule))
    found = []
    for quality, decoding, flags in ways:
        words = [f"--beam {beam}"] if decoding == "beam" else []
        words += [flag(n) if value is True else f"{flag(n)} {value}" for n, value in flags.items()]
        label = " ".join((decoding, *words))
        if decoding == "beam":
            found.append(Candidate(label, DecodingConfig(decoding="beam"), quality))
            continue
        path = drafter_paths.get("gad" if decoding == "gad_pp" else decoding)
        given = replace(
            DecodingConfig(**{"decoding": decoding} | DEFAULTS_OF_METHOD.get(decoding, {})),
            drafter_path=path, engine_dtype=config.engine_dtype, **flags,
        )  # fmt: skip
        found.append(Candidate(label, given, quality))
        if config.compile and quality == LOSSLESS:
            found.append(Candidate(f"{label} --compile", replace(given, compile=True)))
    return found


@dataclass
class _Watch:
    """What a bin's decoder took since it was chosen, and greedy search would have, in seconds."""

    batches: int = 0
    seconds: float = 0.0
    greedy: float = 0.0


def _greedy_passes(rows: Sequence[Row]) -> int:
    """Return how many passes greedy search takes for outputs that are its own."""
    return max(len(row.tokens) for row in rows)


def _twins(rows: Sequence[Row]) -> list[Row]:
    """Return rows of the same sentences, nothing committed."""
    return [Row(row.index, row.source, row.limit, row.prefix) for row in rows]


def _gap(ours: Row, other: Row) -> float:
    """Return how far apart the scores are where two outputs part; inf where that is no tie.

    Two tokens of one distribution cannot both have more than half of it: where both scores say so,
    they are of different ones, and one of the outputs is wrong.
    """
    pairs = zip(ours.tokens, other.tokens, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return math.inf
    gap = abs(ours.scores[at] - other.scores[at])
    both = math.exp(ours.scores[at]) + math.exp(other.scores[at])
    return gap if both <= 1 + gap else math.inf


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
