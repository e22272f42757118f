"""The plugin's flags and methods on top of fairseq's ``translation`` task."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, register_task
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...config import ALL, OPTIONS
from ...errors import UsageError, option_error, refuse_unknown
from ...memory import keep_memory
from ...methods.configure import configure
from ...registry import DECODINGS, METHODS
from ...text.bpe import errors_named
from ..compat.checkpoints import OVERRIDES
from ..compat.command_line import sample_without_beam, show_flags_in_help
from ..compat.hub import refuse_unknown_keywords
from ..updates.adam import adam_step
from ..updates.dropout import quicken_dropout
from ..updates.kept import FLAG, keep_frozen_outputs
from .batches import EverySentence
from .choosing import ChoosesMethod, check_pair
from .flags import ParallelDecodingOptions, ParallelTranslationConfig
from .ordering import TargetsInOrder


class ParallelDecodingMixin(ChoosesMethod, EverySentence, TargetsInOrder):
    """Gives a fairseq translation task the plugin's methods; it precedes the task in the bases.

    The choice of the method, targets in another order, and batches with every sentence have a
    module each; this class has what fairseq calls to set up, load and train.
    """

    cfg: Any

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Check flags and data folder before loading; then set up as fairseq.

        The options of decoding are not a property of a model: with ``from_checkpoint`` the plugin's
        options in the checkpoint are reset, except those that the caller gives
        (``from_pretrained(..., decoding="hgj")``).

        Raises:
            UsageError: a flag is wrong, or the data folder or a dictionary is missing.
        """
        if kwargs.get("from_checkpoint"):
            asked = OVERRIDES.get() or {}
            for option in fields(ParallelDecodingOptions):
                if option.name in cfg:
                    cfg[option.name] = asked.get(option.name, option.default)
        configure(cfg)
        _check_data(cfg)
        task = super().setup_task(cfg, **kwargs)  # type: ignore[misc]
        if not kwargs.get("from_checkpoint"):
            _keep_pair(cfg)
        return task

    @classmethod
    def load_dictionary(cls, filename: str) -> Any:
        """As fairseq.

        Raises:
            UsageError: the file is missing, or no dictionary.
        """
        try:
            return super().load_dictionary(filename)  # type: ignore[misc]
        except Exception as error:  # fairseq raises many kinds
            raise option_error(
                "DATA",
                filename,
                "a dictionary that fairseq-preprocess wrote, with a word and its "
                f"count in each line ({_one_line(error)})",
            ) from error

    def build_bpe(self, args: Any) -> Any:
        """As fairseq.

        Raises:
            UsageError: a file of ``--bpe`` is missing, or not one of its kind.
        """
        with errors_named(getattr(args, "_name", None)):
            return super().build_bpe(args)  # type: ignore[misc]

    def build_criterion(self, *args: Any, **kwargs: Any) -> Any:
        """As fairseq; only training and validation call this."""
        self._has_criterion = True
        criterion = super().build_criterion(*args, **kwargs)  # type: ignore[misc]
        check_pair(self._model, criterion, self.cfg)
        self._quicken()
        return criterion

    def _quicken(self) -> None:
        """Make updates cost less, as the flags say; see ``updates``.

        Raises:
            UsageError: ``--keep-frozen-outputs``, and nothing is frozen.
        """
        gigabytes = self.cfg.keep_frozen_outputs
        if gigabytes < 0:
            raise option_error(FLAG, gigabytes, "gigabytes, 0 for none")
        if gigabytes and self._model is not None:
            keep_frozen_outputs(self._model, gigabytes)
        if self.cfg.fairseq_updates:
            return
        keep_memory()
        if self._model is not None:
            quicken_dropout(self._model)

    def optimizer_step(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """As fairseq; its Adam in one call."""
        if self.cfg.fairseq_updates or not adam_step(optimizer):
            super().optimizer_step(optimizer, *args, **kwargs)  # type: ignore[misc]

    def build_model(self, *args: Any, **kwargs: Any) -> Any:
        """As fairseq; the model is kept for the check against the criterion."""
        self._model = super().build_model(*args, **kwargs)  # type: ignore[misc]
        if self.cfg.eval_bleu:
            refuse_unknown("--eval-bleu-args", json.loads(self.cfg.eval_bleu_args), ALL)
        return self._model

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """As fairseq, on targets in the model's order; in bfloat16 with ``--autocast``."""
        with cpu_autocast(self.cfg.autocast):
            return super().train_step(*args, **kwargs)

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """As fairseq; the epoch, counted from 1, is kept for schedules by epochs."""
        self.epoch = epoch
        super().begin_epoch(epoch, model)  # type: ignore[misc]

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> Any:
        """As fairseq.

        Raises:
            UsageError: DATA has no such subset, or its files are damaged.
        """
        try:
            return super().load_dataset(split, *args, **kwargs)  # type: ignore[misc]
        except UsageError:
            raise
        except (FileNotFoundError, ValueError) as error:
            raise UsageError(
                f"DATA: got {self.cfg.data!r}, whose subset {split!r} is missing or damaged "
                f"({error}); allowed: a folder that fairseq-preprocess made, and a subset in it "
                "(--gen-subset, --train-subset, --valid-subset)"
            ) from error


def _one_line(error: object) -> str:
    """Return the words of an error, without line ends."""
    return " ".join(str(error).split())


@contextlib.contextmanager
def cpu_autocast(enabled: bool) -> Iterator[None]:
    """Compute products on the CPU in bfloat16, and attention by its plain formula.

    torch's fused attention takes five times as long for short sentences, mostly in the backward
    pass.
    """
    if not enabled:
        yield
        return
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        yield


def _check_data(cfg: Any) -> None:
    """Raise an error that names a missing data folder or dictionary."""
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
            dictionaries = sorted(f for f in os.listdir(folder) if f.startswith("dict."))
            raise UsageError(
                f"{name}: got {language!r}, but {path} is not there; allowed: a language with a "
                f"dictionary in DATA, which holds {', '.join(dictionaries) or 'none'}"
            )


def _keep_pair(cfg: Any) -> None:
    """Write the language pair into the configuration that fairseq-train saves.

    fairseq 0.12 writes a pair that it infers from DATA into a copy alone, so that checkpoints
    trained without -s and -t name none.
    """
    whole = cfg._get_parent() if OmegaConf.is_config(cfg) else None
    if whole is not None and "task" in whole:
        whole.task.source_lang, whole.task.target_lang = cfg.source_lang, cfg.target_lang


sample_without_beam(METHODS)
show_flags_in_help(
    "fairseq_paradec (parallel decoding)",
    ParallelDecodingOptions,
    {name: option.choices for name, option in OPTIONS.items()} | {"decoding": tuple(DECODINGS)},
)
refuse_unknown_keywords()

# A registered name cannot be registered again; the plugin's task replaces fairseq's.
TASK_REGISTRY.pop("translation", None)
TASK_DATACLASS_REGISTRY.pop("translation", None)


@register_task("translation", dataclass=ParallelTranslationConfig)
class ParallelTranslationTask(ParallelDecodingMixin, TranslationTask):
    """fairseq's ``translation``, with parallel decoding and an output for every sentence."""
