"""Super-resolution (Stern et al. 2018, section 7.2): pairs of images, each one a sentence."""

# No "int | None": see flags.py.
# ruff: noqa: UP045

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from fairseq import utils
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask

from .. import images
from ..batch import Batch
from ..config import flag
from ..errors import UsageError, excludes, option_error
from ..plugin.tasks import loading
from ..plugin.tasks.flags import ParallelTranslationConfig, set_options
from ..plugin.tasks.translation import ParallelDecodingMixin
from .intensities import dictionary

# fairseq's default limits of an output.
IDLE_LIMITS = {"max_len_a": 0, "max_len_b": 200, "min_len": 1, "unkpen": 0}
# Flags for sentences of several lengths, and their default values.
IDLE_POSITIONS = {"max_source_positions": 1024, "max_target_positions": 1024}
# A new model's positions beyond an image's: a model with several tokens per step rounds them down.
SPARE = 8
IDLE_PADDING = {"truncate_source": False, "required_seq_len_multiple": 1, "num_batch_buckets": 0}

loading.OWN_TASKS[images.SIZES] = images.TASK


@dataclass
class ImageSuperResolutionConfig(ParallelTranslationConfig):
    """The options of ``translation``; those that follow from the images' sizes are not needed."""

    source_lang: Optional[str] = field(
        default=images.LANGUAGES[0],
        metadata={"help": "name of the small images (default: lr)", "argparse_alias": "-s"},
    )
    target_lang: Optional[str] = field(
        default=images.LANGUAGES[1],
        metadata={"help": "name of the large images (default: hr)", "argparse_alias": "-t"},
    )


@register_task(images.TASK, dataclass=ImageSuperResolutionConfig)
class ImageSuperResolutionTask(ParallelDecodingMixin, TranslationTask):
    """Pairs of a small image and the large one, as paradec data images makes them.

    An output is one image: its intensities, and ``</s>``.
    """

    image_sizes: tuple[images.Size, images.Size]  # the sizes of inputs and of outputs

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """As ``translation``; the data folder must be one of images.

        Raises:
            UsageError: it is another folder, or a flag is wrong or contradicts the images' sizes.
        """
        task = super().setup_task(cfg, **kwargs)
        folder = utils.split_paths(cfg.data)[0]
        task.image_sizes = images.read_sizes(folder)
        for language, words in (
            (cfg.source_lang, task.source_dictionary),
            (cfg.target_lang, task.target_dictionary),
        ):
            if words != dictionary():
                raise UsageError(
                    f"DATA: got {folder!r}, whose dict.{language}.txt has other words than the "
                    f"intensities; allowed: 0 to {images.PEAK}, in this order"
                )
        needed = dict(zip(IDLE_POSITIONS, task.max_positions(), strict=True))
        for name, idle in IDLE_POSITIONS.items():
            given = getattr(cfg, name)
            if given not in (idle, needed[name]):
                raise option_error(
                    flag(name), given, f"nothing, or {needed[name]}, which an image takes"
                )
        return task

    def max_positions(self) -> tuple[int, int]:
        """Return the number of tokens of an input and of an output, with ``</s>``."""
        small, large = self.image_sizes
        return small.num_tokens + 1, large.num_tokens + 1

    # ---- data and models -----------------------------------------------------------------------

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> Any:
        """As ``translation``; the number of tokens of every image must fit its size.

        Raises:
            UsageError: a number does not fit, or a flag sets lengths that images do not have.
        """
        for name, idle in IDLE_PADDING.items():
            given = getattr(self.cfg, name)
            if given != idle:
                raise option_error(flag(name), given, f"{idle}: images are of one length")
        super().load_dataset(split, *args, **kwargs)
        dataset = self.datasets[split]
        names = (self.cfg.source_lang, self.cfg.target_lang)
        lengths = (dataset.src_sizes, dataset.tgt_sizes)
        for name, counts, size in zip(names, lengths, self.image_sizes, strict=True):
            if counts is None:
                continue
            wrong = np.flatnonzero(counts != size.num_tokens + 1)
            if wrong.size:
                raise UsageError(
                    f"DATA: got {self.cfg.data!r}, in whose {split!r} the {name} image {wrong[0]} "
                    f"has {counts[wrong[0]] - 1} intensities; allowed: {size.num_tokens}, for "
                    f"{size}, as {images.SIZES} says"
                )

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As ``translation``; a model to train gets as many positions as an image has tokens.

        Raises:
            UsageError: the model is for images of other sizes, or has fewer positions.
        """
        if not from_checkpoint:
            for name, size in zip(IDLE_POSITIONS, self.max_positions(), strict=True):
                set_options(cfg, {name: max(size + SPARE, getattr(cfg, name, None) or 0)})
        model = super().build_model(cfg, from_checkpoint)
        own, there = self.image_sizes, getattr(model, "image_sizes", self.image_sizes)
        if own != there:
            raise option_error(
                "DATA",
                self.cfg.data,
                f"images of {there[0]} and {there[1]}, as the model's; these are of {own[0]} and "
                f"{own[1]}",
            )
        positions = model.max_positions()
        if any(has < size for has, size in zip(positions, self.max_positions(), strict=True)):
            raise option_error(
                "--path",
                f"a {type(model).__name__} with {positions} positions",
                f"one with at least {self.max_positions()}, which these images take",
            )
        return model

    # ---- decoding ------------------------------------------------------------------------------

    def own_context(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Suppress ``<s>``, which is no intensity.

        fairseq does not suppress ``<unk>`` this way; an infinite penalty does.
        """
        context = super().own_context(given)
        symbols = {*context.get("tokens_to_suppress", ()), self.tgt_dict[self.tgt_dict.bos()]}
        return context | {"tokens_to_suppress": tuple(sorted(symbols))}

    def own_limits(self, asked: Any) -> dict[str, Any]:
        """Return the length of one image, as fairseq's limits.

        Raises:
            UsageError: the options set other limits.
        """
        size = self.image_sizes[1]
        count = size.num_tokens
        limits = {"max_len_a": 0, "max_len_b": count, "min_len": count, "unkpen": math.inf}
        for name, wanted in limits.items():
            given = getattr(asked, name, None)
            if given not in (None, IDLE_LIMITS[name], wanted):
                raise option_error(
                    flag(name),
                    given,
                    f"nothing, or {wanted}: an image of {size} has {count} intensities and no "
                    "other tokens",
                )
        if getattr(asked, "match_source_len", False):
            raise excludes("--match-source-len", True, "images, whose outputs are larger")
        return limits

    def problems(self, models: Sequence[Any], batch: Batch) -> list[str | None]:
        """Return for each row why it is no image of the right size, or None."""
        words = self.source_dictionary
        size = self.image_sizes[0]
        problems: list[str | None] = []
        for row in batch.tokens.tolist():
            tokens = [token for token in row if token not in (words.pad(), words.eos())]
            others = sum(token < words.nspecial for token in tokens)
            if not tokens:
                problems.append("is empty")
            elif len(tokens) != size.num_tokens:
                problems.append(
                    f"has {len(tokens)} intensities, and an image of {size} has {size.num_tokens}"
                )
            elif others:
                problems.append(
                    f"has {others} symbols that are no intensities (0 to {images.PEAK})"
                )
            else:
                problems.append(None)
        return problems
