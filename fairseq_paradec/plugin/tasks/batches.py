"""Batches that contain every sentence."""

import functools
import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from ...batch import Batch
from ...decoding.stock_search import errors_named
from ...errors import option_error
from ...methods.base import Decoder
from ...methods.each_sentence import Hypotheses, decode_each, problems_of
from ...methods.stock import StockDecoder
from ..compat.given import GIVEN
from ..generators import batch_of, tensors_of

logger = logging.getLogger(__name__)


class EverySentence:
    """A part of the task: every sentence is in a batch and has a line in the output.

    fairseq itself drops a last batch whose size is not a multiple of eight, and stops at a sentence
    that is too long.
    """

    cfg: Any
    tgt_dict: Any
    _has_criterion = False
    _left_out: np.ndarray | None = None
    # In fairseq-interactive: how many lines there were, and the numbers of those of the last batch.
    _lines = 0
    _numbers: Tensor | None = None

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator, with every sentence in a batch.

        Outside training, batch sizes need not be multiples of eight. In generation, also from the
        training set, a sentence that exceeds the model's positions or ``--max-tokens`` is a batch
        of its own. ``inference_step`` gives a sentence that exceeds the positions an empty output.
        ``--skip-invalid-size-inputs-valid-test`` skips it, and those with such a reference.

        Raises:
            UsageError: ``--shard-id`` has no batch; or a reference exceeds the
                ``--max-target-positions`` that the user gave, and is not to be skipped.
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
        targets = getattr(dataset, "tgt_sizes", None)
        if kwargs.get("ignore_invalid_inputs", False):
            skipped = too_long if targets is None else too_long | (targets > limits[1])
            if skipped.any():
                logger.warning("%d sentences are too long and are skipped", skipped.sum())
            self._left_out |= skipped
            alone &= ~skipped
        elif targets is not None and "max_target_positions" in GIVEN.get():
            _check_references(targets, self.cfg.max_target_positions)
        kwargs["disable_iterator_cache"] = True  # batches are added to the iterator only once
        try:
            batches = super().get_batch_iterator(dataset, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._left_out = None
        more = [[i] for i in np.flatnonzero(alone).tolist()]
        batches._frozen_batches = (*batches.frozen_batches, *more)
        shards, count = kwargs.get("num_shards", 1), len(batches.frozen_batches)
        if kwargs.get("shard_id", 0) >= count > 0:  # fairseq divides by the time it took
            allowed = f"at most {count}, the number of batches; a smaller --batch-size makes more"
            raise option_error("--num-shards", shards, allowed)
        return batches

    def positions(self, models: Sequence[Any]) -> tuple[int, int]:
        """Return the longest source and target that task and models take."""
        longest: tuple[int, int] = utils.resolve_max_positions(
            self._own_positions, *(model.max_positions() for model in models)
        )
        return longest

    @functools.cached_property
    def _own_positions(self) -> tuple[int, int]:
        """The longest source and target by the task's own flags; omegaconf is slow to read."""
        own: tuple[int, int] = self.max_positions()  # type: ignore[attr-defined]
        return own

    def get_interactive_tokens_and_lengths(self, lines: list[str], *args: Any) -> Any:
        """As fairseq; only fairseq-interactive calls this."""
        self._lines += len(lines)
        return super().get_interactive_tokens_and_lengths(lines, *args)  # type: ignore[misc]

    def build_dataset_for_inference(self, src_tokens: Any, *args: Any, **kwargs: Any) -> Any:
        """As fairseq; the numbers of a batch are kept, which fairseq-interactive drops."""
        dataset: Any = super().build_dataset_for_inference(  # type: ignore[misc]
            src_tokens, *args, **kwargs
        )
        collate, first = dataset.collater, self._lines - len(src_tokens)

        def collater(*args: Any, **kwargs: Any) -> Any:
            batch = collate(*args, **kwargs)
            if self._lines > 0:
                self._numbers = first + batch["id"]
            return batch

        dataset.collater = collater
        return dataset

    def filter_indices_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        """Filter as fairseq in training; in generation drop the too long ones instead."""
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
        """Translate a batch; see ``decode_each``, and ``batch_of`` for what it may have."""
        if isinstance(generator, SequenceScorer):  # --score-reference does not translate
            return super().inference_step(generator, models, sample)  # type: ignore[misc]
        if "id" not in sample and self._numbers is not None:
            sample = sample | {"id": self._numbers}
        sources = self.source_dictionary  # type: ignore[attr-defined]
        batch = batch_of(sample, prefix_tokens, constraints, pad=sources.pad())
        self._check_words(batch.tokens, sources)
        if batch.prefix is not None:
            self._check_words(batch.prefix, self.tgt_dict)
        outputs = decode_each(
            functools.partial(self._search, generator, models, sample),
            batch,
            self.problems(models, batch),
            models,
            self.tgt_dict,
        )
        device = sample["net_input"]["src_tokens"].device
        return [[tensors_of(hypo, device) for hypo in hypos] for hypos in outputs]

    def _check_words(self, tokens: np.ndarray, words: Any) -> None:
        """Refuse tokens that a dictionary does not have; B×T."""
        last = int(tokens.max()) if tokens.size else 0
        if last >= len(words):
            raise option_error(
                "DATA",
                self.cfg.data,
                "a folder whose files fit its dictionaries; these have a "
                f"word {last}, and there are {len(words)}",
            )

    def _search(
        self,
        generator: Any,
        models: Sequence[Any],
        sample: dict[str, Any],
        batch: Batch,
    ) -> Hypotheses:
        """Decode by a generator, or by a decoder that measuring commands build.

        Args:
            generator: one of the plugin, fairseq's search, another one of somebody's; or a decoder.
            models: the models.
            sample: fairseq's batch of all sentences, which a generator is given.
            batch: those that can be translated.
        """
        if isinstance(generator, (Decoder, StockDecoder)):
            return generator.decode(batch)
        device = sample["net_input"]["src_tokens"].device

        def there(array: Any) -> Tensor:
            return torch.from_numpy(array).to(device)

        if len(batch) < len(sample["net_input"]["src_tokens"]):
            names = {"src_tokens": batch.tokens, "src_lengths": batch.lengths}
            sample = {"net_input": {name: there(part) for name, part in names.items()}}
            if batch.ids is not None:
                sample["id"] = there(batch.ids)
        sample = sample | {"drafts": batch.drafts}
        prefixes = None if batch.prefix is None else there(batch.prefix)
        with errors_named(generator, models, batch.constraints):
            hypos: Hypotheses = super().inference_step(  # type: ignore[misc]
                generator, models, sample, prefixes, batch.constraints
            )
        return hypos

    def problems(self, models: Sequence[Any], batch: Batch) -> list[str | None]:
        """Return for each sentence why it cannot be translated, or None."""
        sources = self.source_dictionary  # type: ignore[attr-defined]
        return problems_of(batch, self.positions(models)[0], sources)


def _check_references(lengths: np.ndarray, most: int) -> None:
    """Refuse references that are longer than ``--max-target-positions``, as fairseq does."""
    if count := int((lengths > most).sum()):
        raise option_error(
            "--max-target-positions",
            most,
            f"{lengths.max()} or more, the tokens of the longest reference; or "
            f"--skip-invalid-size-inputs-valid-test, which leaves {count} of {len(lengths)} "
            "sentences out",
        )
