"""Targets in a model's target order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.sequence_scorer import SequenceScorer

from ...target_order import TargetOrder, order_of


class TargetsInOrder:
    """A part of the task: training and scoring use targets in the model's order."""

    tgt_dict: Any
    _model: Any = None

    def train_step(self, sample: dict[str, Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """As fairseq, on targets in the model's order."""
        sample = self.in_model_order(sample)
        return super().train_step(sample, model, *args, **kwargs)  # type: ignore[misc]

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any) -> Any:
        """As fairseq, on targets in the model's order."""
        sample = self.in_model_order(sample)
        return super().valid_step(sample, model, criterion)  # type: ignore[misc]

    def in_model_order(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Reorder the targets of a batch for the model.

        Returns:
            The same batch for a model that writes from left to right; else a copy with reordered
            ``target``, ``net_input.prev_output_tokens`` and ``ntokens``, and the natural target as
            ``natural_target``.
        """
        return in_order(sample, order_of(self._model), self.tgt_dict)

    def _inference_with_bleu(self, generator: Any, sample: dict[str, Any], model: Any) -> Any:
        """As fairseq, with references in natural order."""
        sample = sample | {"target": sample.get("natural_target", sample["target"])}
        return super()._inference_with_bleu(generator, sample, model)  # type: ignore[misc]

    def inference_step(
        self, generator: Any, models: Sequence[Any], sample: dict[str, Any], *args: Any
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch; with ``--score-reference``, score its targets."""
        if isinstance(generator, SequenceScorer):
            return self._score(generator, models, sample)
        return super().inference_step(generator, models, sample, *args)  # type: ignore[misc]

    def _score(
        self, generator: Any, models: Sequence[Any], sample: dict[str, Any]
    ) -> list[list[dict[str, Any]]]:
        """Score the targets of a batch; return scores in natural order for any model."""
        order = order_of(models[0])
        written = in_order(sample, order, self.tgt_dict)
        hypos = super().inference_step(generator, models, written)  # type: ignore[misc]
        if order == TargetOrder():
            return hypos
        eos, pad = self.tgt_dict.eos(), self.tgt_dict.pad()
        for row, (hypo,) in zip(sample["target"], hypos, strict=True):
            tokens = row[row.ne(pad)]  # n words, </s>
            count = len(tokens) - 1
            places = order.sources(np.array([count]), count)[0]
            scores = hypo["positional_scores"]
            natural = torch.empty_like(scores[: count + 1])
            natural[places] = scores[:count]
            natural[count] = scores[count : len(hypo["tokens"])].sum()  # each </s> of a pair
            assert tokens[-1] == eos
            hypo |= {"tokens": tokens, "positional_scores": natural}
            hypo["score"] = natural.sum() / len(natural)
        return hypos


def in_order(sample: dict[str, Any], order: TargetOrder, words: Any) -> dict[str, Any]:
    """Reorder the targets of a batch; see TargetsInOrder.in_model_order."""
    if order == TargetOrder() or not sample or sample.get("target") is None:
        return sample
    target = sample["target"]
    batch = order.training_batch(target.numpy(force=True), words.bos(), words.eos(), words.pad())
    inputs, slots = (torch.from_numpy(part).to(target.device) for part in batch)
    return sample | {
        "net_input": sample["net_input"] | {"prev_output_tokens": inputs},
        "target": slots,
        "natural_target": target,
        "ntokens": int((batch.target != words.pad()).sum()),
    }
