"""Batches that contain every sentence."""

import functools
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from ...decoding.hypotheses import empty_hypothesis
from ...decoding.samples import select_rows
from ...errors import nan_error, needs, option_error
from ...methods.base import Decoder
from ...methods.stock import StockDecoder
from ..compat.given import GIVEN
from .first_token import drafts_from_first, forced_prefix

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
        """Translate a batch; rows that cannot be translated get an empty output and a warning.

        Outputs begin with the model's first token, if it has one, and with the prefix. A batch may
        have ``drafts``, earlier outputs of its sentences; see Decoder.decode.
        """
        if isinstance(generator, SequenceScorer):  # --score-reference does not translate
            return super().inference_step(generator, models, sample)  # type: ignore[misc]
        src_tokens = sample["net_input"]["src_tokens"]
        self._check_words(src_tokens, self.source_dictionary)  # type: ignore[attr-defined]
        if prefix_tokens is not None:
            self._check_words(prefix_tokens, self.tgt_dict)
        prefix_tokens = forced_prefix(models, src_tokens, prefix_tokens, self.tgt_dict)
        if "id" not in sample and self._numbers is not None:
            sample = sample | {"id": self._numbers}
        if "drafts" in sample:
            drafts = drafts_from_first(models, sample["drafts"], self.tgt_dict)
            sample = sample | {"drafts": drafts}
        problems = self.problems(models, src_tokens)
        good = [b for b, problem in enumerate(problems) if problem is None]
        ids = sample["id"].tolist() if "id" in sample else [None] * len(problems)
        for sample_id, problem in zip(ids, problems, strict=True):
            if problem is not None:
                logger.warning(
                    "%s %s; its output is empty",
                    "a sentence" if sample_id is None else f"sentence {sample_id}",
                    problem,
                )
        if len(good) == len(problems):
            return self._search(generator, models, sample, prefix_tokens, constraints)
        eos = self.tgt_dict.eos()
        hypos = [[tensors_of(empty_hypothesis(eos)) | {"problem": problem}] for problem in problems]
        if good:
            decoded = self._search(
                generator,
                models,
                select_rows(sample, good, self.tgt_dict.pad()),
                None if prefix_tokens is None else prefix_tokens[good],
                None if constraints is None else constraints[good],
            )
            for b, hypo in zip(good, decoded, strict=True):
                hypos[b] = hypo
        return hypos

    def _check_words(self, tokens: Tensor, words: Any) -> None:
        """Refuse tokens that a dictionary does not have; B×T."""
        last = int(tokens.max()) if tokens.numel() else 0
        if last >= len(words):
            raise option_error(
                "DATA",
                self.cfg.data,
                "a folder whose files fit its dictionaries; these have a "
                f"word {last}, and there are {len(words)}",
            )

    def _search(self, generator: Any, models: Sequence[Any], *batch: Any) -> Any:
        """As fairseq's ``inference_step``.

        Raises:
            UsageError: the model gives NaN, where fairseq's own search asserts that a sentence
                ends; or its search needs constraints, and the batch has none.
        """
        search = getattr(generator, "search", None)
        search = getattr(search, "search", search)
        if getattr(search, "supports_constraints", False) and batch[-1] is None:
            needed = "fairseq-interactive, which reads constraints behind the sentence"
            raise needs("--constraints", True, needed)
        try:
            if isinstance(generator, (Decoder, StockDecoder)):
                outputs = generator.decode(*batch)
                return [[tensors_of(hypo) for hypo in hypos] for hypos in outputs]
            return super().inference_step(generator, models, *batch)  # type: ignore[misc]
        except AssertionError as error:
            if re.fullmatch(r"(\d+) < \1", str(error)):
                raise nan_error("--path", models) from error
            raise

    def problems(self, models: Sequence[Any], src_tokens: Tensor) -> list[str | None]:
        """Return for each row why it cannot be translated, or None."""
        pad, eos = self.tgt_dict.pad(), self.tgt_dict.eos()
        limit = self.positions(models)[0]
        problems: list[str | None] = []
        for row in src_tokens.tolist():
            tokens = [token for token in row if token != pad]
            if all(token == eos for token in tokens):
                problems.append("is empty")
            elif len(tokens) > limit:
                start = " ".join(self.source_dictionary[t] for t in tokens[:5])  # type: ignore[attr-defined]
                count = len(tokens)
                problems.append(f"({start} ...) has {count} tokens, and the model takes {limit}")
            else:
                problems.append(None)
        return problems


def tensors_of(hypo: dict[str, Any]) -> dict[str, Any]:
    """Return a decoder's hypothesis as fairseq's, whose arrays are tensors on the CPU."""
    arrays = ("tokens", "positional_scores", "score")
    history = [{"tokens": torch.as_tensor(state["tokens"])} for state in hypo["history"]]
    nothing = {"attention": torch.empty(0), "alignment": torch.empty(0)}
    tensors = {name: torch.as_tensor(hypo[name]) for name in arrays}
    return nothing | hypo | tensors | {"history": history}


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
