"""The registry: one entry per ``--decoding``.

A new method is a file in ``methods`` and an entry here; or a package of its own, whose entry point
in the group ``fairseq_paradec.methods`` names a Method (docs/adding-a-method.md). fairseq's
commands, ``--help``, the checks of flags and models, audits, reports, the benchmark and
docs/decoders.md read the entry. Two parts are optional: what auto_fast tries of it
(``variants.py``), and with which settings measuring commands run it (``lab/measure/traits.py``).
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any, NamedTuple

from . import variants
from .config import ALL, METHOD, OPTIONS, RULE, DecodingConfig
from .errors import option_error
from .model_checks import (
    ANY_TRANSFORMER,
    BLOCK_NAT,
    GLOBAL_TRANSFORMER,
    ONE_BLOCK_NAT,
    TRANSFORMER,
    WITH_HEADS,
    WRITES_PAIRS,
    WRITES_STEPS,
    Verifier,
)
from .target_order import order_of

logger = logging.getLogger(__name__)

#: The group of entry points that name methods of other packages.
GROUP = "fairseq_paradec.methods"

#: More kinds of checkpoints for ``--drafter-path``, besides BLOCK_NAT and TRANSFORMER.
HEADS, ANY = "heads", "any"

#: Decoded by fairseq's own search; with ``auto``, only for a model without its own method.
STOCK_DECODINGS = {
    "auto": "the checkpoint's own method; for a plain Transformer fairseq's own beam search",
    "beam": "fairseq's own search, untouched; of a model folder the same by native passes",
}


class Exact(NamedTuple):
    """When a method guarantees greedy search's output in fp32: in words, and as a function."""

    words: str
    holds: Callable[[DecodingConfig], bool]


ALWAYS, NEVER = Exact("yes", lambda config: True), Exact("no", lambda config: False)


class Helper(NamedTuple):
    """The checkpoint of ``--drafter-path``."""

    kind: str  # ``BLOCK_NAT``, ``TRANSFORMER``, ``HEADS`` or ``ANY``
    # what it has to be, in words, if the method needs one; empty: it can do without
    wanted: str = ""


@dataclass(frozen=True)
class Method:
    """One ``--decoding``.

    Attributes:
        name: the value of ``--decoding``.
        summary: one line for ``--help`` and the docs.
        decoder: its class, imported on demand: ``package.module.Class``; with a dot at the
            beginning, of a module of ``methods``.
        beams: the class that has fairseq's beam search's output, of a method that is greedy unless
            ``beam`` is above 1; empty: there is none.
        reads: the options that it reads, ``beam`` and ``sampling`` of fairseq's search among them;
            any other option of methods raises an error that names it.
        defaults: its defaults that differ from the option table's.
        exact: when its output is greedy search's.
        verifier: which models of ``--path`` it decodes.
        helper: the checkpoint of ``--drafter-path``; None: no drafter.
        candidates: its settings in ``auto_fast``; None: none.
        audited: whether its output can be compared with greedy search's.
        by_token: whether its drafts are made token by token, so that a pass costs more, the more it
            drafts.
        drafts: the dtype of native drafts, if it reads ``drafter_dtype`` and none is given.
            Verification makes up for rounding, so a draft needs no precision.
    """

    name: str
    summary: str
    decoder: str
    reads: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    exact: Exact = ALWAYS
    verifier: Verifier = ANY_TRANSFORMER
    helper: Helper | None = None
    candidates: Callable[[variants.Offer], variants.OptionSets] | None = None
    audited: bool = True
    by_token: bool = False
    drafts: str = "int8"
    beams: str = ""

    def __post_init__(self) -> None:
        unknown = {*self.reads, *self.defaults} - ALL.keys()
        assert not unknown, f"{self.name}: {unknown} are no options"

    def load(self, beam: int = 1) -> Any:
        """Return the decoder's class for a beam of this size."""
        module, name = (self.beams if self.beams and beam > 1 else self.decoder).rsplit(".", 1)
        return getattr(import_module(module, f"{__package__}.methods"), name)

    def default(self, option: str) -> Any:
        """Return an option's default with this method."""
        return self.defaults.get(option, ALL[option].default)

    def flags(self, config: DecodingConfig) -> dict[str, Any]:
        """Return the values of the method's own flags, as JSON has them."""
        return {name: _finite(getattr(config, name)) for name in self.own_flags}

    @property
    def own_flags(self) -> tuple[str, ...]:
        """The options that it reads, without those of fairseq's search."""
        return tuple(name for name in self.reads if name in OPTIONS)

    @property
    def keeps_rules(self) -> bool:
        """Whether its outputs keep rules that read what is written."""
        return self.audited or (self.beam and self.exact is not NEVER)

    @property
    def drafter(self) -> str | None:
        """The kind of checkpoint of ``--drafter-path``; None: no drafter."""
        return None if self.helper is None else self.helper.kind

    @property
    def needs_drafter(self) -> bool:
        """Whether it cannot do without ``--drafter-path``."""
        return self.helper is not None and bool(self.helper.wanted)

    @property
    def trained_block(self) -> bool:
        """Whether its default block size is that of its drafter's training."""
        return self.verifier.kind == BLOCK_NAT or self.drafter in (BLOCK_NAT, HEADS)

    @property
    def drafts_alone(self) -> bool:
        """Whether it decodes a drafter without a verifier."""
        return self.verifier.kind == BLOCK_NAT

    @property
    def beam(self) -> bool:
        """Whether it is always a beam search; other methods are greedy, at least by default."""
        return "beam" in self.reads and not self.beams

    @property
    def samples(self) -> bool:
        """Whether it reads fairseq's ``--sampling``."""
        return "sampling" in self.reads

    def reads_beam(self, config: DecodingConfig) -> bool:
        """Return whether the method reads ``--beam``: one that can be greedy, only above 1."""
        return self.beam or (bool(self.beams) and config.beam > 1)

    @property
    def is_lossless_by_default(self) -> bool:
        """Whether it guarantees greedy search's output without flags."""
        default = DecodingConfig(**{"decoding": self.name, **self.defaults})
        return self.audited and self.is_lossless(default)

    def is_lossless(
        self, config: DecodingConfig, beam_size: int = 1, left_to_right: bool = True
    ) -> bool:
        """Return whether the method guarantees the output of greedy search in fp32.

        Args:
            config: the options of decoding.
            beam_size: fairseq's ``--beam``, for a method that reads it.
            left_to_right: whether the models write one word per step, from left to right.
        """
        as_greedy = beam_size == 1 and left_to_right if self.beam else beam_size == 1
        return as_greedy and self.exact.holds(config)


def _finite(value: Any) -> Any:
    """Replace an infinite number, which JSON does not have, by text."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _top_one_only(config: DecodingConfig) -> bool:
    """Return whether only the verifier's own token is accepted: with beta 1 or tau 0."""
    return config.accept_topk == 1 or config.accept_margin == 0


def _own_token_only(config: DecodingConfig) -> bool:
    """Return whether blockwise decoding accepts the verifier's own token only."""
    more = config.accept_topk > 1 or config.accept_distance or config.min_block > 1
    return not more


_JACOBI = ("jacobi_init", "jacobi_stop")
_BLOCKS = ("block_size", "adaptive_block", *_JACOBI, "jacobi_window")
_DRAFTED = (
    "drafter_path",
    "block_size",
    "adaptive_block",
    "drafter_shortlist",
    "drafter_dtype",
    "draft_tree",
)

_ENTRIES = (
    Method(
        name="greedy",
        summary="fairseq's --beam 1 on this plugin's decoder",
        decoder=".greedy.GreedyDecoder",
        reads=("sampling",),
        candidates=variants.plain,
    ),
    Method(
        name="pj",
        summary="parallel Jacobi: the whole target is one block, predicted again until it is final",
        decoder=".jacobi.JacobiDecoder",
        reads=(*_JACOBI, "jacobi_length", "sampling"),
    ),
    Method(
        name="pgj",
        summary="Jacobi decoding in blocks from left to right",
        decoder=".jacobi.JacobiDecoder",
        reads=(*_BLOCKS, "jacobi_length", "sampling"),
    ),
    Method(
        name="hgj",
        summary="as pgj up to a length, then token by token",
        decoder=".jacobi.JacobiDecoder",
        reads=(*_BLOCKS, "hybrid_length", "sampling"),
        candidates=variants.sliding_windows,
    ),
    Method(
        name="gad",
        summary="a model of --arch block_nat drafts a block, the Transformer of --path verifies it",
        decoder=".gad.GadDecoder",
        reads=(*_DRAFTED, "sampling"),
        helper=Helper(BLOCK_NAT, "a checkpoint of --arch block_nat"),
        candidates=variants.drafts,
    ),
    Method(
        name="gad_pp",
        summary="gad in fewer passes: it also accepts drafted tokens that score close to the best",
        decoder=".gad.GadDecoder",
        reads=(*_DRAFTED, "accept_topk", "accept_margin"),
        exact=Exact("with --accept-topk 1 or --accept-margin 0", _top_one_only),
        helper=Helper(BLOCK_NAT, "a checkpoint of --arch block_nat"),
        candidates=variants.relaxed_drafts,
    ),
    Method(
        name="assisted",
        summary="a small Transformer drafts token by token, the Transformer of --path verifies",
        decoder=".assisted.AssistedDecoder",
        reads=(*_DRAFTED, "draft_confidence", "accept_topk", "accept_margin", "sampling", "beam"),
        # Where a draft ends: within 3% of the best for drafters that cost a 50th to a 4th of the
        # verifier, by the counts of results/acceptance-confidence-tiny.json.
        defaults={"block_size": 12, "accept_topk": 1, "draft_confidence": 0.4, "beam": 1},
        drafts="int4",
        beams=".beam_drafts.BeamAssistedDecoder",
        exact=Exact("without --accept-topk, or with --accept-margin 0", _top_one_only),
        helper=Helper(TRANSFORMER, "a checkpoint of --arch shallow_decoder, or any Transformer"),
        by_token=True,
        candidates=variants.assists,
    ),
    Method(
        name="self_draft",
        summary="the Transformer of --path drafts token by token in int8, for int8 in 4 bits, and "
        "itself verifies",
        decoder=".self_draft.SelfDraftDecoder",
        reads=("block_size", "adaptive_block", "drafter_dtype", "sampling", "beam"),
        defaults={"block_size": 20, "drafter_dtype": "int8", "beam": 1},
        beams=".beam_drafts.BeamSelfDraftDecoder",
        verifier=GLOBAL_TRANSFORMER,
        candidates=variants.in_fewer_bits,
        by_token=True,
    ),
    Method(
        name="nat",
        summary="the block_nat model of --path alone, block by block",
        decoder=".nat.NatDecoder",
        reads=("block_size",),
        exact=NEVER,
        verifier=ONE_BLOCK_NAT,
        audited=False,
    ),
    Method(
        name="blockwise",
        summary="heads on the Transformer draft its next tokens, and its next pass verifies them",
        decoder=".blockwise.BlockwiseDecoder",
        reads=(*_DRAFTED, "accept_topk", "accept_distance", "min_block", "sampling"),
        defaults={"accept_topk": 1},
        exact=Exact(
            "unless --accept-topk, --accept-distance or --min-block accepts more", _own_token_only
        ),
        verifier=WITH_HEADS,
        helper=Helper(HEADS),
        candidates=variants.drafts,
    ),
    Method(
        name="multiword_beam",
        summary="beam search over several words per step; for a plain Transformer fairseq's beam "
        "search, on this plugin's decoder",
        decoder=".multiword_beam.MultiwordBeamDecoder",
        reads=("beam", "deduplicate_ngrams", "length_formula", "beam_stop"),
        exact=Exact("of a plain Transformer, with --beam 1", lambda config: True),
        verifier=WRITES_STEPS,
        audited=False,
    ),
    Method(
        name="double_token_beam",
        summary="beam search over pairs of words, from both ends",
        decoder=".double_token_beam.DoubleTokenBeamDecoder",
        reads=("beam", "deduplicate_ngrams", "length_formula", "beam_stop"),
        exact=NEVER,
        verifier=WRITES_PAIRS,
        audited=False,
    ),
    Method(
        name="auto_fast",
        summary="the fastest of these with greedy's output on this machine, measured on the first "
        "sentences; with a latency budget, the best decoder within it",
        decoder=".auto_fast.AutoFastDecoder",
        beams=".auto_fast.AutoFastDecoder",
        defaults={"beam": 1},
        reads=("beam", "drafter_path", "speed_profile", "latency_budget_ms"),
        exact=Exact("without --latency-budget-ms", lambda config: config.latency_budget_ms is None),
        helper=Helper(ANY),
    ),
)

#: Methods by name, in the order of --help and docs; those of other packages last.
METHODS: dict[str, Method] = {}
#: All values of ``--decoding``.
DECODINGS: list[str] = [*STOCK_DECODINGS]


def register(method: Method) -> None:
    """Add a method, so that every command knows it.

    Raises:
        ValueError: its name is taken.
    """
    if method.name in DECODINGS:
        raise ValueError(f"--decoding {method.name} is there already")
    METHODS[method.name] = method
    DECODINGS.append(method.name)


def _register_others() -> None:
    """Register the methods of other packages; one that cannot be loaded is named in the log."""
    for point in metadata.entry_points(group=GROUP):
        try:
            register(point.load())
        except Exception as error:  # of code that is not this package's
            logger.warning("the method %s of %s is left out: %s", point.name, point.value, error)


for _entry in _ENTRIES:
    register(_entry)
_register_others()


def readers(option: str) -> list[str]:
    """Return the methods that read an option: of an engine's or a report's option all."""
    if option == "audit":
        return [name for name, method in METHODS.items() if method.audited]
    if OPTIONS[option].group == RULE:
        return [name for name, method in METHODS.items() if method.keeps_rules]
    common = OPTIONS[option].group != METHOD
    return [name for name, method in METHODS.items() if common or option in method.reads]


def own_decoding(models: Sequence[Any]) -> str | None:
    """Return the models' own method; None for a plain Transformer."""
    return next((name for name, method in METHODS.items() if method.verifier.owns(models)), None)


def beam_search(models: Sequence[Any], beam: int) -> str:
    """Return the fastest method whose outputs are those of fairseq's beam search."""
    if len(models) > 1 or own_decoding(models) is not None:
        return "beam"
    return "greedy" if beam == 1 else "multiword_beam"


def check_models(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse models that the method does not support."""
    if len({order_of(model) for model in models}) > 1:
        raise option_error(
            "--path", f"{len(models)} models with different target orders", "one order for all"
        )
    for model in models:
        own = METHODS.get(own_decoding([model]) or "")
        if own is None or own.name == decoding:
            continue
        if own.verifier.alone is not None:
            allowed = f"{own.name}, or auto, with this model: {own.verifier.alone}"
            raise option_error("--decoding", decoding, allowed)
        if own.verifier.kind != TRANSFORMER:
            raise option_error(
                "--path",
                f"a model of --arch {own.verifier.kind}",
                f"a Transformer, with --decoding {decoding}; a {own.verifier.kind} model with "
                f"{own.name}",
            )
    if decoding in METHODS:
        METHODS[decoding].verifier.accepts(decoding, models, drafter_path)
