"""The choice of the method, and checks of model, criterion and settings against each other."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig

from ..criterions.block_nat_loss import BlockNatLoss
from ..criterions.blockwise_loss import BlockwiseLoss
from ..errors import option_error
from ..methods.configure import FLAGS_OF_AUTO, check_auto, check_fairseq_options, configure
from ..methods.registry import METHODS, STOCK_DECODINGS, TRANSFORMER, check_models, own_decoding
from ..models.block_nat import BlockNatModel
from ..models.blockwise_transformer import BlockwiseTransformer
from ..models.reordered_transformer import ReorderedTransformer
from ..options import DecodingConfig, flag
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
            seq_gen_cls: fairseq's; refused with a method of the plugin.
            extra_gen_cls_kwargs: fairseq's.
            prefix_allowed_tokens_fn: fairseq's; only its own search supports it.

        Raises:
            UsageError: the method does not support an option or the model.
        """
        asked = [args, self.cfg]
        config = configure(*asked)
        extra = dict(extra_gen_cls_kwargs or {})
        own = own_decoding(models)
        is_auto = config.decoding == "auto"
        if is_auto:  # allows FLAGS_OF_AUTO only
            wanted = {name: _first(name, asked) for name in FLAGS_OF_AUTO}
            if own is None:
                check_auto(wanted)
            else:
                asked = [Namespace(decoding=own, **wanted)]
                config = configure(*asked)
        check_models(config.decoding, models, config.drafter_path)
        can_score = own is None or METHODS[own].model == TRANSFORMER
        if is_auto and can_score and getattr(args, "score_reference", False):
            return super().build_generator(models, args)  # type: ignore[misc]
        if config.decoding in STOCK_DECODINGS:
            return super().build_generator(  # type: ignore[misc]
                models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn
            )
        method = METHODS[config.decoding]
        drafts = getattr(models[0], "block_heads", models[0])
        if method.drafter is not None and config.drafter_path is not None:
            drafts = self.drafters.load(config.drafter_path, method.drafter, models)
            extra["drafter"] = drafts
        if method.trained_block and hasattr(drafts, "block_size"):
            # Without --block-size, the block size is that of training.
            trained = Namespace(decoding=config.decoding, block_size=drafts.block_size)
            config = configure(*asked, trained)
        given = dict(args) if isinstance(args, DictConfig) else dict(vars(args))
        given |= {"prefix_allowed_tokens_fn": prefix_allowed_tokens_fn, "seq_gen_cls": seq_gen_cls}
        given["lm_model"] = extra.get("lm_model")
        check_fairseq_options(config, given)
        if not method.reads_beam(config):
            # fairseq's default is 5, and generate prints it beside the BLEU score.
            set_options(args, {"beam": 1})
        extra |= {
            "config": config,
            "src_dict": self.source_dictionary,  # type: ignore[attr-defined]
            "keep_history": given.get("retain_iter_history", False),
        }
        if method.is_given_builder:
            extra["build"] = self._builder(models, args, extra)
        return super().build_generator(models, args, method.load(), extra)  # type: ignore[misc]

    def _builder(
        self, models: Sequence[Any], args: Any, extra: dict[str, Any]
    ) -> Callable[[DecodingConfig], Any]:
        """Return the function that builds a candidate of auto_fast; see AutoFastGenerator.

        Args:
            models: as in ``build_generator``.
            args: as in ``build_generator``.
            extra: the arguments of the generator of ``--decoding auto_fast`` itself.
        """
        original = super().build_generator  # type: ignore[misc]
        common = dict(extra)
        drafter = common.pop("drafter", None)

        def build(config: DecodingConfig) -> Any:
            own = common | {"config": config}
            if config.decoding in STOCK_DECODINGS:
                own = {n: v for n, v in own.items() if n not in _OUR_ARGUMENTS}
                return original(models, args, None, own)
            if config.drafter_path is not None:
                own["drafter"] = drafter
            return original(models, args, METHODS[config.decoding].load(), own)

        return build

    @functools.cached_property
    def drafters(self) -> Drafters:
        """The drafters of ``--drafter-path`` that are loaded so far."""
        return Drafters(self)


# Arguments of this package's generators that fairseq's does not have.
_OUR_ARGUMENTS = ("config", "src_dict", "keep_history")

_PAIRS: tuple[tuple[type, type, tuple[str, str]], ...] = (
    (BlockNatLoss, BlockNatModel, ("block_nat_loss", "block_nat")),
    (BlockwiseLoss, BlockwiseTransformer, ("blockwise_loss", "blockwise_transformer")),
)


def check_pair(model: Any, criterion: Any, cfg: Any) -> None:
    """Refuse a model, a criterion and settings that do not fit each other.

    Raises:
        UsageError: they do not fit; the message names the right one.
    """
    for loss, kind, names in _PAIRS:
        if isinstance(criterion, loss) and not isinstance(model, kind):
            raise option_error("--criterion", names[0], f"it with --arch {names[1]}")
        if isinstance(model, kind) and not isinstance(criterion, loss):
            given = type(criterion).__name__
            raise option_error("--criterion", given, f"{names[0]} with --arch {names[1]}")
    if cfg.decoding == "auto" and own_decoding([model]) is None:
        check_auto({name: getattr(cfg, name) for name in FLAGS_OF_AUTO})
    if isinstance(model, ReorderedTransformer):
        for name in ("left_pad_target", "load_alignments"):
            if getattr(cfg, name):
                raise option_error(flag(name), True, "reordered targets without")
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
            raise option_error("--left-pad-target", True, "--arch block_nat without it")
    if isinstance(model, BlockwiseTransformer) and cfg.left_pad_target:
        raise option_error("--left-pad-target", True, "--arch blockwise_transformer without it")
    if hasattr(model, "image_sizes") and cfg.left_pad_target:
        raise option_error("--left-pad-target", True, "a model of images without it")


def _first(name: str, sources: Sequence[Any]) -> Any:
    """Return an option from the first source that gives it; None if none does."""
    values = (getattr(source, name, None) for source in sources)
    return next((value for value in values if value not in (None, False)), None)
