"""The models that the scorers support; others raise an error that names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from torch import nn

from ..errors import UsageError

_POSITIONS = (type(None), LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)


def refuse_unknown(
    model: Any,
    decoders: Sequence[type] = (TransformerDecoderBase, TransformerDecoder),
    positions: Sequence[type] = _POSITIONS,
    self_attention: type = MultiheadAttention,
) -> None:
    """Raise a UsageError, with the model's name, if ChunkScorer would decode it wrongly.

    Types are compared exactly, because a subclass may compute something else under the same names.

    Args:
        model: the model.
        decoders: allowed types of its decoder.
        positions: allowed types of the decoder's positions.
        self_attention: the required type of the decoder's self-attention.
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
        layers = decoder.layers.children()
        reasons = (_why_layer_unknown(layer, self_attention) for layer in layers)
        reason = next(filter(None, reasons), None)
    if reason is not None:
        raise UsageError(
            f"--decoding: {name} cannot be decoded in parallel: {reason}; "
            "allowed: a stock fairseq Transformer, or --decoding beam for fairseq's own search"
        )


def _why_layer_unknown(layer: Any, self_attention: type) -> str | None:
    """Return why a decoder layer is not the stock one, in words, or None.

    Args:
        layer: the layer.
        self_attention: the required type of its self-attention.
    """
    if type(layer) not in (TransformerDecoderLayerBase, TransformerDecoderLayer):
        return f"its decoder holds a {type(layer).__name__}"
    if layer.encoder_attn is None:
        return "its decoder has no attention to the source (--no-cross-attention)"
    extras = ("c_attn", "attn_ln", "ffn_layernorm", "w_resid")
    used = [extra for extra in extras if getattr(layer, extra, None) is not None]
    if used:
        return f"its decoder layers hold NormFormer's {', '.join(used)}"
    attentions = (layer.self_attn, layer.encoder_attn)
    for attention, kind in zip(attentions, (self_attention, MultiheadAttention), strict=True):
        if type(attention) is not kind:
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
