"""The floating-point operations of decoding, from shapes and real lengths.

Counted are the multiply-adds of matrix products, two operations each: linear maps and the two
products of attention, as torch.utils.flop_counter counts them. Not counted: embeddings, norms,
softmax, activations and biases. Sentences are counted one by one, without the padding of batches.
``training_flops.py`` counts training.

Sources: santilli2023, Tables 3 and 5, appendix C (its script assumes 512 tokens per sentence; here
lengths are real).

| name          | meaning                                                         |
|---------------|-----------------------------------------------------------------|
| S             | source tokens, ``</s>`` counted                                 |
| T             | target tokens, ``</s>`` counted                                 |
| tokens        | tokens that go through the layers in a pass                     |
| keys          | positions that each of them attends to: cached ones and tokens  |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...errors import UsageError


def product(tokens: float, inputs: int, outputs: int) -> float:
    """Return the operations of a linear map."""
    return 2 * tokens * inputs * outputs


def attention(tokens: float, keys: float, width: int) -> float:
    """Return the operations of attention: queries with keys, weights with values, all heads."""
    return 4 * tokens * keys * width


# ---- shapes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """Equal layers, of an encoder or a decoder."""

    layers: int  # number of layers
    dim: int  # dimension of the states, and of all attention heads together
    inner: int  # dimension of the feed-forward layers


@dataclass(frozen=True)
class Heads:
    """Heads of blockwise decoding, on states of a decoder."""

    learned: int  # number of heads with a layer; head 0 may be the identity
    dim: int  # dimension of the states
    hidden: int  # hidden units of all heads together
    dense: bool  # whether each head reads the hidden units of all heads, or only its own
    first: bool  # whether head 0 is learned
    seen: int = 0  # dimension of the embedding that heads after head 0 read beside the state, or 0

    def inner(self, tokens: float, asked: int, sees: bool = True) -> float:
        """Return the operations of the layer's first product.

        Args:
            tokens: number of states.
            asked: the number of learned heads that are used; 0 computes nothing.
            sees: whether they are heads after head 0.
        """
        if not asked:
            return 0
        width = self.dim + (self.seen if sees else 0)
        return product(tokens, width, self.hidden if self.dense else self._own * asked)

    def outer(self, tokens: float, asked: int) -> float:
        """Return the operations of the second product; see ``inner``."""
        width = self.hidden if self.dense else self._own
        return product(tokens, width, self.dim * asked)

    @property
    def _own(self) -> int:
        """Hidden units of one head."""
        return self.hidden // max(self.learned, 1)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that determine its number of operations."""

    encoder: Stack  # its layers
    decoder: Stack  # its layers
    embedding: int  # dimension of the target's embeddings
    output: int  # dimension of the states that are projected to the vocabulary
    vocabulary: int  # number of target tokens
    # whether a block_nat model mixes the source's embeddings into its masks
    soft_copy: bool = False
    caches_prefix: bool = False  # whether a block_nat model caches its prefix
    block: int = 0  # the least number of masks that a block_nat model fills
    shares_encoder: bool = False  # whether a drafter has the verifier's encoder
    tokens_per_step: int = 1  # z, the number of tokens that a model writes at once
    heads: Heads | None = None  # for blockwise decoding, or None


_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.fc1\.weight")


def read_heads(sizes: Mapping[str, Sequence[int]], block_size: int) -> Heads | None:
    """Return the shape of heads from the sizes of a model's weights; None if it has none."""
    outer = sizes.get("decoder.heads.outer")
    if outer is None:
        return None
    learned, dim, width = outer
    hidden, inputs = sizes["decoder.heads.inner.weight"]
    return Heads(learned, dim, hidden, width == hidden, learned == block_size, inputs - dim)


def read_shape(sizes: Mapping[str, Sequence[int]], **settings: Any) -> Shape:
    """Read a model's shape from the sizes of its weights.

    Args:
        sizes: by name, as in a checkpoint.
        settings: the fields of Shape that weights do not determine: ``caches_prefix``, ``block``,
            ``shares_encoder``, ``tokens_per_step``, ``heads``.

    Raises:
        UsageError: the model is no Transformer, or has an adaptive softmax.
    """
    stacks: dict[str, Stack] = {}
    for name, size in sizes.items():
        match = _LAYER.fullmatch(name)
        if match is not None:
            before = stacks.get(match[1])
            count = int(match[2]) + 1 if before is None else max(before.layers, int(match[2]) + 1)
            stacks[match[1]] = Stack(count, size[1], size[0])
    embedding = sizes.get("decoder.embed_tokens.weight")
    if len(stacks) < 2 or embedding is None:
        raise UsageError("a checkpoint without encoder or decoder; allowed: a Transformer's")
    if any(name.startswith("decoder.adaptive_softmax.") for name in sizes):
        raise UsageError("a model with an adaptive softmax; allowed: one without")
    # Old checkpoints lack the name of a projection that is the embedding.
    vocabulary, output = sizes.get("decoder.output_projection.weight", embedding)
    settings["soft_copy"] = "decoder.copy_sharpness" in sizes
    return Shape(stacks["encoder"], stacks["decoder"], embedding[1], output, vocabulary, **settings)


# ---- one pass -----------------------------------------------------------------------------------


def encoder(shape: Shape, source: int) -> float:
    """Return the operations of encoding S tokens."""
    stack = shape.encoder
    layer = product(source, stack.dim, 4 * stack.dim) + attention(source, source, stack.dim)
    return stack.layers * (layer + 2 * product(source, stack.dim, stack.inner))


def source_keys(shape: Shape, source: int) -> float:
    """Return the operations of all decoder layers' keys and values of an encoded source."""
    stack = shape.decoder
    return product(source, shape.encoder.dim, stack.layers * 2 * stack.dim)


def decoder_pass(
    shape: Shape,
    tokens: float,
    keys: float,
    source: int,
    projected: float,
    words: int | None = None,
) -> dict[str, float]:
    """Return the operations of a decoder's pass by piece, as ``lab.measure.pieces`` names them.

    Args:
        shape: of the model.
        tokens: of all hypotheses together.
        keys: positions that each attends to.
        source: S.
        projected: the number of tokens that are projected to the vocabulary.
        words: the size of a shortlist of the vocabulary; None for all.
    """
    stack = shape.decoder
    dim, layers = stack.dim, stack.layers
    words = shape.vocabulary if words is None else words
    resized = [
        product(tokens, a, b) if a != b else 0
        for a, b in ((shape.embedding, dim), (dim, shape.output))
    ]
    copied = product(tokens, source, shape.embedding) if shape.soft_copy else 0
    return {
        "embedding": resized[0] + copied,
        "self-attention": layers * (product(tokens, dim, 4 * dim) + attention(tokens, keys, dim)),
        "cross-attention": layers
        * (product(tokens, dim, 2 * dim) + attention(tokens, source, dim)),
        "feed-forward": layers * 2 * product(tokens, dim, stack.inner),
        "projection": resized[1] + product(projected, shape.output, words),
    }


# ---- decoding a sentence ------------------------------------------------------------------------


@dataclass(frozen=True)
class Count:
    """Operations of decoding, by part."""

    encoder: float = 0  # the encoder, and the decoder's keys and values of the source
    decoder: float = 0  # the verifier's layers
    projection: float = 0  # the verifier's projection to the vocabulary
    drafter: float = 0  # all of a drafter or heads, including their encoder and projections

    def __add__(self, other: Count) -> Count:
        """Add part by part."""
        return Count(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Count)))

    @property
    def total(self) -> float:
        """All parts."""
        return self.encoder + self.decoder + self.projection + self.drafter


def _read(shape: Shape, source: int) -> Count:
    """Count the encoder of a sentence."""
    return Count(encoder=encoder(shape, source) + source_keys(shape, source))


def _pass(shape: Shape, tokens: int, cached: int, source: int, hypotheses: int = 1) -> Count:
    """Count a pass of the verifier, which projects all of its tokens.

    Args:
        shape: its shape.
        tokens: of a hypothesis, in the pass.
        cached: cached tokens of a hypothesis.
        source: S.
        hypotheses: number of hypotheses.
    """
    whole = tokens * hypotheses
    pieces = decoder_pass(shape, whole, cached + tokens, source, whole)
    projection = pieces.pop("projection")
    heads = shape.heads
    first = 0.0
    if heads and heads.first:
        first = heads.inner(whole, 1, sees=False) + heads.outer(whole, 1)
    return Count(decoder=sum(pieces.values()) + first, projection=projection)


def greedy(shape: Shape, source: int, tokens: int) -> Count:
    """Count greedy search: a token a pass."""
    return sum((_pass(shape, 1, t, source) for t in range(tokens)), _read(shape, source))


EOS = "</s>"


def verifying(
    record: Mapping[str, Any], shape: Shape, drafter: Shape | Heads | None = None, beam: int = 1
) -> Count:
    """Count the verifier's passes for a sentence, without drafting.

    A pass is assumed to fill its block after a drafted ``</s>``: a record does not tell whether the
    length limit left less room.
    """
    source = len(record["source"])
    passes = (_pass(shape, _scored(e), e["start"], source) for e in record["trace"])
    return sum(passes, _read(shape, source))


def _scored(entry: Mapping[str, Any]) -> int:
    """Return the number of tokens of the verifier's pass."""
    nodes = entry.get("num_nodes")
    return len(entry["verifier"]) if nodes is None else 1 + nodes


def drafting(
    record: Mapping[str, Any], shape: Shape, drafter: Shape | Heads | None = None, beam: int = 1
) -> Count:
    """Count the passes of verifier and block_nat drafter; see ``verifying``."""
    assert isinstance(drafter, Shape)
    draft = _drafting(record, drafter, len(record["source"]))
    return verifying(record, shape) + Count(drafter=draft)


def assisting(
    record: Mapping[str, Any], shape: Shape, drafter: Shape | Heads | None = None, beam: int = 1
) -> Count:
    """Count the passes of verifier and autoregressive drafter; see ``verifying``."""
    assert isinstance(drafter, Shape)
    draft = _assisting(record, drafter, len(record["source"]))
    return verifying(record, shape) + Count(drafter=draft)


def looking_ahead(
    record: Mapping[str, Any], shape: Shape, drafter: Shape | Heads | None = None, beam: int = 1
) -> Count:
    """Count passes and heads, which are the model's own by default; see ``verifying``."""
    heads = shape.heads if drafter is None else drafter
    assert isinstance(heads, Heads)
    return verifying(record, shape) + Count(drafter=_looking_ahead(record, shape, heads))


def filling(
    record: Mapping[str, Any], shape: Shape, drafter: Shape | Heads | None = None, beam: int = 1
) -> Count:
    """Count the passes of a block_nat model without a verifier; see ``verifying``."""
    source, size = len(record["source"]), record["flags"]["block_size"]
    found = _read(shape, source)
    for start, cached in _prefixes(shape, record["trace"]):
        pieces = _fill(shape, start, cached, size, source, size, None)
        projection = pieces.pop("projection")
        found += Count(decoder=sum(pieces.values()), projection=projection)
    return found


def searching(
    record: Mapping[str, Any], shape: Shape, drafter: Shape | Heads | None = None, beam: int = 1
) -> Count:
    """Count a beam search by steps of z tokens, as this package does it; see ``verifying``.

    The first pass has one hypothesis, the others as many as the beam.
    """
    source, z = len(record["source"]), shape.tokens_per_step
    widths = (beam if t else 1 for t in range(len(record["trace"])))
    steps = (_pass(shape, z, z * t, source, width) for t, width in enumerate(widths))
    return sum(steps, _read(shape, source))


def _prefixes(drafter: Shape, trace: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return for each pass of a block_nat model the number of prefix tokens, and of cached ones."""
    starts = [entry["start"] for entry in trace]
    before = [0, *starts[:-1]] if drafter.caches_prefix else [0] * len(starts)
    return list(zip(starts, before, strict=True))


def _fill(
    drafter: Shape,
    start: int,
    cached: int,
    size: int,
    source: int,
    projected: int,
    words: int | None,
) -> dict[str, float]:
    """Count a pass of a block_nat model: the prefix's new tokens and the masks, by piece."""
    masks = max(size, drafter.block)
    return decoder_pass(drafter, start - cached + masks, start + masks, source, projected, words)


def _drafting(record: Mapping[str, Any], drafter: Shape, source: int) -> float:
    """Return the operations of a block_nat drafter for a sentence."""
    own = 0 if drafter.shares_encoder else encoder(drafter, source)
    found = own + source_keys(drafter, source)
    flags = record["flags"]
    size, words = flags["block_size"], flags.get("drafter_shortlist")
    # Without drafts, at the length limit, the drafter did not run.
    ran = [one for one in zip(record["trace"], _proposed(record, size)) if one[0]["draft"]]
    places = _prefixes(drafter, [entry for entry, _ in ran])
    for (start, cached), (_, projected) in zip(places, ran):
        found += sum(_fill(drafter, start, cached, size, source, projected, words).values())
    return found


def _assisting(record: Mapping[str, Any], drafter: Shape, source: int) -> float:
    """Return the operations of an autoregressive drafter for a sentence.

    Its first pass reads what was committed and is not cached; each other pass reads a draft.
    """
    own = 0 if drafter.shares_encoder else encoder(drafter, source)
    found = own + source_keys(drafter, source)
    words = record["flags"].get("drafter_shortlist")
    cached = 0
    for entry in record["trace"]:
        start, drafted = entry["start"], len(entry["draft"])
        for i in range(drafted):
            tokens = start + 1 - cached if i == 0 else 1
            found += sum(decoder_pass(drafter, tokens, start + 1 + i, source, 1, words).values())
            cached = start + 1 + i
        cached = min(cached, start + 1 + entry["num_accepted"])
    return found


def _looking_ahead(record: Mapping[str, Any], shape: Shape, heads: Heads) -> float:
    """Return the operations of heads for a sentence: they read one state a pass."""
    flags = record["flags"]
    words = flags.get("drafter_shortlist") or shape.vocabulary
    found = 0.0
    for entry, asked in zip(record["trace"], _proposed(record, flags["block_size"] - 1)):
        if entry["draft"]:
            found += heads.inner(1, asked) + heads.outer(1, asked)
            found += product(asked, shape.output, words)
    return found


def _proposed(record: Mapping[str, Any], most: int) -> list[int]:
    """Return for each pass the number of drafted tokens before ``</s>`` or a tree cut the draft."""
    size, adaptive = record["flags"]["block_size"], record["flags"].get("adaptive_block")
    block, found = size, []
    for entry in record["trace"]:
        draft = entry["draft"]
        whole = min(most, block)
        cut = "num_nodes" in entry or (draft and draft[-1] == EOS)
        found.append(whole if cut else len(draft))
        if adaptive and draft:
            block = min(size, entry["num_accepted"] + 2)
    return found
