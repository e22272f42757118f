"""The decoder's pass over a chunk: a function of weights, a cache and tokens."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..masks import Mask, Tree
from .bias import attention_bias, by_distance, slots_seen
from .cache import Cache
from .choices import on_device
from .layers import CachedKeys, DecoderLayer
from .weights import Form, Linear, Map, Norm, SquareNorm


class DecoderWeights(NamedTuple):
    """The weights of a decoder that a pass reads."""

    form: Form  # the memory layout of the matrices; see ``weights.join``
    embedding: Tensor  # V×E; of a block model (V+1)×E, with the mask vector as the last token
    scale: float  # the factor of the embeddings
    noise: Linear | None  # E×E, the map that fairseq trains with quantisation noise, or None
    project_in: Linear | None  # D×E, or None
    positions: Tensor | None  # P×D, the vectors of positions 0 to P-1, or None
    embedding_norm: Norm | SquareNorm | None  # the norm after embeddings and positions, or None
    # for a block model that adds source embeddings to its masks: the rate at which their weight
    # falls with the distance; or None
    copy_sharpness: Tensor | None
    layers: list[DecoderLayer]  # the decoder layers
    source_keys: Map  # all layers' key and value maps of the source in one matrix, (L·2·D)×C
    final_norm: Norm | SquareNorm | None  # the norm after the last layer, or None
    project_out: Linear | None  # E×D, or None
    distances: Tensor | None = None  # H×(2·R+1), biases by distance from -R to R, or None


def source_keys(weights: DecoderWeights, states: Tensor) -> Tensor:
    """Compute keys and values of the source: B×S×C -> L×2×B×H×S×Dh."""
    batch, length = states.shape[:2]
    projected = weights.source_keys(states)  # B×S×(L·2·D)
    shape = (batch, length, len(weights.layers), 2, weights.layers[0].source.heads, -1)
    return projected.view(shape).permute(2, 3, 0, 4, 1, 5).contiguous()


def decoder_pass(
    weights: DecoderWeights, cache: Cache, tokens: Tensor, mask: Mask = "causal"
) -> Tensor:
    """Run the decoder over one chunk per row, and cache its keys and values.

    Each row continues from its cached length, ``cache.lengths``. The pass does not change the
    lengths: the caller sets by ``cache.keep`` how much of the chunk stays cached.

    Args:
        weights: the decoder's weights.
        cache: the batch's cache; written to.
        tokens: B×K decoder inputs. ``<pad>`` is a token like any other here: it is embedded
            (fairseq's is a zero vector), takes a position, and later tokens attend to it.
        mask: the attention mask; see ``masks``.

    Returns:
        B×K×D hidden states, ready for the projection.
    """
    width = tokens.size(1)
    cache.make_room(width)
    place = cache.place(width)
    bias = attention_bias(cache, place, mask)
    positions = place.positions
    if isinstance(mask, Tree):
        positions = on_device(mask.positions(), cache.keys)
    if weights.distances is not None:
        slots = slots_seen(bias, place.end, isinstance(mask, Tree), positions)
        near = by_distance(weights.distances, positions, slots)
        bias = near if bias is None else bias + near
    x = embed(weights, tokens, positions, cache.source_vectors)
    for index, layer in enumerate(weights.layers):
        written = CachedKeys(cache.keys[index], place.where, place.end)
        x = run_layer(layer, x, written, bias, cache.source[index], cache.source_bias)
    return finish(weights, x)


def embed(
    weights: DecoderWeights,
    tokens: Tensor,
    positions: slice | Tensor,
    source: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Embed a chunk as fairseq's decoder does: scale, project, add positions, normalise.

    Args:
        weights: the decoder's weights.
        tokens: B×K.
        positions: the tokens' positions; see ``Place``.
        source: embeddings and padding of the source, for a decoder that copies from it.

    Returns:
        B×K×D.
    """
    x = F.embedding(tokens, weights.embedding)
    if weights.scale != 1.0:
        x = weights.scale * x
    if weights.copy_sharpness is not None:
        assert source is not None
        is_mask = tokens.eq(weights.embedding.size(0) - 1)[:, :, None]
        x = x + is_mask * _soft_copy(weights.copy_sharpness, positions, *source)
    if weights.noise is not None:
        x = weights.noise(x)
    if weights.project_in is not None:
        x = weights.project_in(x)
    table = weights.positions
    if table is not None:
        # A chunk or a block of masks may extend past a row's last position; outputs past it are
        # not used.
        last = table.size(0) - 1
        if isinstance(positions, slice) and positions.stop > table.size(0):
            positions = torch.arange(positions.start, positions.stop, device=tokens.device)
        if not isinstance(positions, slice):
            positions = positions.clamp(max=last)
        x = x + table[positions]
    return x if weights.embedding_norm is None else weights.embedding_norm(x)


def _soft_copy(
    sharpness: Tensor, positions: slice | Tensor, vectors: Tensor, padding: Tensor
) -> Tensor:
    """Average the source embeddings around each position: R×K positions -> B×K×E.

    Args:
        sharpness: the rate at which an embedding's weight falls with its distance.
        positions: the tokens' positions.
        vectors: B×S×E.
        padding: B×S; fairseq pads sources on the left.
    """
    if isinstance(positions, slice):
        positions = torch.arange(positions.start, positions.stop, device=vectors.device)[None]
    where = (~padding).cumsum(dim=1) - 1
    distance = (positions[:, :, None] - where[:, None]).abs().to(vectors.dtype)
    scores = (-distance * sharpness).masked_fill(padding[:, None], float("-inf"))  # B×K×S
    return scores.softmax(dim=-1) @ vectors


def run_layer(
    layer: DecoderLayer,
    x: Tensor,
    written: CachedKeys,
    bias: Tensor | None,
    source: Tensor,
    source_bias: Tensor | None,
) -> Tensor:
    """Run one decoder layer over a chunk, B×K×D -> B×K×D.

    Args:
        layer: its weights.
        x: B×K×D.
        written: where its keys and values are written.
        bias: the self-attention bias; see ``bias.attention_bias``.
        source: 2×B×H×S×Dh, the source's keys and values.
        source_bias: B×1×1×S, or None.
    """
    x = layer.attention(x, bias, written)
    x = layer.source(x, source, source_bias)
    return layer.feed_forward(x)


def finish(weights: DecoderWeights, x: Tensor) -> Tensor:
    """Normalise and project the last layer's output, as fairseq's decoder does."""
    if weights.final_norm is not None:
        x = weights.final_norm(x)
    return x if weights.project_out is None else weights.project_out(x)
