"""Reordered targets and the decoder that reads them, word by word and number by number. Slow.

Zhang et al. 2020, sections 3 and 4, and Imamura and Sumita 2020, section 3. Everything is a list; a
row is computed alone, without padding; positions and mask are written down entry by entry and given
to the decoder's layers. Of a TargetOrder only the options are read, and how many words a step has.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_paradec.target_order import TargetOrder

# ---- words and slots ----------------------------------------------------------------------------


def from_both_ends(words: Sequence[int]) -> list[int]:
    """y^BD: first, last, second, last but one, ... (zhang2020, equation 6)."""
    rest, taken = list(words), []
    while rest:
        taken.append(rest.pop(0))
        if rest:
            taken.append(rest.pop())
    return taken


def from_the_middle(words: Sequence[int]) -> list[int]:
    """The left half, which is the longer one, backwards; in turns with the right half."""
    half = math.ceil(len(words) / 2)
    left, right = list(words[:half])[::-1], list(words[half:])
    taken = []
    while left or right:
        if left:
            taken.append(left.pop(0))
        if right:
            taken.append(right.pop(0))
    return taken


def in_segments(words: Sequence[int], count: int) -> list[int]:
    """y^MD: the k-th words of all segments' y^BD, for k = 1, 2, ... (equation 9).

    Segments are as equal as can be, the first ones longer by one.
    """
    sizes = [0] * count
    for index in range(len(words)):
        sizes[index % count] += 1
    segments, start = [], 0
    for size in sizes:
        segments.append(from_both_ends(words[start : start + size]))
        start += size
    taken = []
    for k in range(len(words)):
        for segment in segments:
            if k < len(segment):
                taken.append(segment[k])
    return taken


def write(spec: TargetOrder, words: Sequence[int]) -> list[int]:
    """Words in the order in which they are written."""
    if spec.directions == 1:
        return list(words)[::-1] if spec.right_to_left else list(words)
    if spec.directions == 2:
        return from_the_middle(words) if spec.middle_to_side else from_both_ends(words)
    return in_segments(words, spec.directions // 2)


def read(spec: TargetOrder, slots: Sequence[Any]) -> list[Any]:
    """Undo `write`, for words or anything that belongs to them."""
    natural: list[Any] = [None] * len(slots)
    for slot, word in enumerate(write(spec, range(len(slots)))):
        natural[word] = slots[slot]
    return natural


def start(spec: TargetOrder, bos: int, eos: int) -> list[int]:
    """The inputs of the first step."""
    return [bos, eos] if spec.double_token else [eos for _ in range(spec.tokens_per_step)]


def training_row(
    spec: TargetOrder, words: Sequence[int], bos: int, eos: int
) -> tuple[list[int], list[int]]:
    """One target's inputs, in whole steps, and what they predict (fewer, where nothing is)."""
    slots = [*write(spec, words), eos]
    if spec.double_token and len(slots) % 2 == 1:
        slots.append(eos)  # EOD, EOD, or the middle word and EOD: an even total
    inputs = start(spec, bos, eos)
    while len(inputs) < len(slots):
        inputs += slots[len(inputs) - spec.tokens_per_step :][: spec.tokens_per_step]
    return inputs, slots


def training_batch(
    spec: TargetOrder, targets: Sequence[Sequence[int]], bos: int, eos: int, pad: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Inputs and targets of several rows, padded at the end to the longest row's inputs."""
    rows = [training_row(spec, words, bos, eos) for words in targets]
    width = max(len(inputs) for inputs, _ in rows)
    padded = [[[*part, *[pad] * (width - len(part))] for part in row] for row in rows]
    return [inputs for inputs, _ in padded], [slots for _, slots in padded]


# ---- the decoder --------------------------------------------------------------------------------


def position(spec: TargetOrder, slot: int) -> int:
    """The position of the input that predicts a slot (equations 7 and 10)."""
    if spec.directions == 1 or spec.double_token or spec.vanilla_positions:
        return slot
    if spec.directions == 2:
        t = slot + 1  # the paper counts from 1
        return int((-1) ** (t - 1) * math.ceil(t / 2))
    return slot // spec.directions


def sees(spec: TargetOrder, i: int, j: int) -> bool:
    """Whether input row i sees row j (equation 4)."""
    z = 1 if spec.vanilla_mask else spec.tokens_per_step
    if spec.independent_directions and i % spec.directions != j % spec.directions:
        return False
    return i // z >= j // z


def sinusoid(place: int, dim: int) -> list[float]:
    """fairseq's sinusoid of one position: sines, then cosines."""
    half = dim // 2
    rates = [math.exp(-k * math.log(10000) / (half - 1)) for k in range(half)]
    return [math.sin(place * r) for r in rates] + [math.cos(place * r) for r in rates]


def position_vectors(model: Any, spec: TargetOrder, width: int) -> Tensor | None:
    """What is added to the inputs, T×D.

    fairseq counts its positions from 2. Learned vectors are one per slot; with four directions or
    more, one per step.
    """
    module, dim = model.decoder.embed_positions, model.decoder.embed_tokens.embedding_dim
    if module is None:
        return None
    weights = dict(module.named_parameters())
    rows = []
    for slot in range(width):
        if "weight" in weights:
            row = weights["weight"][2 + slot]
        elif "learned.weight" in weights:
            row = weights["learned.weight"][position(spec, slot)]
        else:
            counted = spec.directions == 1 or spec.double_token or spec.vanilla_positions
            row = torch.tensor(sinusoid(position(spec, slot) + (2 if counted else 0), dim))
        if "directions.weight" in weights:
            row = row + weights["directions.weight"][slot % spec.directions]
        rows.append(row)
    return torch.stack(rows).to(model.decoder.embed_tokens.weight)


def features(
    model: Any, spec: TargetOrder, source: Sequence[int], inputs: Sequence[Sequence[int]]
) -> Tensor:
    """The decoder's output B×T×D for one source and B rows of inputs of one length."""
    decoder = model.decoder
    src_tokens = torch.tensor([list(source)] * len(inputs))
    src_lengths = torch.tensor([len(source)] * len(inputs))
    encoded = model.encoder(src_tokens, src_lengths=src_lengths)["encoder_out"][0]
    tokens = torch.tensor([list(row) for row in inputs])
    width = tokens.size(1)
    x = decoder.embed_scale * decoder.embed_tokens(tokens)
    kind = getattr(model.flags, "start_rows", "tokens")
    if kind != "tokens":  # the first step reads vectors of its own, or none, in place of words
        first = len(start(spec, 0, 2))
        given = decoder.embed_positions.starts if kind == "learned" else torch.zeros(first, 1)
        x = torch.cat((given.to(x).expand(len(x), first, x.size(2)), x[:, first:]), dim=1)
    vectors = position_vectors(model, spec, width)
    if vectors is not None:
        x = x + vectors
    mask = torch.zeros(width, width).to(x)
    for i in range(width):
        for j in range(width):
            if not sees(spec, i, j):
                mask[i, j] = -math.inf
    x = x.transpose(0, 1)
    for layer in decoder.layers:
        x = layer(x, encoded, self_attn_mask=mask)[0]
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    return x.transpose(0, 1)


def log_probs(
    model: Any,
    spec: TargetOrder,
    source: Sequence[int],
    inputs: Sequence[Sequence[int]],
    temperature: float = 1.0,
) -> Tensor:
    """Log-probabilities B×T×V of the words of all slots; see `features`."""
    logits = model.decoder.output_projection(features(model, spec, source, inputs))
    return torch.log_softmax(logits / temperature, dim=-1)


def average(parts: Sequence[Tensor]) -> Tensor:
    """An ensemble's log-probabilities: those of the mean probability."""
    return torch.stack([part.exp() for part in parts]).mean(dim=0).log()


def smoothed_loss(
    model: Any,
    spec: TargetOrder,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    bos: int,
    eos: int,
    smoothing: float,
) -> tuple[Tensor, Tensor, int]:
    """fairseq's label-smoothed loss, its part without smoothing, and the number of targets.

    Row by row and slot by slot: eps is spread over the words, the right one keeps the rest. In a
    pair the source has `</s>`, and the words of the target do not.
    """
    loss, plain, count = torch.zeros(()).double(), torch.zeros(()).double(), 0
    for source, words in pairs:
        inputs, slots = training_row(spec, words, bos, eos)
        scores = log_probs(model, spec, source, [inputs])[0]
        share = smoothing / (scores.size(-1) - 1)
        for slot, word in enumerate(slots):
            wrong = scores[slot].sum() - scores[slot, word]
            loss = loss - (1 - smoothing) * scores[slot, word] - share * wrong
            plain = plain - scores[slot, word]
            count += 1
    return loss, plain, count
