"""The floating-point operations of a model's passes, from its shape and real lengths.

Counted are the multiply-adds of matrix products, two operations each: linear maps and the two
products of attention, as torch.utils.flop_counter counts them. Not counted: embeddings, norms,
softmax, activations and biases. Sentences are counted one by one, without the padding of batches.
``decoding_flops.py`` counts the decoding of sentences, ``training_flops.py`` training.

Sources: santilli2023, Tables 3 and 5, appendix C (its script assumes 512 tokens per sentence; here
lengths are real).

| name          | meaning                                                         |
|---------------|-----------------------------------------------------------------|
| S             | source tokens, ``</s>`` counted                                 |
| T             | target tokens, ``</s>`` counted                                 |
| tokens        | tokens that go through the layers in a pass                     |
| keys          | positions that each of them attends to: cached ones and tokens  |
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
) -> tuple[float, float]:
    """Return the operations of a decoder's layers in a pass, and of its projection.

    Args:
        shape: of the model.
        tokens: of all hypotheses together.
        keys: positions that each attends to.
        source: S.
        projected: the number of tokens that are projected to the vocabulary.
        words: the size of a shortlist of the vocabulary; None for all.
    """
    stack = shape.decoder
    dim, words = stack.dim, shape.vocabulary if words is None else words
    resized, cut = (
        product(tokens, a, b) if a != b else 0
        for a, b in ((shape.embedding, dim), (dim, shape.output))
    )
    copied = product(tokens, source, shape.embedding) if shape.soft_copy else 0
    # Four maps of self-attention, two of cross-attention.
    layer = product(tokens, dim, 6 * dim) + 2 * product(tokens, dim, stack.inner)
    layer += attention(tokens, keys, dim) + attention(tokens, source, dim)
    return (
        resized + copied + stack.layers * layer,
        cut + product(projected, shape.output, words),
    )
