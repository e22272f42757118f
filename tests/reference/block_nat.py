"""GAD's drafter, one prefix of one sentence at a time. Slow.

Xia et al. 2022, section 3.1: the decoder's input is the translated prefix y_1..y_p and k masks;
what comes out at the masks is the block. Glancing is Qian et al. 2021's. No padding, no batch, no
second block beside the first; the layers are written out from the model's weights, attention with a
loop over heads. The encoder is fairseq's own.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

#: What stands in a block: a revealed token, or None for a mask.
Slots = Sequence[int | None]


# ---- the model ----------------------------------------------------------------------------------


@torch.no_grad()
def block_features(
    model: Any, source: Sequence[int], prefix: Sequence[int], slots: Slots, attention: str
) -> Tensor:
    """The decoder's features at a block's slots, K×D.

    Args:
        model: a model of --arch block_nat in evaluation mode; only its weights are read.
        source: source tokens, `</s>` included, without padding.
        prefix: target tokens y_1..y_p.
        slots: the block's K inputs.
        attention: `bidirectional` or `prefix_causal`.
    """
    decoder, length = model.decoder, len(prefix) + len(slots)
    src_tokens = torch.tensor([list(source)])
    encoded = model.encoder(src_tokens, src_lengths=torch.tensor([len(source)]))
    states = encoded["encoder_out"][0][:, 0]  # S×D
    x = torch.stack([_input(model, source, token, t) for t, token in enumerate([*prefix, *slots])])
    everything = [[*range(length)]] * length
    sees = [[*range(i + 1)] for i in range(len(prefix))] + everything[len(prefix) :]
    if attention == "bidirectional":
        sees = everything
    whole = [[*range(len(source))]] * length
    for layer in decoder.layers:
        branches = (
            (layer.self_attn_layer_norm, lambda h, a=layer.self_attn: attend(a, h, h, sees)),
            (
                layer.encoder_attn_layer_norm,
                lambda h, a=layer.encoder_attn: attend(a, h, states, whole),
            ),
            (layer.final_layer_norm, functools.partial(_feed_forward, layer)),
        )
        for norm, function in branches:
            x = x + function(norm(x)) if layer.normalize_before else norm(x + function(x))
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    return x[len(prefix) :]


def block_logits(
    model: Any, source: Sequence[int], prefix: Sequence[int], slots: Slots, attention: str
) -> Tensor:
    """The scores of all tokens at a block's slots, K×V."""
    features = block_features(model, source, prefix, slots, attention)
    return features @ model.decoder.output_projection.weight.detach().T


def _input(model: Any, source: Sequence[int], token: int | None, t: int) -> Tensor:
    """The vector (D) of a token, or of a mask, at position t."""
    decoder = model.decoder
    if token is None:
        x = decoder.mask_vector.clone()
        if decoder.copy_sharpness is not None:
            x += _soft_copy(model, source, t)
    else:
        x = decoder.embed_scale * decoder.embed_tokens.weight[token]
    # fairseq's positions start behind <pad>'s row.
    place = decoder.padding_idx + 1 + min(t, decoder.max_target_positions - 1)
    if isinstance(decoder.embed_positions, torch.nn.Embedding):
        x = x + decoder.embed_positions.weight[place]
    else:
        x = x + SinusoidalPositionalEmbedding.get_embedding(place + 1, len(x))[place].to(x)
    return x if decoder.layernorm_embedding is None else decoder.layernorm_embedding(x)


def _soft_copy(model: Any, source: Sequence[int], t: int) -> Tensor:
    """The mean of the source embeddings, weighted by exp(-sharpness · |t - s|)."""
    encoder, sharpness = model.encoder, float(model.decoder.copy_sharpness)
    weights = [math.exp(-sharpness * abs(t - s)) for s in range(len(source))]
    x = torch.zeros_like(encoder.embed_tokens.weight[0])
    for weight, token in zip(weights, source, strict=True):
        x += weight / sum(weights) * encoder.embed_scale * encoder.embed_tokens.weight[token]
    return x


def attend(attention: Any, x: Tensor, states: Tensor, sees: Sequence[Sequence[int]]) -> Tensor:
    """Multi-head attention: query i over the states `sees[i]`."""
    queries = attention.q_proj(x)
    keys, values = attention.k_proj(states), attention.v_proj(states)
    width = queries.size(1) // attention.num_heads
    hidden = torch.ones(len(x), len(states), dtype=torch.bool)
    for i, visible in enumerate(sees):
        hidden[i, visible] = False
    out = torch.zeros_like(queries)
    for head in range(attention.num_heads):
        part = slice(head * width, (head + 1) * width)
        scores = queries[:, part] @ keys[:, part].T / math.sqrt(width)
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim=1)
        out[:, part] = weights @ values[:, part]
    return attention.out_proj(out)


def _feed_forward(layer: Any, x: Tensor) -> Tensor:
    hidden = layer.fc1(x)
    if layer.activation_fn is torch.nn.functional.relu:  # --decoder-from-verifier
        return layer.fc2(hidden.clamp(min=0))
    return layer.fc2(hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))))


# ---- training -----------------------------------------------------------------------------------


def behind_errors(
    model: Any, source: Sequence[int], target: Sequence[int], tried: Sequence[int], size: int
) -> set[int]:
    """Prefix lengths q + 1, q tried: with k masks behind prefix q the first guess is wrong."""
    found = set()
    for q in tried:
        guess = block_logits(model, source, target[:q], [None] * size, "prefix_causal")[0].argmax()
        if int(guess) != target[q] and q + 1 < len(target):
            found.add(q + 1)
    return found


def draw_prefixes(
    lots: Sequence[float], behind: set[int], wanted: int, share: float, lot: float
) -> set[int]:
    """Those of the highest lots; `wanted` · `share` (+ `lot`, cut) of those `behind` come first."""
    order = sorted(range(len(lots)), key=lambda p: -lots[p])
    first = [p for p in order if p in behind][: math.floor(wanted * share + lot)]
    return set([*first, *(p for p in order if p not in first)][:wanted])


@dataclass
class Block:
    """What training asks of one block, and how it went."""

    slots: list[int | None]  # the decoder's input, after glancing
    scored: list[bool]  # whether each slot is part of the loss
    right: list[bool]  # whether each slot is, and is predicted rightly
    loss: float  # the label-smoothed loss, summed over the scored slots
    nll_loss: float  # the negative log-likelihood, summed over them

    @property
    def accepted(self) -> int:
        """Right tokens before the first slot that is not right."""
        return (self.right + [False]).index(False)


def train_block(
    model: Any,
    source: Sequence[int],
    target: Sequence[int],
    start: int,
    size: int,
    attention: str,
    smoothing: float,
    ratio: float = 0.0,
    lots: Sequence[float] = (),
    decay: float = 1.0,
) -> Block:
    """Both passes over one block of one sentence, without dropout.

    Args:
        model: a model of --arch block_nat.
        source, target: tokens, `</s>` included; behind the target's there is nothing to learn.
        start, size: the prefix's length, and k.
        attention: `bidirectional` or `prefix_causal`.
        smoothing: what of the probability goes to all other tokens together.
        ratio: the glancing ratio; 0 for no first pass.
        lots: one for each slot. Of those that have a true token the smallest lots' are shown in
            the second pass; as many as `ratio` times the number of wrong guesses, rounded down.
        decay: what a slot weighs in the loss, for the slot before.
    """
    prefix = target[:start]
    truth = [target[t] if t < len(target) else None for t in range(start, start + size)]
    slots: list[int | None] = [None] * size
    if ratio > 0:
        guesses = block_logits(model, source, prefix, slots, attention).argmax(dim=1).tolist()
        real = [i for i, token in enumerate(truth) if token is not None]
        wrong = sum(guesses[i] != truth[i] for i in real)
        for i in sorted(real, key=lambda i: lots[i])[: math.floor(ratio * wrong)]:
            slots[i] = truth[i]
    log_probs = block_logits(model, source, prefix, slots, attention).log_softmax(dim=-1)
    block = Block(slots, [], [], 0.0, 0.0)
    for i, (answer, shown, row) in enumerate(zip(truth, slots, log_probs, strict=True)):
        scored = answer is not None and shown is None
        block.scored.append(scored)
        block.right.append(scored and int(row.argmax()) == answer)
        if scored:
            share = smoothing / (len(row) - 1)
            for token, log_prob in enumerate(row.tolist()):
                wanted = 1 - smoothing if token == answer else share
                block.loss -= decay**i * wanted * log_prob
            block.nll_loss -= float(row[answer])
    return block
