"""The registry: one entry per ``--decoding``.

A new method is a file in this folder and an entry here. fairseq's commands, ``--help``, the checks
of flags and models, audits, reports, the benchmark, the tables of losslessness, FLOPs and
docs/decoders.md read the entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ..errors import option_error
from ..options import OPTIONS, DecodingConfig
from . import model_checks as models_are
from . import variants

#: Kinds of checkpoints for ``--path`` and ``--drafter-path``.
TRANSFORMER, BLOCK_NAT, HEADS, ANY = "transformer", "block_nat", "heads", "any"

#: Decoded by fairseq's own search; with ``auto``, only for a model without its own method.
STOCK_DECODINGS = {
    "auto": "the checkpoint's own method; for a plain Transformer fairseq's own beam search",
    "beam": "fairseq's own search, untouched",
}


def always(config: DecodingConfig) -> bool:
    """Return True: the output is greedy search's with any flags."""
    return True


def never(config: DecodingConfig) -> bool:
    """Return False: the output may differ from greedy search's."""
    return False


@dataclass(frozen=True)
class Method:
    """One ``--decoding``.

    Attributes:
        name: the value of ``--decoding``.
        summary: one line for ``--help`` and the docs.
        generator: ``module.Class`` in this folder, imported on demand.
        reads: the method options that it reads; any other raises an error that names it.
        defaults: its defaults that differ from the option table's.
        needs: required options, each with the kind of value it needs.
        exact_if: whether a configuration guarantees greedy search's output in fp32.
        exact_words: the same in words, for the docs.
        beam: whether it reads fairseq's ``--beam``; other methods are greedy.
        beam_with: an option with which it reads ``--beam`` too.
        samples: whether it can sample: whether it reads fairseq's ``--sampling``.
        audited: whether its output can be compared with greedy search's.
        model: the kind of checkpoint of ``--path``.
        models: the same in words, for the docs.
        accepts: raises an error for other models; called with decoding, models and
            ``--drafter-path``.
        owns: whether ``--decoding auto`` decodes these models with this method.
        alone: why no other method can decode the Transformers that it owns; None: others can.
        drafter: the kind of checkpoint of ``--drafter-path``; None: no drafter.
        trained_block: whether its default block size is that of its drafter's training.
        candidates: its settings in ``auto_fast``; None: none.
        offered: whether auto_fast tries it with an ``--engine-dtype``, for a model.
        is_given_builder: whether its generator builds other methods' generators.
    """

    name: str
    summary: str
    generator: str
    reads: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    exact_if: Callable[[DecodingConfig], bool] = always
    exact_words: str = "yes"
    beam: bool = False
    beam_with: str | None = None
    samples: bool = False
    audited: bool = True
    model: str = TRANSFORMER
    models: str = "any Transformer"
    accepts: Callable[[str, Sequence[Any], str | None], None] = models_are.any_transformer
    owns: Callable[[Sequence[Any]], bool] = lambda models: False
    alone: str | None = None
    drafter: str | None = None
    trained_block: bool = False
    candidates: Callable[[int, int], variants.Settings] | None = None
    offered: Callable[[str | None, Any], bool] = lambda dtype, model: True
    is_given_builder: bool = False

    def __post_init__(self) -> None:
        unknown = {*self.reads, *self.defaults, *self.needs} - OPTIONS.keys()
        assert not unknown, f"{self.name}: {unknown} are no options"

    def load(self) -> Any:
        """Return the generator's class."""
        module, name = self.generator.rsplit(".", 1)
        return getattr(import_module(f".{module}", __package__), name)

    def default(self, option: str) -> Any:
        """Return an option's default with this method."""
        return self.defaults.get(option, OPTIONS[option].default)

    def flags(self, config: DecodingConfig) -> dict[str, Any]:
        """Return the values of the method's own flags, as JSON has them."""
        return {name: _finite(getattr(config, name)) for name in self.reads}

    @property
    def drafts_alone(self) -> bool:
        """Whether it decodes a drafter without a verifier."""
        return self.model == BLOCK_NAT

    def reads_beam(self, config: DecodingConfig) -> bool:
        """Return whether the method reads ``--beam`` with these options."""
        return self.beam or (
            self.beam_with is not None and getattr(config, self.beam_with) is not None
        )

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
        as_greedy = not self.beam or (beam_size == 1 and left_to_right)
        return as_greedy and self.exact_if(config)


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
_DRAFTED = ("drafter_path", "block_size", "adaptive_block", "drafter_shortlist", "drafter_dtype",
            "draft_tree")  # fmt: skip
_OTHER_ORDER = "it writes its target in another order"

_ENTRIES = (
    Method(
        name="greedy",
        summary="fairseq's --beam 1 on this plugin's decoder",
        generator="greedy.GreedyDecoder",
        candidates=variants.plain,
    ),
    Method(
        name="pj",
        summary="parallel Jacobi: the whole target is one block, predicted again until it is final",
        generator="jacobi.JacobiDecoder",
        reads=(*_JACOBI, "jacobi_length"),
    ),
    Method(
        name="pgj",
        summary="Jacobi decoding in blocks from left to right",
        generator="jacobi.JacobiDecoder",
        reads=_BLOCKS,
    ),
    Method(
        name="hgj",
        summary="as pgj up to a length, then token by token",
        generator="jacobi.JacobiDecoder",
        reads=(*_BLOCKS, "hybrid_length"),
        candidates=variants.sliding_windows,
    ),
    Method(
        name="gad",
        summary="a model of --arch block_nat drafts a block, the Transformer of --path verifies it",
        generator="gad.GadDecoder",
        reads=_DRAFTED,
        needs={"drafter_path": "a checkpoint of --arch block_nat"},
        drafter=BLOCK_NAT,
        trained_block=True,
        candidates=variants.drafts,
    ),
    Method(
        name="gad_pp",
        summary="gad in fewer passes: it also accepts drafted tokens that score close to the best",
        generator="gad.GadDecoder",
        reads=(*_DRAFTED, "accept_topk", "accept_margin"),
        needs={"drafter_path": "a checkpoint of --arch block_nat"},
        exact_if=_top_one_only,
        exact_words="with --accept-topk 1 or --accept-margin 0",
        drafter=BLOCK_NAT,
        trained_block=True,
        candidates=variants.relaxed_drafts,
    ),
    Method(
        name="assisted",
        summary="a small Transformer drafts token by token, the Transformer of --path verifies",
        generator="assisted.AssistedDecoder",
        reads=(*_DRAFTED, "draft_confidence", "accept_topk", "accept_margin"),
        # Where a draft ends: within 3% of the best for drafters that cost a 50th to a 4th of the
        # verifier, by the counts of results/acceptance-confidence-tiny.md.
        defaults={"block_size": 6, "accept_topk": 1, "draft_confidence": 0.4},
        needs={"drafter_path": "a checkpoint of --arch shallow_decoder, or any Transformer"},
        exact_if=_top_one_only,
        exact_words="without --accept-topk, or with --accept-margin 0; with --sampling, outputs of "
        "the distribution of fairseq's",
        samples=True,
        drafter=TRANSFORMER,
        candidates=variants.assists,
    ),
    Method(
        name="self_draft",
        summary="the Transformer of --path drafts token by token in int8, and itself verifies",
        generator="self_draft.SelfDraftDecoder",
        reads=("block_size", "adaptive_block", "drafter_dtype"),
        defaults={"block_size": 20, "drafter_dtype": "int8"},
        models="any Transformer without local attention",
        accepts=models_are.global_attention,
        candidates=variants.plain,
        offered=models_are.drafts_in_int8,
    ),
    Method(
        name="nat",
        summary="the block_nat model of --path alone, block by block",
        generator="nat.NatDecoder",
        reads=("block_size",),
        exact_if=never,
        exact_words="no",
        audited=False,
        model=BLOCK_NAT,
        models="one model of --arch block_nat",
        accepts=models_are.one_block_nat,
        owns=models_are.is_block_nat,
        trained_block=True,
    ),
    Method(
        name="blockwise",
        summary="heads on the Transformer draft its next tokens, and its next pass verifies them",
        generator="blockwise.BlockwiseDecoder",
        reads=(*_DRAFTED, "accept_topk", "accept_distance", "min_block"),
        defaults={"accept_topk": 1},
        exact_if=_own_token_only,
        exact_words="unless --accept-topk, --accept-distance or --min-block accepts more",
        models="one Transformer with heads, in it (--arch blockwise_transformer, "
        "blockwise_image_transformer) or beside it",
        accepts=models_are.one_set_of_heads,
        owns=models_are.has_heads,
        drafter=HEADS,
        trained_block=True,
        candidates=variants.drafts,
    ),
    Method(
        name="multiword_beam",
        summary="beam search over several words per step; for a plain Transformer fairseq's beam "
        "search, on this plugin's decoder",
        generator="multiword_beam.MultiwordBeamDecoder",
        reads=("deduplicate_ngrams",),
        exact_words="of a plain Transformer, with --beam 1",
        beam=True,
        audited=False,
        models="--arch ibdecoder, ibdecoder_sa, imdecoder, sa_transformer, transformer_r2l, "
        "transformer_both_ends; any Transformer without local attention",
        accepts=models_are.global_attention,
        owns=models_are.writes_steps,
        alone=_OTHER_ORDER,
    ),
    Method(
        name="double_token_beam",
        summary="beam search over pairs of words, from both ends",
        generator="double_token_beam.DoubleTokenBeamDecoder",
        reads=("deduplicate_ngrams",),
        exact_if=never,
        exact_words="no",
        beam=True,
        audited=False,
        models="--arch double_token",
        accepts=models_are.pairs_only,
        owns=models_are.writes_pairs,
        alone=_OTHER_ORDER,
    ),
    Method(
        name="auto_fast",
        summary="the fastest of these with greedy's output on this machine, measured on the first "
        "sentences; with a latency budget, the best decoder within it",
        generator="auto_fast.AutoFastDecoder",
        reads=("drafter_path", "speed_profile", "latency_budget_ms"),
        exact_if=lambda config: config.latency_budget_ms is None,
        exact_words="without --latency-budget-ms",
        beam_with="latency_budget_ms",
        drafter=ANY,
        is_given_builder=True,
    ),
)

#: Methods by name, in the order of --help and docs.
METHODS: dict[str, Method] = {entry.name: entry for entry in _ENTRIES}
DECODINGS = (*STOCK_DECODINGS, *METHODS)


def readers(option: str) -> list[str]:
    """Return the methods that read an option; all of them for an engine's or report's option."""
    common = OPTIONS[option].group != "method"
    return [name for name, method in METHODS.items() if common or option in method.reads]


def own_decoding(models: Sequence[Any]) -> str | None:
    """Return the models' own method; None for a plain Transformer."""
    return next((name for name, method in METHODS.items() if method.owns(models)), None)


def beam_search(models: Sequence[Any], beam: int) -> str:
    """Return the fastest method whose outputs are those of fairseq's beam search."""
    if len(models) > 1 or own_decoding(models) is not None:
        return "beam"
    return "greedy" if beam == 1 else "multiword_beam"


def check_models(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse models that the method does not support.

    Raises:
        UsageError: a model is not supported.
    """
    from ..target_order import order_of  # imports torch, which readers of this table may not need

    if len({order_of(model) for model in models}) > 1:
        raise option_error(
            "--path", f"{len(models)} models with different target orders", "one order for all"
        )
    for model in models:
        own = METHODS.get(own_decoding([model]) or "")
        if own is None or own.name == decoding:
            continue
        if own.alone is not None:
            raise option_error(
                "--decoding", decoding, f"{own.name}, or auto, with this model: {own.alone}"
            )
        if own.model != TRANSFORMER:
            raise option_error(
                "--path", f"a model of --arch {own.model}",
                f"a Transformer, with --decoding {decoding}; a {own.model} model with {own.name}",
            )  # fmt: skip
    if decoding in METHODS:
        METHODS[decoding].accepts(decoding, models, drafter_path)
