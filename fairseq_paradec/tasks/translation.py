"""The plugin's flags and methods on top of fairseq's ``translation`` task."""

# No "from __future__ import annotations" and no "int | None" in the configuration: fairseq reads
# the types of its fields, and knows Optional only.
# ruff: noqa: UP045

import contextlib
import functools
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Optional

import numpy as np
import torch
from fairseq import options, utils
from fairseq.data import data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import DictConfig, open_dict
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..compat.checkpoints import OVERRIDES
from ..criterions.block_nat_loss import BlockNatLoss
from ..criterions.blockwise_loss import BlockwiseLoss
from ..decoding.hypotheses import empty_hypothesis
from ..decoding.samples import select_rows
from ..errors import UsageError, option_error
from ..methods import METHODS
from ..models.block_nat import BlockNatModel
from ..models.blockwise_transformer import BlockwiseTransformer
from ..models.reordered_transformer import ReorderedTransformer
from ..options import (
    BEAM_DECODINGS,
    CHOICES,
    COMMON_FLAGS,
    DECODINGS,
    FLAGS_OF_AUTO,
    FLAGS_OF_METHOD,
    STOCK_DECODINGS,
    TRAINED_BLOCKS,
    DecodingConfig,
    flag,
)
from ..options import check_fairseq_options as check_options
from ..target_order import TargetOrder, order_of
from .drafters import Drafters, check_models, own_decoding

logger = logging.getLogger(__name__)


def _flag(help_text: str, default: Any = None) -> Any:
    """Make a field of the task's configuration, and so a flag of every fairseq command."""
    return field(default=default, metadata={"help": help_text})


@dataclass
class ParallelDecodingOptions(FairseqDataclass):
    """The plugin's flags; None means "the method's default"."""

    decoding: str = _flag(
        "how to decode: " + ", ".join(DECODINGS) + ". auto: the checkpoint's own way, which for a "
        "plain Transformer is fairseq's own beam search; beam: that search in any case; greedy: "
        "its --beam 1 on this plugin's decoder; pj, pgj, hgj: Jacobi decoding, with greedy's "
        "output, for any trained Transformer; gad: a model of --arch block_nat drafts and the "
        "Transformer of --path verifies, with greedy's output; gad_pp: the same in fewer passes, "
        "with an output near greedy's; nat: the block_nat model of --path alone; blockwise: heads "
        "of the Transformer itself look ahead (--arch blockwise_transformer), with its greedy "
        "output unless a flag accepts more; auto_fast: whichever of these is fastest here with "
        "greedy's output, found out on the first sentences",
        "auto",
    )
    block_size: Optional[int] = _flag(
        "pgj, hgj: tokens guessed and re-predicted per pass (default 5); gad, gad_pp, nat: tokens "
        "drafted per pass (default: as in the drafter's training); blockwise: tokens in a block, "
        "the Transformer's own next token and what its heads add (default: as in training)"
    )
    drafter_path: Optional[str] = _flag(
        "gad, gad_pp: the drafter's checkpoint, a model of --arch block_nat; blockwise: heads that "
        "were trained on the model of --path, if these are not in it"
    )
    accept_topk: Optional[int] = _flag(
        "gad_pp: beta: accept a drafted token only if it is among the verifier's top beta (default "
        "3, for quality; 5 for speed); blockwise: accept a drafted token that is among so many "
        "(default 1: only greedy's own)"
    )
    accept_margin: Optional[float] = _flag(
        "gad_pp: tau: and only if its log-probability (natural) is at most this far below the best "
        "one's (default 1.0, for quality; 3.0 for speed)"
    )
    accept_distance: Optional[int] = _flag(
        "blockwise: epsilon: accept a drafted number that is at most this far from the verifier's "
        "(default: it must be the same); for dictionaries of whole numbers, as of pixels"
    )
    min_block: Optional[int] = _flag(
        "blockwise: l: write at least so many tokens a step, whatever the verifier says of them "
        "(default 1); costs much quality"
    )
    jacobi_window: Optional[str] = _flag(
        "pgj, hgj: what follows a pass: " + " or ".join(CHOICES["jacobi_window"]) + ". block (the "
        "paper's, default): stay until the block is done; sliding: move on by what became final, "
        "so that each pass predicts a whole block"
    )
    jacobi_init: Optional[str] = _flag(
        "pj, pgj, hgj: the first guess for a position: "
        + ", ".join(CHOICES["jacobi_init"])
        + " (default pad). bos: the decoder's start symbol; source-copy: the source token there "
        "(needs a joined dictionary); ngram: what followed the token before it in earlier passes"
    )
    jacobi_length: Optional[str] = _flag(
        "pj: length of the block: grow (default): the source's length, doubled until the sentence "
        "ends; oracle: greedy's own output length, found outside the timer (the paper's ideal)"
    )
    jacobi_stop: Optional[str] = _flag(
        "pj, pgj, hgj: a block is done when: prefix (default): all of it is final; unchanged: a "
        "pass changed none of its tokens (the paper's equation 5, for its counts)"
    )
    hybrid_length: Optional[int] = _flag(
        "hgj: decode this many positions in blocks and the rest one by one (default: all in blocks)"
    )
    adaptive_block: bool = _flag(
        "gad, gad_pp, blockwise, and pgj and hgj with a sliding window: let a sentence's block be "
        "as long as its last passes accepted, and a little more; --block-size is then the most",
        False,
    )
    drafter_shortlist: Optional[int] = _flag(
        "gad, gad_pp, blockwise: draft only tokens among so many first ones of the dictionary, "
        "which fairseq-preprocess sorts by frequency (default: all); cheaper drafts, and greedy's "
        "output all the same"
    )
    speed_profile: Optional[str] = _flag(
        "auto_fast: a JSON file with what earlier runs measured on this machine; what is measured "
        "now is added (default: measure anew in each run)"
    )
    latency_budget_ms: Optional[float] = _flag(
        "auto_fast: take the decoder of the best quality whose sentences take at most so many "
        "milliseconds, fairseq's beam search and gad_pp among them (default: the fastest with "
        "greedy's output)"
    )
    deduplicate_ngrams: Optional[int] = _flag(
        "multiword_beam, double_token_beam: drop immediate repetitions of up to this many tokens "
        "from the outputs (default: none); words written in one step do not know of each other"
    )
    compile: bool = _flag(
        "compile this plugin's passes for this machine (torch.compile; the first run of a model "
        "takes a minute or two longer, later ones find it on the disk)",
        False,
    )
    engine_dtype: Optional[str] = _flag(
        "dtype of the weights in this plugin's passes: " + ", ".join(CHOICES["engine_dtype"]) + " "
        "(default: the model's own); int8 is dynamic quantisation, on the CPU. Below fp32 the "
        "output is no longer greedy's to the last token: --audit says how often"
    )
    audit: bool = _flag(
        "compare every output with fairseq's own beam-1 search and report where they part", False
    )
    stats_file: Optional[str] = _flag(
        "write one JSON line per decoded sentence here: passes, tokens, scores"
    )
    trace_file: Optional[str] = _flag(
        "write one JSON line per decoded sentence here, with every pass: draft, verdict, the "
        "verifier's tokens, their log-probabilities and the runners-up"
    )


@dataclass
class ParallelTranslationConfig(TranslationConfig, ParallelDecodingOptions):
    """fairseq's translation options and the plugin's."""

    autocast: bool = _flag(
        "train on the CPU with products in bfloat16 (torch.autocast); weights and updates stay "
        "fp32. Twice as fast where the CPU has bfloat16 instructions",
        False,
    )


class ParallelDecodingMixin:
    """Gives a fairseq translation task the plugin's methods; put before it among the bases.

    It also keeps every sentence in the output: fairseq drops a last batch whose size is no multiple
    of eight, and stops at a sentence that is too long.
    """

    cfg: Any
    tgt_dict: Any
    _has_criterion = False
    _left_out: Optional[np.ndarray] = None
    _model: Any = None

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Check flags and data folder before anything is loaded; then as fairseq.

        How a model was decoded while it was trained is no property of it: with
        ``from_checkpoint`` the plugin's options of that command are forgotten, but for those that
        the caller gives (``from_pretrained(..., decoding="hgj")``).

        Raises:
            UsageError: a flag is wrong, or the data folder or a dictionary is missing.
        """
        if kwargs.get("from_checkpoint"):
            asked = OVERRIDES.get() or {}
            for option in fields(ParallelDecodingOptions):
                if option.name in cfg:
                    cfg[option.name] = asked.get(option.name, option.default)
        DecodingConfig.from_options(cfg)
        _check_data(cfg)
        return super().setup_task(cfg, **kwargs)  # type: ignore[misc]

    def build_criterion(self, *args: Any, **kwargs: Any) -> Any:
        """As fairseq; only training and validation come here."""
        self._has_criterion = True
        criterion = super().build_criterion(*args, **kwargs)  # type: ignore[misc]
        _check_pair(self._model, criterion, self.cfg)
        return criterion

    def build_model(self, *args: Any, **kwargs: Any) -> Any:
        """As fairseq; the model is remembered, to be compared with the criterion."""
        self._model = super().build_model(*args, **kwargs)  # type: ignore[misc]
        return self._model

    # ---- targets in another order --------------------------------------------------------------

    def train_step(self, sample: dict[str, Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """As fairseq, on targets in the model's order; in bfloat16 with ``--autocast``."""
        sample = self.in_model_order(sample)
        with cpu_autocast(self.cfg.autocast):
            return super().train_step(sample, model, *args, **kwargs)  # type: ignore[misc]

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any) -> Any:
        """As fairseq, on targets in the model's order."""
        sample = self.in_model_order(sample)
        return super().valid_step(sample, model, criterion)  # type: ignore[misc]

    def in_model_order(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Write the targets of a batch as the model is trained on them.

        Args:
            sample: fairseq's, with ``target`` in natural order.

        Returns:
            The same for a model that writes from left to right; else a copy with other ``target``,
            ``net_input.prev_output_tokens`` and ``ntokens``, and the old one under
            ``natural_target``.
        """
        return in_order(sample, order_of(self._model), self.tgt_dict)

    def _inference_with_bleu(self, generator: Any, sample: dict[str, Any], model: Any) -> Any:
        """As fairseq, with references in natural order."""
        sample = sample | {"target": sample.get("natural_target", sample["target"])}
        return super()._inference_with_bleu(generator, sample, model)  # type: ignore[misc]

    # ---- choosing ------------------------------------------------------------------------------

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> Any:
        """As fairseq.

        Raises:
            UsageError: DATA has no such subset, or its files are damaged.
        """
        try:
            return super().load_dataset(split, *args, **kwargs)  # type: ignore[misc]
        except (FileNotFoundError, ValueError) as error:
            raise UsageError(
                f"DATA: got {self.cfg.data!r}, whose subset {split!r} is missing or damaged "
                f"({error}); allowed: a folder that fairseq-preprocess made, and a subset in it "
                "(--gen-subset, --train-subset, --valid-subset)"
            ) from error

    # ---- no sentence is lost -------------------------------------------------------------------

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """As fairseq, but for every sentence being in some batch.

        Outside training, batches need not be multiples of eight. When generating, also from the
        training set, a sentence that is longer than the model's positions or than ``--max-tokens``
        comes alone in a batch of its own; ``inference_step`` gives the former an empty output,
        unless ``--skip-invalid-size-inputs-valid-test`` asks to skip it.
        """
        train = self.datasets.get(self.cfg.train_subset)  # type: ignore[attr-defined]
        if not self._has_criterion or dataset is not train:
            kwargs["required_batch_size_multiple"] = 1
        limits: Any = kwargs.get("max_positions")
        if self._has_criterion or not isinstance(limits, tuple):
            return super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        too_long = dataset.src_sizes > limits[0]
        sizes = dataset.num_tokens_vec(np.arange(len(dataset)))
        self._left_out = too_long | (sizes > (kwargs.get("max_tokens") or sys.maxsize))
        alone = self._left_out.copy()
        if kwargs.get("ignore_invalid_inputs", False) and too_long.any():
            logger.warning("%d sentences are too long and are skipped", too_long.sum())
            alone &= ~too_long
        kwargs["disable_iterator_cache"] = True  # what is added to an iterator is added once
        try:
            batches = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._left_out = None
        more = [[i] for i in np.flatnonzero(alone).tolist()]
        batches._frozen_batches = (*batches.frozen_batches, *more)
        return batches

    def filter_indices_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        """As fairseq in training; when generating, leave out what ``get_batch_iterator`` found."""
        if self._left_out is None:
            return super().filter_indices_by_size(indices, *args, **kwargs)  # type: ignore[misc]
        return indices[~self._left_out[indices]]

    def inference_step(
        self,
        generator: Any,
        models: Sequence[Any],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch; rows that cannot be translated get an empty output, and a word why."""
        if isinstance(generator, SequenceScorer):  # --score-reference translates nothing
            return self._score(generator, models, sample)
        src_tokens = sample["net_input"]["src_tokens"]
        problems = self._problems(models, src_tokens)
        good = [b for b, problem in enumerate(problems) if problem is None]
        ids = sample["id"].tolist() if "id" in sample else [None] * len(problems)
        for sample_id, problem in zip(ids, problems, strict=True):
            if problem is not None:
                logger.warning(
                    "%s %s; its output is empty",
                    "a sentence" if sample_id is None else f"sentence {sample_id}", problem,
                )  # fmt: skip
        if len(good) == len(problems):
            return super().inference_step(  # type: ignore[misc]
                generator, models, sample, prefix_tokens, constraints
            )
        eos = self.tgt_dict.eos()
        hypos = [[empty_hypothesis(eos, src_tokens.device)] for _ in problems]
        if good:
            decoded = super().inference_step(  # type: ignore[misc]
                generator,
                models,
                select_rows(sample, good, self.tgt_dict.pad()),
                None if prefix_tokens is None else prefix_tokens[good],
                None if constraints is None else constraints[good],
            )
            for b, hypo in zip(good, decoded, strict=True):
                hypos[b] = hypo
        return hypos

    def _score(
        self, generator: Any, models: Sequence[Any], sample: dict[str, Any]
    ) -> list[list[dict[str, Any]]]:
        """Score the targets of a batch; scores come in natural order whatever the model's."""
        order = order_of(models[0])
        written = in_order(sample, order, self.tgt_dict)
        hypos = super().inference_step(generator, models, written)  # type: ignore[misc]
        if order == TargetOrder():
            return hypos
        eos, pad = self.tgt_dict.eos(), self.tgt_dict.pad()
        for row, (hypo,) in zip(sample["target"], hypos, strict=True):
            tokens = row[row.ne(pad)]  # n words, </s>
            count = len(tokens) - 1
            places = order.sources(torch.tensor([count]), count)[0]
            scores = hypo["positional_scores"]
            natural = torch.empty_like(scores[: count + 1])
            natural[places] = scores[:count]
            natural[count] = scores[count : len(hypo["tokens"])].sum()  # each </s> of a pair
            assert tokens[-1] == eos
            hypo |= {"tokens": tokens, "positional_scores": natural}
            hypo["score"] = natural.sum() / len(natural)
        return hypos

    def _problems(self, models: Sequence[Any], src_tokens: Tensor) -> list[str | None]:
        """Say for each row why it cannot be translated, or None.

        Args:
            models: the models; their positions limit the source.
            src_tokens: B×S.
        """
        pad = self.tgt_dict.pad()
        real = src_tokens.ne(pad)
        lengths = real.sum(dim=1).tolist()
        words = (real & src_tokens.ne(self.tgt_dict.eos())).sum(dim=1).tolist()
        own = self.max_positions()  # type: ignore[attr-defined]
        limit = utils.resolve_max_positions(own, *(m.max_positions() for m in models))[0]
        problems: list[str | None] = []
        for tokens, length, count in zip(src_tokens, lengths, words, strict=True):
            if count == 0:
                problems.append("is empty")
            elif length > limit:
                start = self.source_dictionary.string(tokens[tokens.ne(pad)][:5])  # type: ignore[attr-defined]
                problems.append(f"({start} ...) has {length} tokens, and the model takes {limit}")
            else:
                problems.append(None)
        return problems

    # ---- choosing the method -------------------------------------------------------------------

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
            args: fairseq's generation options, in which the plugin's may stand too (hub calls,
                ``--eval-bleu-args``) and then win over the command line's.
            seq_gen_cls: fairseq's; refused beside a method of the plugin's.
            extra_gen_cls_kwargs: fairseq's.
            prefix_allowed_tokens_fn: fairseq's; only its own search can honour it.

        Raises:
            UsageError: options that the method cannot honour, or a model that it cannot decode.
        """
        asked = [args, self.cfg]
        config = DecodingConfig.from_options(*asked)
        extra = dict(extra_gen_cls_kwargs or {})
        own = own_decoding(models)
        is_auto = config.decoding == "auto"
        if is_auto:  # comes without other flags than these
            wanted = {name: _first(name, asked) for name in FLAGS_OF_AUTO}
            if own is None:
                _check_auto(wanted)
            else:
                asked = [Namespace(decoding=own, **wanted)]
                config = DecodingConfig.from_options(*asked)
        check_models(config.decoding, models, config.drafter_path)
        if is_auto and own != "nat" and getattr(args, "score_reference", False):
            return super().build_generator(models, args)  # type: ignore[misc]
        drafts = getattr(models[0], "block_heads", models[0])
        if config.drafter_path is not None:
            drafts = self.drafters.load(config.drafter_path, config.decoding, models)
            extra["drafter"] = drafts
        if config.decoding in TRAINED_BLOCKS and hasattr(drafts, "block_size"):
            # What nobody asked for is as it was in training.
            trained = Namespace(decoding=config.decoding, block_size=drafts.block_size)
            config = DecodingConfig.from_options(*asked, trained)
        if config.decoding in STOCK_DECODINGS:
            return super().build_generator(  # type: ignore[misc]
                models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn
            )
        given = dict(args) if isinstance(args, DictConfig) else dict(vars(args))
        given |= {"prefix_allowed_tokens_fn": prefix_allowed_tokens_fn, "seq_gen_cls": seq_gen_cls}
        given["lm_model"] = extra.get("lm_model")
        check_options(config, given)
        if config.decoding not in BEAM_DECODINGS and config.latency_budget_ms is None:
            # fairseq's default is 5, and generate prints it beside the BLEU score.
            set_options(args, {"beam": 1})
        extra |= {
            "config": config,
            "src_dict": self.source_dictionary,  # type: ignore[attr-defined]
            "keep_history": given.get("retain_iter_history", False),
        }
        if config.decoding == "auto_fast":
            extra["build"] = self._builder(models, args, extra)
        return super().build_generator(  # type: ignore[misc]
            models, args, METHODS[config.decoding], extra
        )

    def _builder(
        self, models: Sequence[Any], args: Any, extra: dict[str, Any]
    ) -> Callable[[DecodingConfig], Any]:
        """Return what builds one of auto_fast's candidates; see AutoFastGenerator.

        Args:
            models: as in ``build_generator``.
            args: the same.
            extra: what the generator of ``--decoding auto_fast`` itself is given.
        """
        original = super().build_generator  # type: ignore[misc]
        common = dict(extra)
        drafter = common.pop("drafter", None)

        def build(config: DecodingConfig) -> Any:
            own = common | {"config": config}
            if config.decoding == "beam":
                own = {n: v for n, v in own.items() if n not in _OUR_ARGUMENTS}
                return original(models, args, None, own)
            if config.drafter_path is not None:
                own["drafter"] = drafter
            return original(models, args, METHODS[config.decoding], own)

        return build

    @functools.cached_property
    def drafters(self) -> Drafters:
        """What ``--drafter-path`` has named so far."""
        return Drafters(self)


@contextlib.contextmanager
def cpu_autocast(enabled: bool) -> Iterator[None]:
    """Compute products on the CPU in bfloat16, and attention by its plain formula.

    torch's fused attention takes five times as long for short sentences, most of it backwards.
    """
    if not enabled:
        yield
        return
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        yield


# Of a generator of this package, beside fairseq's.
_OUR_ARGUMENTS = ("config", "src_dict", "keep_history")


def in_order(sample: dict[str, Any], order: TargetOrder, words: Any) -> dict[str, Any]:
    """Write the targets of a batch in an order; see ParallelDecodingMixin.in_model_order."""
    if order == TargetOrder() or not sample or sample.get("target") is None:
        return sample
    batch = order.training_batch(sample["target"], words.bos(), words.eos(), words.pad())
    net_input = sample["net_input"] | {"prev_output_tokens": batch.prev_output_tokens}
    return sample | {
        "net_input": net_input,
        "target": batch.target,
        "natural_target": sample["target"],
        "ntokens": batch.target.ne(words.pad()).sum().item(),
    }


_PAIRS: tuple[tuple[type, type, tuple[str, str]], ...] = (
    (BlockNatLoss, BlockNatModel, ("block_nat_loss", "block_nat")),
    (BlockwiseLoss, BlockwiseTransformer, ("blockwise_loss", "blockwise_transformer")),
)


def _check_pair(model: Any, criterion: Any, cfg: Any) -> None:
    """Refuse a model, a criterion and settings that were not made for each other.

    Raises:
        UsageError: naming the right one.
    """
    for loss, kind, names in _PAIRS:
        if isinstance(criterion, loss) and not isinstance(model, kind):
            raise option_error("--criterion", names[0], f"it with --arch {names[1]}")
        if isinstance(model, kind) and not isinstance(criterion, loss):
            given = type(criterion).__name__
            raise option_error("--criterion", given, f"{names[0]} with --arch {names[1]}")
    if cfg.decoding == "auto" and own_decoding([model]) is None:
        _check_auto({name: getattr(cfg, name) for name in FLAGS_OF_AUTO})
    if isinstance(model, ReorderedTransformer):
        for name in ("left_pad_target", "load_alignments"):
            if getattr(cfg, name):
                raise option_error(f"--{name.replace('_', '-')}", True, "reordered targets without")
        ignored = getattr(criterion, "ignore_prefix_size", 0)
        if ignored and not model.target_order.keeps_prefix:
            raise option_error(
                "--ignore-prefix-size", ignored, "0 with a model that writes in another order"
            )
    if isinstance(model, BlockNatModel):
        model.check_prefixes(criterion.prefixes, criterion.tokens_per_prefix)
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


def _check_auto(given: dict[str, Any]) -> None:
    """Refuse what ``--decoding auto`` would ignore with a model that has no way of its own."""
    for name, value in given.items():
        if value not in (None, False):
            users = [m for m, flags in FLAGS_OF_METHOD.items() if name in (*flags, *COMMON_FLAGS)]
            raise option_error(
                flag(name), value,
                "nothing with --decoding auto and this model, which fairseq's own search decodes; "
                "or a method that reads it: " + ", ".join(users),
            )  # fmt: skip


def set_options(args: Any, values: dict[str, Any]) -> None:
    """Set options, in a Namespace or in a configuration whose keys are fixed."""
    with open_dict(args) if isinstance(args, DictConfig) else contextlib.nullcontext():
        for name, value in values.items():
            setattr(args, name, value)


def _check_data(cfg: Any) -> None:
    """Name a missing data folder or dictionary, and what was looked for."""
    folders = utils.split_paths(cfg.data)
    if not folders:
        raise option_error("DATA", cfg.data, "a folder made by fairseq-preprocess")
    folder = folders[0]
    if not os.path.isdir(folder):
        raise option_error("DATA", folder, "a folder that fairseq-preprocess made; there is none")
    pair = [cfg.source_lang, cfg.target_lang]
    if None in pair:
        inferred = data_utils.infer_language_pair(folder)
        pair = [a or b for a, b in zip(pair, inferred, strict=True)]
    if None in pair:
        raise option_error(
            "DATA", folder, "a folder with files like test.en-de.en.bin, or both languages (-s, -t)"
        )
    for name, language in zip(("-s", "-t"), pair, strict=True):
        path = os.path.join(folder, f"dict.{language}.txt")
        if not os.path.isfile(path):
            found = sorted(f for f in os.listdir(folder) if f.startswith("dict."))
            raise UsageError(
                f"{name}: got {language!r}, but {path} is not there; allowed: a language with a "
                f"dictionary in DATA, which holds {', '.join(found) or 'none'}"
            )


def show_flags_in_help() -> None:
    """Let ``--help`` of every fairseq command list the plugin's flags.

    fairseq prints the help before it asks the task for its flags, so that they are missing there.
    """
    original = options.parse_args_and_arch

    @functools.wraps(original)
    def parse(parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = sys.argv[1:] if input_args is None else input_args
        if {"-h", "--help"} & set(given):
            group = parser.add_argument_group("fairseq_paradec (parallel decoding)")
            gen_parser_from_dataclass(group, ParallelDecodingOptions())
        return original(parser, input_args, *args, **kwargs)

    options.parse_args_and_arch = parse


show_flags_in_help()

# A registered name cannot be registered again; the plugin's task takes the place of fairseq's.
TASK_REGISTRY.pop("translation", None)
TASK_DATACLASS_REGISTRY.pop("translation", None)


@register_task("translation", dataclass=ParallelTranslationConfig)
class ParallelTranslationTask(ParallelDecodingMixin, TranslationTask):
    """fairseq's ``translation``, with parallel decoding and no sentence lost."""
