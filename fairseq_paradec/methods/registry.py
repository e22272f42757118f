"""Every ``--decoding``, described once.

A new method is a file beside this one and an entry here: fairseq's commands, ``--help``, the
checks of flags and models, audits, reports, benchmark, losslessness tables, FLOPs and
docs/decoders.md read the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ..analysis import flops
from ..errors import option_error
from ..options import OPTIONS, DecodingConfig
from . import model_checks as models_are
from . import variants

#: Kinds of checkpoints: what ``--path`` or ``--drafter-path`` names.
TRANSFORMER, BLOCK_NAT, HEADS, BLOCK_NAT_OR_HEADS = "transformer", "block_nat", "heads", "either"

#: Decoded by fairseq's own search, untouched; ``auto``: unless the model has a way of its own.
STOCK_DECODINGS = {
    "auto": "the checkpoint's own way, which for a plain Transformer is fairseq's own beam search",
    "beam": "fairseq's own search, untouched",
}


def always(config: DecodingConfig) -> bool:
    """Promise greedy's output whatever the flags."""
    return True


def never(config: DecodingConfig) -> bool:
    """Promise nothing."""
    return False


@dataclass(frozen=True)
class Method:
    """One ``--decoding``.

    Attributes:
        name: as a user types it.
        summary: what it does, in a line.
        generator: ``module.Class`` of this folder; imported when it is needed.
        reads: the options of methods that it reads; any other is refused by name.
        defaults: where they are not the option table's.
        needs: options that it cannot run without, with what each has to name.
        exact_if: whether, with a configuration, the output is promised to be greedy search's.
        exact_words: the same for the docs.
        beam: whether it searches with fairseq's ``--beam``; all others are greedy.
        beam_with: an option that lets it read ``--beam``, too.
        audited: whether there is a greedy output to audit it by.
        model: what ``--path`` names.
        models: the same for the docs.
        accepts: refuses other models: called with decoding, models and ``--drafter-path``.
        owns: whether ``--decoding auto`` decodes these models so.
        alone: why no other method can decode the Transformers that it owns; None: others can.
        drafter: what ``--drafter-path`` names; None if there is none.
        trained_block: whether its block size is by default that of its drafter's training.
        flops: counts a record's operations (``analysis/flops.py``); None: they are not counted.
        exact_variants: settings whose exactness ``paradec lossless`` counts; None: none.
        candidates: settings that ``auto_fast`` compares; None: none.
        is_given_builder: whether its generator builds others'.
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
    audited: bool = True
    model: str = TRANSFORMER
    models: str = "any Transformer"
    accepts: Callable[[str, Sequence[Any], str | None], None] = models_are.any_transformer
    owns: Callable[[Sequence[Any]], bool] = lambda models: False
    alone: str | None = None
    drafter: str | None = None
    trained_block: bool = False
    flops: Callable[..., flops.Count] | None = flops.verifying
    exact_variants: Callable[[bool, int], variants.Settings] | None = None
    candidates: Callable[[int, int], variants.Settings] | None = None
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
        """Return what the method's own flags stand at."""
        return {name: getattr(config, name) for name in self.reads}

    def reads_beam(self, config: DecodingConfig) -> bool:
        """Say whether ``--beam`` means something with these options."""
        return self.beam or (
            self.beam_with is not None and getattr(config, self.beam_with) is not None
        )

    def is_lossless(
        self, config: DecodingConfig, beam_size: int = 1, left_to_right: bool = True
    ) -> bool:
        """Say whether, in fp32, the output is promised to be that of greedy search.

        Args:
            config: how to decode.
            beam_size: fairseq's ``--beam``, of a method that searches with it.
            left_to_right: whether the models write a word a step, from left to right.
        """
        as_greedy = not self.beam or (beam_size == 1 and left_to_right)
        return as_greedy and self.exact_if(config)


def _top_one_only(config: DecodingConfig) -> bool:
    """Of GAD++: with beta 1 or tau 0 nothing but the verifier's own token passes."""
    return config.accept_topk == 1 or config.accept_margin == 0


def _own_token_only(config: DecodingConfig) -> bool:
    """Of blockwise decoding: no flag accepts more than the verifier's own token."""
    more = config.accept_topk > 1 or config.accept_distance or config.min_block > 1
    return not more


_JACOBI = ("jacobi_init", "jacobi_stop")
_BLOCKS = ("block_size", "adaptive_block", *_JACOBI, "jacobi_window")
_DRAFTED = ("drafter_path", "block_size", "adaptive_block", "drafter_shortlist")
_OTHER_ORDER = "it writes its target in another order"

_ENTRIES = (
    Method(
        name="greedy",
        summary="fairseq's --beam 1 on this plugin's decoder",
        generator="greedy.GreedyGenerator",
        exact_variants=variants.defaults,
        candidates=variants.plain,
    ),
    Method(
        name="pj",
        summary="parallel Jacobi: the whole target is one block, re-predicted until it stands",
        generator="jacobi.JacobiGenerator",
        reads=(*_JACOBI, "jacobi_length"),
        exact_variants=variants.one_block,
    ),
    Method(
        name="pgj",
        summary="Jacobi decoding in blocks from left to right",
        generator="jacobi.JacobiGenerator",
        reads=_BLOCKS,
        exact_variants=variants.blocks,
    ),
    Method(
        name="hgj",
        summary="as pgj up to a length, then token by token",
        generator="jacobi.JacobiGenerator",
        reads=(*_BLOCKS, "hybrid_length"),
        exact_variants=variants.windows,
        candidates=variants.sliding_windows,
    ),
    Method(
        name="gad",
        summary="a model of --arch block_nat drafts a block, the Transformer of --path verifies it",
        generator="gad.GadGenerator",
        reads=_DRAFTED,
        needs={"drafter_path": "a checkpoint of --arch block_nat"},
        drafter=BLOCK_NAT,
        trained_block=True,
        flops=flops.drafting,
        exact_variants=variants.drafted_blocks,
        candidates=variants.drafts,
    ),
    Method(
        name="gad_pp",
        summary="gad in fewer passes: drafted tokens that are nearly the best pass, too",
        generator="gad.GadGenerator",
        reads=(*_DRAFTED, "accept_topk", "accept_margin"),
        needs={"drafter_path": "a checkpoint of --arch block_nat"},
        exact_if=_top_one_only,
        exact_words="with --accept-topk 1 or --accept-margin 0",
        drafter=BLOCK_NAT,
        trained_block=True,
        flops=flops.drafting,
        candidates=variants.relaxed_drafts,
    ),
    Method(
        name="nat",
        summary="the block_nat model of --path alone, block by block",
        generator="nat.NatGenerator",
        reads=("block_size",),
        exact_if=never,
        exact_words="no",
        audited=False,
        model=BLOCK_NAT,
        models="one model of --arch block_nat",
        accepts=models_are.one_block_nat,
        owns=models_are.is_block_nat,
        trained_block=True,
        flops=flops.filling,
    ),
    Method(
        name="blockwise",
        summary="heads of the Transformer itself look ahead, and its next pass verifies them",
        generator="blockwise.BlockwiseGenerator",
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
        flops=flops.looking_ahead,
        exact_variants=variants.trained_blocks,
        candidates=variants.drafts,
    ),
    Method(
        name="multiword_beam",
        summary="beam search by several words a step; of a plain Transformer fairseq's beam "
        "search, on this plugin's decoder",
        generator="multiword_beam.MultiwordBeamGenerator",
        reads=("deduplicate_ngrams",),
        exact_words="of a plain Transformer, with --beam 1",
        beam=True,
        audited=False,
        models="--arch ibdecoder, ibdecoder_sa, imdecoder, sa_transformer, transformer_r2l; any "
        "Transformer without local attention",
        accepts=models_are.global_attention,
        owns=models_are.writes_steps,
        alone=_OTHER_ORDER,
        flops=flops.searching,
    ),
    Method(
        name="double_token_beam",
        summary="beam search by pairs of words, from both ends",
        generator="double_token_beam.DoubleTokenBeamGenerator",
        reads=("deduplicate_ngrams",),
        exact_if=never,
        exact_words="no",
        beam=True,
        audited=False,
        models="--arch double_token",
        accepts=models_are.pairs_only,
        owns=models_are.writes_pairs,
        alone=_OTHER_ORDER,
        flops=flops.searching,
    ),
    Method(
        name="auto_fast",
        summary="whichever of these is fastest here with greedy's output, found out on the first "
        "sentences; with a latency budget, the best decoder within it",
        generator="auto_fast.AutoFastGenerator",
        reads=("drafter_path", "speed_profile", "latency_budget_ms"),
        exact_if=lambda config: config.latency_budget_ms is None,
        exact_words="without --latency-budget-ms",
        beam_with="latency_budget_ms",
        drafter=BLOCK_NAT_OR_HEADS,
        flops=None,
        is_given_builder=True,
    ),
)

#: By name, in the order of --help and docs.
METHODS: dict[str, Method] = {entry.name: entry for entry in _ENTRIES}
DECODINGS = (*STOCK_DECODINGS, *METHODS)


def readers(option: str) -> list[str]:
    """Return the methods that read an option; all of them, where it is none of a method's."""
    common = OPTIONS[option].group != "method"
    return [name for name, method in METHODS.items() if common or option in method.reads]


def own_decoding(models: Sequence[Any]) -> str | None:
    """Return the method that models were made for; None for a plain Transformer."""
    return next((name for name, method in METHODS.items() if method.owns(models)), None)


def check_models(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse models that the method was not made for.

    Raises:
        UsageError: there is one.
    """
    from ..target_order import order_of  # this table is read without torch, too

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
