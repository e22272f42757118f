"""A fairseq Transformer's decoder weights, in the form that a pass over a chunk wants them.

Also: which models have such weights, and which are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerModelBase,
)
from fairseq.modules import (
    LearnedPositionalEmbedding,
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
)
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayer,
    TransformerDecoderLayerBase,
)
from torch import Tensor, nn

from ..errors import UsageError


class Norm(NamedTuple):
    """A layer norm's weights."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Linear(NamedTuple):
    """A linear map's weights; without the overhead of calling a module."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return F.linear(x, self.weight, self.bias)


class Layer(NamedTuple):
    """One decoder layer's weights."""

    heads: int
    pre_norm: bool
    self_norm: Norm
    qkv: Linear  # query, key and value in one matrix, 3D×D
    self_out: Linear
    cross_norm: Norm
    cross_query: Linear
    cross_out: Linear
    ffn_norm: Norm
    fc1: Linear
    fc2: Linear
    activation: Any


def gather_norm(norm: Any) -> Norm:
    """Take a layer norm's weights."""
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def join(linears: Sequence[Any], by_columns: bool = False) -> Linear:
    """Make one linear map of several that have the same input.

    Args:
        linears: modules with weight and bias.
        by_columns: copy the weight so that a column of it lies together in memory. In fp32 on a
            CPU, products with the few rows of a chunk then take about half as long.
    """
    weights = [linear.weight.detach() for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if by_columns:
        weight = weight.t().contiguous().t()
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return Linear(weight, torch.cat(biases) if biases else None)


def gather_layer(layer: Any, by_columns: bool = False) -> Layer:
    """Take one decoder layer's weights; see join."""
    attention, cross = layer.self_attn, layer.encoder_attn
    return Layer(
        heads=attention.num_heads,
        pre_norm=layer.normalize_before,
        self_norm=gather_norm(layer.self_attn_layer_norm),
        qkv=join([attention.q_proj, attention.k_proj, attention.v_proj], by_columns),
        self_out=join([attention.out_proj], by_columns),
        cross_norm=gather_norm(layer.encoder_attn_layer_norm),
        cross_query=join([cross.q_proj], by_columns),
        cross_out=join([cross.out_proj], by_columns),
        ffn_norm=gather_norm(layer.final_layer_norm),
        fc1=join([layer.fc1], by_columns),
        fc2=join([layer.fc2], by_columns),
        activation=layer.activation_fn,
    )


_POSITIONS = (type(None), LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)


def refuse_unknown(
    model: Any,
    decoders: Sequence[type] = (TransformerDecoderBase, TransformerDecoder),
    positions: Sequence[type] = _POSITIONS,
) -> None:
    """Raise a UsageError, with the model's name, if ChunkScorer would decode it wrongly.

    Types are compared exactly: a subclass may compute something else under the same names.

    Args:
        model: the model.
        decoders: the types that its decoder may have.
        positions: the types that the decoder's positions may have.
    """
    name = type(model).__name__
    reason = None
    decoder: Any = getattr(model, "decoder", None)
    if not isinstance(model, TransformerModelBase):
        reason = "it is not a fairseq TransformerModelBase"
    elif type(decoder) not in decoders:
        reason = f"its decoder is a {type(decoder).__name__}, not the stock Transformer decoder"
    elif decoder.cross_self_attention:
        reason = "it uses cross-self-attention (--cross-self-attention)"
    elif type(model).get_normalized_probs is not TransformerModelBase.get_normalized_probs:
        reason = "it normalises probabilities in its own way (get_normalized_probs)"
    elif type(decoder.embed_tokens) is not nn.Embedding:
        reason = f"its target embedding is a {type(decoder.embed_tokens).__name__}"
    elif type(decoder.embed_positions) not in positions:
        reason = f"its positions are a {type(decoder.embed_positions).__name__}"
    else:
        reason = next(filter(None, map(_why_layer_unknown, decoder.layers)), None)
    if reason is not None:
        raise UsageError(
            f"--decoding: {name} cannot be decoded in parallel: {reason}; "
            "allowed: a stock fairseq Transformer, or --decoding beam for fairseq's own search"
        )


def _why_layer_unknown(layer: Any) -> str | None:
    """Say in words why a decoder layer is not the stock one, or return None."""
    if type(layer) not in (TransformerDecoderLayerBase, TransformerDecoderLayer):
        return f"its decoder holds a {type(layer).__name__}"
    if layer.encoder_attn is None:
        return "its decoder has no attention to the source (--no-cross-attention)"
    extras = ("c_attn", "attn_ln", "ffn_layernorm", "w_resid")
    used = [extra for extra in extras if getattr(layer, extra, None) is not None]
    if used:
        return f"its decoder layers hold NormFormer's {', '.join(used)}"
    for attention in (layer.self_attn, layer.encoder_attn):
        if type(attention) is not MultiheadAttention:
            return f"its decoder's attention is a {type(attention).__name__}"
        if attention.bias_k is not None or attention.add_zero_attn:
            return "its decoder's attention has extra keys (add_bias_kv, add_zero_attn)"
        if getattr(attention, "use_xformers", False):
            return "its decoder's attention is from xFormers"
        if attention.skip_embed_dim_check:
            return "heads of its decoder's attention were pruned"
    linears = [m for m in layer.modules() if hasattr(m, "in_features")]
    strange = [m for m in linears if type(m) is not nn.Linear]
    if strange:
        return f"its decoder holds a {type(strange[0]).__name__} in the place of a Linear"
    return None
