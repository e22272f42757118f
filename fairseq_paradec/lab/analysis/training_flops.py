"""The floating-point operations of an update, from shapes and real lengths.

Counted as in ``flops.py``, without the optimizer. Source: santilli2023, appendix C. Its script
counts a backward pass as one forward pass; here it is two, less for frozen parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .flops import Shape, decoder_pass, encoder, product, source_keys


@dataclass(frozen=True)
class Update:
    """Operations of an update on one sentence."""

    forward: float = 0  # of the forward passes
    backward: float = 0  # of the backward pass

    def __add__(self, other: "Update") -> "Update":
        """Add."""
        return Update(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: float) -> "Update":
        """Repeat."""
        return Update(self.forward * times, self.backward * times)

    @property
    def total(self) -> float:
        """Both."""
        return self.forward + self.backward


def _learn(forward: float, gradients: int = 2) -> Update:
    """Count products with their gradients, of weights (or one factor) and of inputs."""
    return Update(forward, gradients * forward)


def _reading(shape: Shape, source: int, copied: float = 0) -> Update:
    """Count the encoder, and what the decoder makes of its output for all target tokens.

    Args:
        shape: of the model; a shared encoder does not learn, so its output needs no gradient.
        source: S.
        copied: the operations of the soft copy.
    """
    read, keys = encoder(shape, source), source_keys(shape, source) + copied
    if shape.shares_encoder:
        return Update(read) + _learn(keys, 1)
    return _learn(read + keys)


def transformer_update(shape: Shape, source: int, target: int) -> Update:
    """Count an update of a Transformer, or of a reordered one.

    Args:
        shape: of the model; a shared encoder does not learn.
        source: S.
        target: T, ``</s>`` counted; inputs fill whole steps.
    """
    z = shape.tokens_per_step
    tokens = -(-target // z) * z
    learning = sum(decoder_pass(shape, tokens, tokens, source, tokens))
    return _reading(shape, source) + _learn(learning)


def block_positions(target: int, size: int) -> float:
    """Return the mean number of target tokens in a block of K after a prefix.

    Prefix lengths 0 to T-1 are equally likely.
    """
    return sum(min(size, target - start) for start in range(target)) / target


def drafter_update(
    shape: Shape,
    source: int,
    target: int,
    prefixes: int,
    block: int,
    glancing: bool,
    scored: float | None = None,
    tries: int = 0,
) -> Update:
    """Count an update of a block_nat model by block_nat_loss.

    Args:
        shape: of the model; a shared encoder does not learn.
        source: S.
        target: T, ``</s>`` counted.
        prefixes: number of prefixes in one pass; at most T.
        block: K.
        glancing: whether a pass without gradients comes first.
        scored: number of scored positions; by default all positions with a target token, as if
            glancing revealed none: an upper bound.
        tries: number of prefixes that are tried for errors, without gradients; 0: no such pass.
    """
    prefixes, tries = min(prefixes, target), min(tries, target)
    expected = prefixes * block_positions(target, block)
    scored = expected if scored is None else scored
    copied = product(target + prefixes * block, source, shape.embedding) if shape.soft_copy else 0
    learning = _blocks_pass(shape, source, target, prefixes, block, scored) - copied
    update = _reading(shape, source, copied) + _learn(learning)
    if glancing:
        guess = _blocks_pass(shape, source, target, prefixes, block, expected)
        update += Update(source_keys(shape, source) + guess)
    if tries:
        tried = _blocks_pass(shape, source, target, tries, block, tries)
        update += Update(encoder(shape, source) + source_keys(shape, source) + tried)
    return update


def _blocks_pass(
    shape: Shape, source: int, target: int, prefixes: int, block: int, projected: float
) -> float:
    """Count a pass of a block_nat model over a target and its blocks; see ``drafter_update``."""
    tokens = target + prefixes * block
    whole = sum(decoder_pass(shape, tokens, tokens, source, projected))
    # Only states of the blocks are resized for the vocabulary.
    cut = product(target, shape.decoder.dim, shape.output)
    return whole - (cut if shape.decoder.dim != shape.output else 0)


def heads_update(
    shape: Shape, source: int, target: int, chosen: Sequence[int], frozen: bool
) -> Update:
    """Count an update of blockwise heads by blockwise_loss.

    Args:
        shape: of the model, with heads.
        source: S.
        target: T, ``</s>`` counted.
        chosen: the heads that the mini-batch trains, from 0.
        frozen: whether the base is frozen.
    """
    heads = shape.heads
    assert heads is not None
    base = encoder(shape, source) + source_keys(shape, source)
    base += sum(decoder_pass(shape, target, target, source, 0))
    update = Update(base) if frozen else _learn(base)
    asked = sum(heads.first or head > 0 for head in chosen)
    # A frozen base needs no gradient of its states or its projection.
    gradients = 1 if frozen else 2
    inner = heads.inner(target, asked)
    if heads.seen and heads.first and 0 in chosen:  # head 0 does not see what the others see
        inner = heads.inner(target, 1, sees=False) + heads.inner(target, asked - 1)
    update += _learn(inner, gradients) + _learn(heads.outer(target, asked))
    scored = sum(max(target - head, 0) for head in chosen)
    return update + _learn(product(scored, shape.output, shape.vocabulary), gradients)
