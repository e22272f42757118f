"""Blockwise parallel decoding and its heads' loss, step by step as the paper has it. Slow.

Stern et al. 2018. Decoding is sections 3 and 5, without cache or batch, nothing merged: Predict is
a full forward over the prefix, Verify another over prefix and predictions, Accept comes after; the
passes that the merged substeps of section 4 would take are counted beside. Training is section 6:
one head of one position of one sentence at a time. Encoder and decoder are fairseq's own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .greedy import Rules

#: A state, D, i, and the embedding of p_1's token there, E -> what head i makes of it, D; head 0 is
#: p_1's, and does not see the token.
Heads = Callable[[Tensor, int, Tensor], Tensor]


@dataclass(frozen=True)
class Criterion:
    """When a prediction is accepted; as it is, only if it is p_1's own (section 3)."""

    topk: int = 1  # 5.1: fewer tokens than this score strictly higher
    epsilon: int = 0  # 5.2: the number is at most this far from that of p_1's own token
    # the number that a token stands for, where it does
    numbers: Mapping[int, int] = field(default_factory=dict)
    least: int = 1  # 5.3: a block has so many tokens, if so many were predicted

    def holds(self, scores: Tensor, token: int) -> bool:
        """Whether p_1's scores (V, -inf where a token is not allowed) let a prediction pass."""
        own = int(scores.argmax())
        if token == own or float(scores[token]) == -math.inf:
            return token == own
        if sum(score > float(scores[token]) for score in scores.tolist()) < self.topk:
            return True
        if token in self.numbers and own in self.numbers:
            return abs(self.numbers[token] - self.numbers[own]) <= self.epsilon
        return False


@dataclass(frozen=True)
class Block:
    """One round of the three substeps."""

    start: int  # how many tokens were written before it
    predicted: tuple[int, ...]  # what p_1 and the heads said; as far as it is of use
    size: int  # k-hat, how many predictions were accepted


@dataclass
class Result:
    """An output with `</s>`, its tokens' log-probabilities under p_1, and how it came about."""

    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    # how often the merged model of section 4 runs. p_1's token counts as verified when it is
    # predicted: a block that is `</s>` alone needs no pass to verify it
    passes: int = 0

    @property
    def sizes(self) -> list[int]:
        """k-hat of every block."""
        return [block.size for block in self.blocks]


def heads_of(layer: Any, activation: str) -> Heads:
    """The heads in plain arithmetic, from the weights of a layer with `inner`, `outer`, `bias`.

    An inner layer that is wider than a state also reads the embedding (not in the paper).
    """
    count, dim, width = layer.outer.shape  # heads of the layer, D, hidden units that a head reads
    weight, offset = layer.inner.weight, layer.inner.bias
    size = weight.size(0) // count if count else 0
    first = layer.block_size - count  # 1 if head 0 is the identity
    assert first in (0, 1)

    def heads(state: Tensor, i: int, following: Tensor) -> Tensor:
        if i < first:
            return state
        units = weight[:, :dim] @ state + offset
        if i > 0 and weight.size(1) > dim:
            units = units + weight[:, dim:] @ following
        gelu = units * (1 + torch.erf(units / math.sqrt(2))) / 2
        units = units.clamp(min=0) if activation == "relu" else gelu
        own = units[(i - first) * size : (i - first + 1) * size]
        read = own if width == size else units
        return state + layer.outer[i - first] @ read + layer.bias[i - first]

    return heads


def vector_of(decoder: Any, token: int) -> Tensor:
    """A token's vector as the decoder reads it, without its position: E."""
    return decoder.embed_scale * decoder.embed_tokens.weight[token]


class Network:
    """p_1 .. p_k for one sentence: the Transformer's full forward, a head, the projection.

    Heads stand between the decoder's states and its projection; the source has `</s>`, no padding.
    """

    @torch.no_grad()
    def __init__(self, model: Any, heads: Heads, source: Sequence[int]) -> None:
        self.model, self.heads = model, heads
        src_tokens = torch.tensor([list(source)])
        self.encoded = model.encoder(src_tokens, src_lengths=torch.tensor([len(source)]))
        self.known: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def states(self, tokens: Sequence[int]) -> Tensor:
        """The decoder's states behind y_1..y_i for i = 0..n, (n+1)×D."""
        key = tuple(tokens)
        if key not in self.known:  # the same question has the same answer: only saves time
            inputs = torch.tensor([[2, *key]])
            output, _ = self.model.decoder(inputs, encoder_out=self.encoded, features_only=True)
            self.known[key] = output[0]
        return self.known[key]

    @torch.no_grad()
    def log_probs(self, state: Tensor, head: int, temperature: float, first: int = 0) -> Tensor:
        """What p_(head+1) says at a state, if p_1 said `first` there: V."""
        seen = vector_of(self.model.decoder, first)
        logits = self.model.decoder.output_projection(self.heads(state, head, seen))
        return (logits / temperature).log_softmax(dim=-1)


def blockwise(
    network: Network, rules: Rules, k: int, criterion: Criterion, adaptive: bool = False
) -> Result:
    """Section 3's loop, with a criterion of section 5; fairseq's limits hold for every p_i.

    Adaptive, a block is of at most two tokens more than were accepted of the one before.
    """
    result = Result(passes=1)  # the first Predict
    y, most = result.tokens, k
    while rules.eos not in y:
        j = len(y)
        # Predict. Nothing is looked for behind </s>, nor where only </s> may come: p_1 will say it.
        state = network.states(y)[-1]
        predicted: list[int] = []
        for i in range(most):
            if i > 0 and (predicted[-1] == rules.eos or j + i >= rules.max_len):
                break
            own = predicted[0] if predicted else 0
            scores = network.log_probs(state, i, rules.temperature, own)
            # Heads know what p_1 has said, and not what other heads say.
            text = [*y, *predicted] if i < 2 else None
            predicted.append(int(rules.apply(scores, j + i, text).argmax()))
        # Verify.
        given = predicted[: predicted.index(rules.eos)] if rules.eos in predicted else predicted
        p_1 = [
            rules.apply(network.log_probs(state, 0, rules.temperature), j + i, [*y, *given[:i]])
            for i, state in enumerate(network.states([*y, *given])[j:])
        ]
        size = 1
        assert predicted[0] == int(p_1[0].argmax())
        while size < len(predicted) and criterion.holds(p_1[size], predicted[size]):
            size += 1
        size = max(size, min(criterion.least, len(predicted)))
        most = min(k, size + 2) if adaptive else k
        # Accept.
        result.blocks.append(Block(j, tuple(predicted), size))
        result.scores += [float(p_1[i][token]) for i, token in enumerate(predicted[:size])]
        y += predicted[:size]
        if predicted[0] != rules.eos:
            result.passes += 1
    return result


# ---- training -----------------------------------------------------------------------------------


@dataclass
class HeadLoss:
    """What one head's loss is, over some sentences."""

    loss: Any = 0.0  # label-smoothed, summed over the tokens that the head has to predict
    nll_loss: float = 0.0  # without smoothing
    scored: int = 0  # their number
    right: int = 0  # how many it predicts rightly


def logits_of(model: Any, source: Sequence[int], inputs: Sequence[int]) -> Tensor:
    """What all heads say at each position of one sentence, T×k×V, with a gradient."""
    encoded = model.encoder(torch.tensor([list(source)]), src_lengths=torch.tensor([len(source)]))
    states, _ = model.decoder(torch.tensor([list(inputs)]), encoder_out=encoded, features_only=True)
    heads, size = heads_of(model.block_heads, model.args.activation_fn), model.args.block_size
    seen = [vector_of(model.decoder, token) for token in [*inputs[1:], 1]]  # none is <pad>'s
    rows = [
        torch.stack([heads(state, i, vector) for i in range(size)])
        for state, vector in zip(states[0], seen, strict=True)
    ]
    return torch.stack(rows) @ model.decoder.output_projection.weight.T


def losses_of(
    model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], smoothing: float
) -> tuple[list[HeadLoss], list[int]]:
    """Every head's loss over some sentences, with a gradient.

    Args:
        model: of --arch blockwise_transformer, without dropout.
        pairs: sources and targets, `</s>` included.
        smoothing: what of the probability goes to all other tokens together.

    Returns:
        The heads' losses; for each position, heads that are right before the first wrong.
    """
    losses = [HeadLoss() for _ in range(model.args.block_size)]
    accepted = []
    for source, target in pairs:
        log_probs = logits_of(model, source, [target[-1], *target[:-1]]).log_softmax(dim=-1)
        for t in range(len(target)):
            unbroken = 0
            for i, head in enumerate(losses):
                if t + i >= len(target):  # after </s> there is nothing to predict
                    break
                answer, row = target[t + i], log_probs[t, i]
                others = (row.sum() - row[answer]) / (len(row) - 1)
                head.loss = head.loss - (1 - smoothing) * row[answer] - smoothing * others
                head.nll_loss -= row[answer].item()
                head.scored += 1
                is_right = int(row.argmax()) == answer
                head.right += is_right
                unbroken += is_right and unbroken == i
            accepted.append(unbroken)
    return losses, accepted


def mean(losses: Sequence[HeadLoss], heads: Sequence[int], first: float = 1.0) -> Any:
    """The mean of some heads' mean losses, head 0 counted so many times; of no token it is 0."""
    times = {i: first if i == 0 else 1.0 for i in heads}
    total = sum(times[i] * losses[i].loss / max(losses[i].scored, 1) for i in heads)
    return total / sum(times.values())
