"""Blockwise heads and their loss, one head of one position of one sentence at a time. Slow.

Stern et al. 2018, section 6: after the decoder's last layer a feed-forward layer with k·d_hidden
hidden units makes k outputs of d_model each; a residual from the layer's input is added to every
output, and the base's projection makes the logits of p_1 .. p_k from them. p_i predicts the token i
places ahead; a mini-batch's loss is the mean of the k cross entropies, or one of them. No batch, no
padding, no slices of weights by head but here. Encoder and decoder are fairseq's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoder
from torch import Tensor

# ---- the heads ----------------------------------------------------------------------------------


def activate(name: str, x: Tensor) -> Tensor:
    """The activation function of this name."""
    if name == "relu":
        return torch.where(x > 0, x, torch.zeros_like(x))
    assert name == "gelu", name
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def outputs(
    weights: dict[str, Tensor], state: Tensor, k: int, layer: str, first: bool, activation: str
) -> list[Tensor]:
    """All heads' outputs (each D) at one position.

    Args:
        weights: of the heads: `inner.weight` and `inner.bias`, the hidden units of one head after
            those of another; `outer` and `bias`, one matrix and one vector for each learned head.
        state: D, of the decoder.
        k: the number of heads.
        layer: `dense`: every output is made of all hidden units; `per_head`: of its own alone.
        first: whether head 0 is learned; else it is the identity.
        activation: of the hidden units.
    """
    found = [] if first else [state]
    learned = k - len(found)
    width = len(weights["inner.bias"]) // max(learned, 1)
    hidden = []  # H for each learned head
    for i in range(learned):
        units = []
        for unit in range(i * width, (i + 1) * width):
            units.append(weights["inner.weight"][unit] @ state + weights["inner.bias"][unit])
        hidden.append(activate(activation, torch.stack(units)))
    for i in range(learned):
        read = torch.cat(hidden) if layer == "dense" else hidden[i]
        found.append(state + weights["outer"][i] @ read + weights["bias"][i])
    return found


# ---- the model ----------------------------------------------------------------------------------


def states_of(model: Any, source: Sequence[int], inputs: Sequence[int]) -> Tensor:
    """The decoder's states (T×D) for one sentence, without padding; fairseq's own."""
    encoded = model.encoder(torch.tensor([list(source)]), src_lengths=torch.tensor([len(source)]))
    features, _ = TransformerDecoder.extract_features(
        model.decoder, torch.tensor([list(inputs)]), encoder_out=encoded
    )
    return features[0]


def logits_of(model: Any, source: Sequence[int], inputs: Sequence[int]) -> Tensor:
    """What all heads say at each position of one sentence, T×k×V.

    Args:
        model: of --arch blockwise_transformer, without dropout.
        source: source tokens, `</s>` included.
        inputs: the decoder's, the start symbol included.
    """
    args = model.args
    weights = dict(model.decoder.heads.named_parameters())
    projection = model.decoder.output_projection.weight
    rows = []
    for state in states_of(model, source, inputs):
        heads = outputs(
            weights, state, args.block_size, args.head_layer, args.train_first_head,
            args.activation_fn,
        )  # fmt: skip
        rows.append(torch.stack([projection @ head for head in heads]))
    return torch.stack(rows)


# ---- the loss -----------------------------------------------------------------------------------


@dataclass
class HeadLoss:
    """What one head's loss is, over a batch.

    Attributes:
        loss: label-smoothed, summed over the tokens that the head has to predict.
        nll_loss: without smoothing.
        scored: their number.
        right: how many it predicts rightly.
    """

    loss: Any = 0.0
    nll_loss: Any = 0.0
    scored: int = 0
    right: int = 0


@dataclass
class BatchLoss:
    """What all heads' losses are, and how far the right tokens reach.

    Attributes:
        heads: one for each head.
        accepted: for each position of each sentence, heads that are right before the first wrong.
    """

    heads: list[HeadLoss]
    accepted: list[int] = field(default_factory=list)

    def mean(self, heads: Sequence[int]) -> Any:
        """The mean of some heads' mean losses; a head without any token has a loss of zero."""
        chosen = [self.heads[i] for i in heads]
        return sum(head.loss / max(head.scored, 1) for head in chosen) / len(chosen)


def loss_of(
    model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], smoothing: float
) -> BatchLoss:
    """Every head's loss over some sentences, with a gradient.

    Args:
        model: of --arch blockwise_transformer, without dropout.
        pairs: sources and targets, `</s>` included.
        smoothing: what of the probability goes to all other tokens together.
    """
    k = model.args.block_size
    result = BatchLoss([HeadLoss() for _ in range(k)])
    for source, target in pairs:
        eos = target[-1]
        log_probs = logits_of(model, source, [eos, *target[:-1]]).log_softmax(dim=-1)
        for t in range(len(target)):
            unbroken = 0
            for i, head in enumerate(result.heads):
                if t + i >= len(target):  # after </s> there is nothing to predict
                    break
                answer, row = target[t + i], log_probs[t, i]
                share = smoothing / (len(row) - 1)
                others = row.sum() - row[answer]
                head.loss = head.loss - (1 - smoothing) * row[answer] - share * others
                head.nll_loss = head.nll_loss - row[answer].item()
                head.scored += 1
                is_right = int(row.argmax()) == answer
                head.right += is_right
                unbroken += is_right and unbroken == i
            result.accepted.append(unbroken)
    return result
