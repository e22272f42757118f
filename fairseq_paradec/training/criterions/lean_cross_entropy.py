"""fairseq's label-smoothed cross entropy without all logits in memory at once.

The value and the gradients are those of ``label_smoothed_cross_entropy``. On a CPU, an update of a
small model takes two thirds of the time. ``--sentence-means`` is the loss of IBDecoder's authors.
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn

from ...errors import excludes, option_error
from .projected_cross_entropy import projected_cross_entropy


@dataclass
class LeanCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Flags of the loss."""

    sentence_means: bool = field(
        default=False,
        metadata={
            "help": "the loss is the mean over sentences of each one's mean over its tokens, so "
            "that a token of a short sentence weighs more; otherwise the mean over all tokens"
        },
    )


@register_criterion("lean_cross_entropy", dataclass=LeanCrossEntropyConfig)
class LeanCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross entropy of a decoder that ends in a projection without bias.

    Raises:
        UsageError: ``--sentence-means`` and ``--sentence-avg``, fairseq's sum over each sentence.
    """

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        sentence_means: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.sentence_means = sentence_means
        if sentence_means and sentence_avg:
            raise excludes("--sentence-means", True, "--sentence-avg")

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of a batch, summed over its tokens, or over its sentences' means.

        Returns:
            As fairseq's: the loss, its denominator, and the logged values. ``nll_loss`` is always
            summed over the tokens.

        Raises:
            UsageError: the decoder ends in something else, such as an adaptive softmax.
        """
        projection = getattr(model.decoder, "output_projection", None)
        if not isinstance(projection, nn.Linear) or projection.bias is not None:
            raise option_error(
                "--criterion",
                "lean_cross_entropy",
                "label_smoothed_cross_entropy, for a decoder that does not end in a projection "
                "without bias",
            )
        hidden, _ = model(**sample["net_input"], features_only=True)  # B×T×D
        answers = sample["target"][:, self.ignore_prefix_size :]
        real = answers.ne(self.padding_idx)
        states, shares = hidden[:, self.ignore_prefix_size :][real], None  # N×D
        if self.sentence_means:
            shares = (1 / real.sum(dim=1, keepdim=True)).expand_as(real)[real]  # N
        projected = projected_cross_entropy(
            states, projection.weight, answers[real], self.eps, shares
        )
        by_sentence = self.sentence_avg or self.sentence_means
        sample_size = sample["target"].size(0) if by_sentence else sample["ntokens"]
        logging = {
            "loss": projected.loss.data,
            "nll_loss": projected.nll_loss,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            logging |= {"n_correct": int(projected.right.sum()), "total": projected.right.numel()}
        return projected.loss, sample_size, logging
