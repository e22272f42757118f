"""The sublayers of encoder and decoder layers, as functions of their weights."""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from .weights import Form, Map, Norm, SquareNorm, gather_norm, join


class CachedKeys(NamedTuple):
    """A layer of the cache, and where a chunk's keys and values are written in it."""

    keys: Tensor  # B×T×2×H×Dh, keys and values of one layer; written to
    where: tuple[Any, Any]  # the chunk's rows and slots in ``keys``, as an index
    end: int  # the number of slots that attention reads


class SelfAttention(NamedTuple):
    """Attention of a chunk to itself and to cached tokens, with norm and residual."""

    heads: int
    pre_norm: bool
    norm: Norm | SquareNorm
    qkv: Map  # query, key and value in one matrix, (3·H·Dh)×D
    out: Map
    scale: float | None = None  # of the scores; None: 1/√Dh

    def __call__(self, x: Tensor, bias: Tensor | None, cached: CachedKeys | None = None) -> Tensor:
        """Attend, B×K×D -> B×K×D.

        Args:
            x: B×K×D.
            bias: added to the attention scores, broadcast to B×H×K×T; None: no mask.
            cached: one layer of the cache; None: attend to the chunk only.
        """
        batch, width, _ = x.shape
        residual = x
        if self.pre_norm:
            x = self.norm(x)
        qkv = self.qkv(x).view(batch, width, 3, self.heads, -1)
        keys = qkv[:, :, 1:]  # B×K×2×H×Dh
        if cached is not None:
            cached.keys[cached.where] = keys
            keys = cached.keys[:, : cached.end]
        keys = keys.permute(2, 0, 3, 1, 4)  # 2×B×H×T×Dh
        query = qkv[:, :, 0].transpose(1, 2)  # B×H×K×Dh
        x = F.scaled_dot_product_attention(
            query, keys[0], keys[1], attn_mask=bias, scale=self.scale
        )
        x = residual + self.out(x.transpose(1, 2).reshape(batch, width, -1))
        return x if self.pre_norm else self.norm(x)


class SourceAttention(NamedTuple):
    """Attention of a chunk to the source, with norm and residual."""

    heads: int
    pre_norm: bool
    norm: Norm | SquareNorm
    query: Map
    out: Map
    scale: float | None = None  # of the scores; None: 1/√Dh

    def __call__(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        """Attend, B×K×D -> B×K×D.

        Args:
            x: B×K×D.
            source: 2×B×H×S×Dh, keys and values of the source.
            bias: B×1×1×S, -inf at padding; None: no padding.
        """
        batch, width, _ = x.shape
        residual = x
        if self.pre_norm:
            x = self.norm(x)
        query = self.query(x).view(batch, width, self.heads, -1).transpose(1, 2)
        x = F.scaled_dot_product_attention(
            query, source[0], source[1], attn_mask=bias, scale=self.scale
        )
        x = residual + self.out(x.transpose(1, 2).reshape(batch, width, -1))
        return x if self.pre_norm else self.norm(x)


class FeedForward(NamedTuple):
    """Two linear maps with an activation between them, with norm and residual."""

    pre_norm: bool
    norm: Norm | SquareNorm
    fc1: Map
    fc2: Map
    activation: Any
    gate: Map | None = None  # what hidden units are multiplied with

    def __call__(self, x: Tensor) -> Tensor:
        """Map each state, ...×D -> ...×D."""
        residual = x
        if self.pre_norm:
            x = self.norm(x)
        hidden = self.activation(self.fc1(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        x = residual + self.fc2(hidden)
        return x if self.pre_norm else self.norm(x)


class EncoderLayer(NamedTuple):
    """One encoder layer's weights."""

    attention: SelfAttention
    feed_forward: FeedForward


class DecoderLayer(NamedTuple):
    """One decoder layer's weights."""

    attention: SelfAttention
    source: SourceAttention
    feed_forward: FeedForward


def gather_encoder_layer(layer: Any, form: Form) -> EncoderLayer:
    """Gather one encoder layer's weights; see ``weights.join`` for the form."""
    return EncoderLayer(_gather_attention(layer, form), _gather_feed_forward(layer, form))


def gather_decoder_layer(layer: Any, form: Form) -> DecoderLayer:
    """Gather one decoder layer's weights; see ``weights.join`` for the form."""
    cross = layer.encoder_attn
    source = SourceAttention(
        heads=cross.num_heads,
        pre_norm=layer.normalize_before,
        norm=gather_norm(layer.encoder_attn_layer_norm),
        query=join([cross.q_proj], form),
        out=join([cross.out_proj], form),
    )
    feed_forward = _gather_feed_forward(layer, form)
    return DecoderLayer(_gather_attention(layer, form), source, feed_forward)


def _gather_attention(layer: Any, form: Form) -> SelfAttention:
    """Gather the self-attention of a layer."""
    attention = layer.self_attn
    return SelfAttention(
        heads=attention.num_heads,
        pre_norm=layer.normalize_before,
        norm=gather_norm(layer.self_attn_layer_norm),
        qkv=join([attention.q_proj, attention.k_proj, attention.v_proj], form),
        out=join([attention.out_proj], form),
    )


def _gather_feed_forward(layer: Any, form: Form) -> FeedForward:
    """Gather the feed-forward part of a layer."""
    return FeedForward(
        pre_norm=layer.normalize_before,
        norm=gather_norm(layer.final_layer_norm),
        fc1=join([layer.fc1], form),
        fc2=join([layer.fc2], form),
        activation=layer.activation_fn,
    )
