"""How many floating-point operations an update takes, from shapes and real lengths.

Counted as in ``flops.py``; what an optimizer does is left out. Source: santilli2023, appendix C
(whose script takes a backward pass for one forward pass; here it is two, but where nothing learns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .flops import Shape, decoder_pass, encoder, product, source_keys


@dataclass(frozen=True)
class Update:
    """Operations of learning from a sentence.

    Attributes:
        forward: of the forward passes.
        backward: of the gradients.
    """

    forward: float = 0
    backward: float = 0

    def __add__(self, other: Update) -> Update:
        """Add."""
        return Update(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: float) -> Update:
        """Repeat."""
        return Update(self.forward * times, self.backward * times)

    @property
    def total(self) -> float:
        """Both."""
        return self.forward + self.backward


def _learn(forward: float, gradients: int = 2) -> Update:
    """Count products with their gradients: of weights (or one factor), and of what goes in."""
    return Update(forward, gradients * forward)


def transformer_update(shape: Shape, source: int, target: int) -> Update:
    """Count an update of a Transformer, or of one that writes in another order.

    Args:
        shape: of the model.
        source: S.
        target: T, ``</s>`` counted; inputs fill whole steps.
    """
    z = shape.tokens_per_step
    rows = -(-target // z) * z
    pieces = decoder_pass(shape, rows, rows, source, rows)
    return _learn(encoder(shape, source) + source_keys(shape, source) + sum(pieces.values()))


def block_positions(target: int, size: int) -> float:
    """Return the mean number of true tokens in a block of K behind a prefix of any length.

    Prefixes have 0 to T-1 tokens, each as often.
    """
    return sum(min(size, target - start) for start in range(target)) / target


def drafter_update(
    shape: Shape, source: int, target: int, prefixes: int, block: int, glancing: bool,
    scored: float | None = None,
) -> Update:  # fmt: skip
    """Count an update of a block_nat model by block_nat_loss.

    Args:
        shape: of the model; a shared encoder does not learn.
        source: S.
        target: T, ``</s>`` counted.
        prefixes: of the sentence in one pass; as many as the target has tokens at most.
        block: K.
        glancing: whether a first pass, without gradient, comes before.
        scored: how many positions are predicted for the loss; by default all that are expected to
            have a true token, as if glancing revealed none: an upper bound.
    """
    prefixes = min(prefixes, target)
    expected = prefixes * block_positions(target, block)
    scored = expected if scored is None else scored
    rows = target + prefixes * block
    pieces = decoder_pass(shape, rows, rows, source, scored)
    keys = source_keys(shape, source)
    copied = product(rows, source, shape.embedding) if shape.soft_copy else 0
    # The prefixes are cut off before the states are resized for the vocabulary.
    cut = product(target, shape.decoder.dim, shape.output)
    cut = cut if shape.decoder.dim != shape.output else 0
    read = encoder(shape, source)
    # What is computed from a frozen encoder's output needs no gradient of that.
    gradients = 1 if shape.shares_encoder else 2
    found = Update(read) if shape.shares_encoder else _learn(read)
    found += _learn(keys + copied, gradients) + _learn(sum(pieces.values()) - copied - cut)
    if glancing:
        guess = decoder_pass(shape, rows, rows, source, expected)
        found += Update(keys + sum(guess.values()) - cut)
    return found


def heads_update(
    shape: Shape, source: int, target: int, chosen: Sequence[int], frozen: bool
) -> Update:
    """Count an update of blockwise heads by blockwise_loss.

    Args:
        shape: of the model, with heads.
        source: S.
        target: T, ``</s>`` counted.
        chosen: the heads that learn from the mini-batch, from 0.
        frozen: whether the base stays as it is.
    """
    heads = shape.heads
    assert heads is not None
    base = encoder(shape, source) + source_keys(shape, source)
    base += sum(decoder_pass(shape, target, target, source, 0).values())
    found = Update(base) if frozen else _learn(base)
    asked = sum(heads.first or head > 0 for head in chosen)
    # Without a base that learns, no gradient of its states or of its projection is wanted.
    gradients = 1 if frozen else 2
    found += _learn(heads.inner(target, asked), gradients) + _learn(heads.outer(target, asked))
    scored = sum(max(target - head, 0) for head in chosen)
    return found + _learn(product(scored, shape.output, shape.vocabulary), gradients)
