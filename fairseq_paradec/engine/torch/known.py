"""What the engine knows of fairseq's classes: no other file of it imports fairseq.

The models that the scorers support; others raise an error that names them. The encoders that
LeanEncoder computes; others run as fairseq's. Positions and activations.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError


def refuse_unknown(
    model: Any,
    decoders: Sequence[type] | None = None,
    positions: Sequence[type] | None = None,
    self_attention: type | None = None,
) -> None:
    """Raise a UsageError, with the model's name, if ChunkScorer would decode it wrongly.

    Types are compared exactly, because a subclass may compute something else under the same names.

    Args:
        model: the model.
        decoders: allowed types of its decoder; None: fairseq's.
        positions: allowed types of the decoder's positions; None: fairseq's, and none at all.
        self_attention: the required type of the decoder's self-attention; None: fairseq's.
    """
    from fairseq.models import transformer
    from fairseq.modules import MultiheadAttention

    base = transformer.TransformerModelBase
    if decoders is None:
        decoders = (transformer.TransformerDecoderBase, transformer.TransformerDecoder)
    if positions is None:
        positions = (type(None), *_stock().positions)
    name = type(model).__name__
    reason = None
    decoder: Any = getattr(model, "decoder", None)
    if not isinstance(model, base):
        reason = "it is not a fairseq TransformerModelBase"
    elif type(decoder) not in decoders:
        reason = f"its decoder is a {type(decoder).__name__}, not the stock Transformer decoder"
    elif decoder.cross_self_attention:
        reason = "it uses cross-self-attention (--cross-self-attention)"
    elif type(model).get_normalized_probs is not base.get_normalized_probs:
        reason = "it normalises probabilities in its own way (get_normalized_probs)"
    elif type(decoder.embed_tokens) is not nn.Embedding:
        reason = f"its target embedding is a {type(decoder.embed_tokens).__name__}"
    elif type(decoder.embed_positions) not in positions:
        reason = f"its positions are a {type(decoder.embed_positions).__name__}"
    else:
        layers = decoder.layers.children()
        attention = self_attention or MultiheadAttention
        reasons = (_why_layer_unknown(layer, attention) for layer in layers)
        reason = next(filter(None, reasons), None)
    if reason is not None:
        raise UsageError(
            f"--decoding: {name} cannot be decoded in parallel: {reason}; "
            "allowed: a stock fairseq Transformer, or --decoding beam for fairseq's own search"
        )


def _why_layer_unknown(layer: Any, self_attention: type) -> str | None:
    """Return why a decoder layer is not the stock one, in words, or None."""
    from fairseq.modules import MultiheadAttention
    from fairseq.modules.transformer_layer import (
        TransformerDecoderLayer,
        TransformerDecoderLayerBase,
    )

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


@functools.cache
def _activation_names() -> dict[Any, str]:
    """Return fairseq's names of activation functions."""
    from fairseq.utils import get_activation_fn

    names = {get_activation_fn(name): name for name in ("relu", "gelu", "gelu_accurate", "tanh")}
    return {**names, F.silu: "swish"}


def activation_name(function: Any) -> str | None:
    """Return fairseq's name of an activation function, or None if native passes have no such."""
    return _activation_names().get(function)


def is_sinusoidal(places: Any) -> bool:
    """Return whether a module of positions is fairseq's of sinusoids, which grow on demand."""
    from fairseq.modules import SinusoidalPositionalEmbedding

    return isinstance(places, SinusoidalPositionalEmbedding)


def position_vectors(places: Any, size: int) -> Tensor:
    """Return the vectors of fairseq's positions, at least ``size`` by D; learned ones: all."""
    first = places.padding_idx + 1
    if not is_sinusoidal(places):
        learned: Tensor = places.weight[first:].detach()
        return learned
    vectors: Tensor = places.weights
    if vectors.size(0) < first + size:
        vectors = places.get_embedding(first + size, places.embedding_dim, places.padding_idx)
    return vectors[first:]


def place_numbers(tokens: Tensor, pad: int) -> Tensor:
    """Return fairseq's position number of each token, B×S; ``pad`` at padding."""
    from fairseq.utils import make_positions

    numbers: Tensor = make_positions(tokens, pad)
    return numbers


class _Stock(NamedTuple):
    """The types of a stock encoder's modules."""

    positions: tuple[type, ...]
    encoders: tuple[type, ...]
    layers: tuple[type, ...]
    lists: tuple[type, ...]
    norms: tuple[type, ...]
    parts: Mapping[type, Mapping[str, tuple[type, ...]]]  # of each part of a module


@functools.cache
def _stock() -> _Stock:
    """Return fairseq's types; the import of this module does not import fairseq."""
    from fairseq.models.transformer import TransformerEncoder, TransformerEncoderBase
    from fairseq.modules import (
        LayerDropModuleList,
        LearnedPositionalEmbedding,
        MultiheadAttention,
        SinusoidalPositionalEmbedding,
        layer_norm,
    )
    from fairseq.modules.fairseq_dropout import FairseqDropout
    from fairseq.modules.transformer_layer import (
        TransformerEncoderLayer,
        TransformerEncoderLayerBase,
    )

    positions = (LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)
    encoders = (TransformerEncoder, TransformerEncoderBase)
    layers = (TransformerEncoderLayer, TransformerEncoderLayerBase)
    lists = (nn.ModuleList, LayerDropModuleList)
    norms = (nn.LayerNorm, getattr(layer_norm, "FusedLayerNorm", nn.LayerNorm))
    linear, dropout = (nn.Linear,), (FairseqDropout,)
    encoder_parts: dict[str, tuple[type, ...]] = {
        "embed_tokens": (nn.Embedding,),
        "embed_positions": positions,
        "layernorm_embedding": norms,
        "dropout_module": dropout,
        "layers": lists,
        "layer_norm": norms,
    }
    layer_parts: dict[str, tuple[type, ...]] = {
        "self_attn": (MultiheadAttention,),
        "self_attn_layer_norm": norms,
        "dropout_module": dropout,
        "activation_dropout_module": dropout,
        "fc1": linear,
        "fc2": linear,
        "final_layer_norm": norms,
    }
    attention_parts: dict[str, tuple[type, ...]] = {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj"), linear),
        "dropout_module": dropout,
    }
    parts: dict[type, Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(encoders, encoder_parts),
        **dict.fromkeys(layers, layer_parts),
        MultiheadAttention: attention_parts,
    }
    return _Stock(positions, encoders, layers, lists, norms, parts)


def is_stock_encoder(encoder: Any) -> bool:
    """Return whether LeanEncoder computes the same as this encoder."""
    return _is_stock(encoder, _stock().encoders)


def _is_stock(module: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether LeanEncoder computes the same as this module.

    Types are compared exactly, because a subclass may compute something else under the same names.
    So may a hook, or a ``forward`` assigned to the module.
    """
    kind, stock = getattr(module, "stands_for", type(module)), _stock()
    if kind not in kinds or module._forward_hooks or module._forward_pre_hooks:
        return False
    if "forward" in vars(module) and not hasattr(module, "precheckpoint_forward"):
        return False
    if kind in (nn.Linear, *stock.norms) and module.bias is None:
        return False
    # Quantisation noise, adapters, NormFormer's extras, extra keys and xFormers show as parts or
    # weights that a stock module does not have; these options show as flags only:
    flags = ("return_fc", "add_zero_attn", "skip_embed_dim_check", "apply_during_inference")
    if any(getattr(module, flag, False) for flag in flags):
        return False
    if kind in stock.parts and next(module.parameters(recurse=False), None) is not None:
        return False
    if kind in stock.lists:
        return all(_is_stock(layer, stock.layers) for layer in module.children())
    parts = stock.parts.get(kind, {})
    return all(_is_stock(part, parts.get(name, ())) for name, part in module.named_children())
