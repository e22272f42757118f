"""The choice of the method, and checks of model, criterion and settings against each other."""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairseq.sequence_generator import SequenceGeneratorWithAlignment

from ...config import ALL, DecodingConfig, flag
from ...errors import UsageError, excludes, needs, option_error
from ...methods.base import Context, Decoder
from ...methods.build import build_decoder
from ...methods.configure import (
    FLAGS_OF_AUTO,
    as_method,
    cannot_honour,
    check_auto,
    check_rules,
    configure,
    for_models,
)
from ...methods.stock import StockDecoder
from ...model_checks import attends_locally
from ...registry import METHODS, STOCK_DECODINGS, TRANSFORMER, check_models, own_decoding
from ..compat.given import chosen
from ..generators import CoreGenerator, family_of, settings_of
from ..models.block_nat import BlockNatModel
from ..models.blockwise_transformer import BlockwiseTransformer
from ..models.reordered_transformer import ReorderedTransformer
from .drafters import Drafters
from .flags import set_options


class ChoosesMethod:
    """A part of the task: builds the generator that ``--decoding`` names."""

    cfg: Any

    def build_generator(
        self,
        models: Sequence[Any],
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: dict[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """Build the generator that ``--decoding`` names.

        Args:
            models: the model, or an ensemble.
            args: fairseq's generation options. They may include the plugin's (hub calls,
                ``--eval-bleu-args``), which then override the command line's.
            seq_gen_cls: a subclass of the plugin's generators, or with fairseq's own search any
                class.
            extra_gen_cls_kwargs: further arguments of the generator; and decoding's options, which
                override ``args``.
            prefix_allowed_tokens_fn: fairseq's; only its own search supports it.

        Returns:
            The generator of the method's family; fairseq's own with ``beam``, and with ``auto`` for
            a model without its own method.

        Raises:
            UsageError: the method does not support an option or the model.
        """
        extra = self.own_context(extra_gen_cls_kwargs)
        options = {name: extra.pop(name) for name in ALL if name in extra}
        if options:
            args = copy.deepcopy(args)
            set_options(args, options)
        set_options(args, self.own_limits(args))
        asked = configure(chosen(args), self.cfg, **options)
        ours = isinstance(seq_gen_cls, type) and issubclass(seq_gen_cls, CoreGenerator)
        if ours and asked.decoding == "auto":
            config = as_method(asked, seq_gen_cls.usual(models, asked.beam))
        else:
            config = for_models(asked, models)
        check_models(config.decoding, models, config.drafter_path)
        own = None if asked is config else METHODS[config.decoding]
        if getattr(args, "score_reference", False) and asked.decoding == "auto":
            if own is None or own.verifier.kind == TRANSFORMER:
                return super().build_generator(models, args)  # type: ignore[misc]
        if config.decoding in STOCK_DECODINGS and not ours:
            check_rules(config)
            for name in ("print_step", "retain_iter_history"):
                if getattr(args, name, False):  # fairseq ends with a KeyError
                    raise UsageError(
                        f"{flag(name)} needs a --decoding of this plugin, such as greedy or "
                        "multiword_beam; fairseq's own search does not record it"
                    )
            if config.replace_unk not in (None, False) and seq_gen_cls is None:
                seq_gen_cls = SequenceGeneratorWithAlignment
                extra["print_alignment"] = config.print_alignment or "hard"
            return super().build_generator(  # type: ignore[misc]
                models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn
            )
        if prefix_allowed_tokens_fn is not None:
            raise cannot_honour(
                config, "prefix_allowed_tokens_fn", prefix_allowed_tokens_fn, "none"
            )
        if not ours and seq_gen_cls is not None:
            raise cannot_honour(config, "seq_gen_cls", seq_gen_cls, "a subclass of CoreGenerator")
        family = seq_gen_cls if ours else family_of(config.decoding)
        generator = family(
            models,
            self.target_dictionary,  # type: ignore[attr-defined]
            load_drafter=self.drafters.load,
            **settings_of(config) | extra,
        )
        if not METHODS[config.decoding].reads_beam(config):
            # fairseq's default is 5, and generate prints it beside the BLEU score.
            set_options(args, {"beam": 1})
        return generator

    def build_decoder(
        self, models: Sequence[Any], config: DecodingConfig, **context: Any
    ) -> Decoder | StockDecoder:
        """Build the decoder that a config names; a drafter of ``drafter_path`` is loaded.

        Raises:
            UsageError: see ``methods.build.build_decoder``; or the drafter does not fit.
        """
        config = replace(for_models(config, models), **self.own_limits(config))
        words, sources = self.target_dictionary, self.source_dictionary  # type: ignore[attr-defined]
        given = Context(words, sources, **self.own_context(context))
        return build_decoder(models, config, given, self.drafters.load)

    def own_limits(self, asked: Any) -> dict[str, Any]:
        """Return limits of outputs that the data set; a task refuses options against them."""
        return {}

    def own_context(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a generator's or decoder's further arguments, with those that the data set."""
        return dict(given or {})

    @functools.cached_property
    def drafters(self) -> Drafters:
        """The drafters of ``--drafter-path`` that are loaded so far."""
        return Drafters(self)


def check_pair(model: Any, criterion: Any, cfg: Any) -> None:
    """Refuse a model, a criterion and settings that do not fit each other.

    Raises:
        UsageError: they do not fit; the message names the right one.
    """
    trained_by, trains = getattr(model, "trained_by", None), getattr(criterion, "trains", None)
    if trains is not None and trains != trained_by:
        raise needs("--criterion", trains[1], f"--arch {trains[0]}")
    if trained_by is not None and trains != trained_by:
        given, allowed = type(criterion).__name__, f"{trained_by[1]} with --arch {trained_by[0]}"
        raise option_error("--criterion", given, allowed)
    if cfg.decoding == "auto" and own_decoding([model]) is None:
        check_auto({name: getattr(cfg, name) for name in FLAGS_OF_AUTO})
    if isinstance(model, ReorderedTransformer):
        for name in ("left_pad_target", "load_alignments"):
            if getattr(cfg, name):
                raise excludes(flag(name), True, "reordered targets")
        ignored = getattr(criterion, "ignore_prefix_size", 0)
        if ignored and not model.target_order.keeps_prefix:
            raise option_error(
                "--ignore-prefix-size", ignored, "0 with a model that writes in another order"
            )
    if isinstance(model, BlockNatModel):
        model.check_prefixes(
            criterion.prefixes, criterion.tokens_per_prefix, criterion.after_errors
        )
        if cfg.left_pad_target:
            raise excludes("--left-pad-target", True, "--arch block_nat")
    if isinstance(model, BlockwiseTransformer) and cfg.left_pad_target:
        raise excludes("--left-pad-target", True, "--arch blockwise_transformer")
    if attends_locally(model) and cfg.left_pad_target:
        raise excludes("--left-pad-target", True, "a model of images")
