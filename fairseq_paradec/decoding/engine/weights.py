"""A fairseq Transformer's decoder weights, in the form that a pass over a chunk wants them.

Also: which models have such weights, and which are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

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

from ...errors import UsageError


class Norm(NamedTuple):
    """A layer norm's weights."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Linear(NamedTuple):
    """A linear map's weights; without the overhead of calling a module."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """A linear map in fp32 or bfloat16 on a CPU, its weight laid out once as oneDNN wants it.

    In bfloat16, torch's own ``F.linear`` lays it out anew in every call, which takes as long as the
    product. In fp32 it is the form for several rows and weights that do not fit into the cache; one
    row is served as well by the weight as it is, and packing waits for the first chunk.

    Args:
        weight: O×I.
        bias: O, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.plain = Linear(weight, bias)
        self.packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        if x.dtype == torch.float32 and x.numel() == x.size(-1):
            return self.plain(x)
        if self.packed is None:
            weight = self.plain.weight.contiguous()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.plain.bias, "none", [], ""
        )
        return out


class Int8Linear:
    """A linear map with weights in 8 bits, a scale for each output; inputs are quantised as met.

    The kernels are torch's own (fbgemm); what goes in and comes out is fp32.

    Args:
        weight: O×I.
        bias: O, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.float().contiguous()
        scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127
        zeros = torch.zeros(len(scales), dtype=torch.long)
        whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(
            whole, None if bias is None else bias.float()
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        out: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, True)
        return out


# How a weight lies in memory; see join.
Form = Literal["plain", "columns", "packed", "int8"]
Map = Linear | PackedLinear | Int8Linear


class Layer(NamedTuple):
    """One decoder layer's weights."""

    heads: int
    pre_norm: bool
    self_norm: Norm
    qkv: Map  # query, key and value in one matrix, 3D×D
    self_out: Map
    cross_norm: Norm
    cross_query: Map
    cross_out: Map
    ffn_norm: Norm
    fc1: Map
    fc2: Map
    activation: Any


def gather_norm(norm: Any) -> Norm:
    """Take a layer norm's weights."""
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def join(linears: Sequence[Any], form: Form = "plain") -> Map:
    """Make one linear map of several that have the same input.

    Args:
        linears: modules with weight and bias.
        form: how the weight is kept. ``plain``: as it is; ``columns``: a copy in which a column of
            it lies together in memory (in fp32 on a CPU, products of the few rows of a chunk with
            weights in the cache then take about half as long); ``packed``: see PackedLinear;
            ``int8``: see Int8Linear.
    """
    weights = [linear.weight.detach() for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return make_map(weight, torch.cat(biases) if biases else None, form)


def make_map(weight: Tensor, bias: Tensor | None, form: Form) -> Map:
    """Make a linear map of its weight, O×I, and bias; see join for its forms."""
    if form == "packed":
        return PackedLinear(weight, bias)
    if form == "int8":
        return Int8Linear(weight, bias)
    if form == "columns":
        weight = weight.t().contiguous().t()
    return Linear(weight, bias)


def compiles(form: Form, dtype: torch.dtype, rows: int) -> bool:
    """Say whether torch.compile can look into products of weights in this form.

    What libraries have laid out is closed to it, and a call from compiled code costs more than what
    compiling saves.

    Args:
        form: of the weights.
        dtype: of the states.
        rows: of what is multiplied.
    """
    return form in ("plain", "columns") or (form == "packed" and rows == 1 and dtype.itemsize == 4)


# Weights of more bytes than this are read from memory in every pass.
CACHED_BYTES = 16 * 2**20


def best_form(
    dtype: torch.dtype, device: torch.device, lasting: bool = True, count: int = 0
) -> Form:
    """Return the form in which weights serve chunks best, without a change of their values.

    Args:
        dtype: of the weights.
        device: where they are.
        lasting: whether they will not change; otherwise a copy is not worth its time.
        count: how many numbers a pass reads.
    """
    if not lasting or device.type != "cpu":
        return "plain"
    packs = torch.backends.mkldnn.is_available()
    if dtype == torch.bfloat16 and packs and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "packed"
    if dtype == torch.float32 and packs and count * dtype.itemsize > CACHED_BYTES:
        return "packed"
    return "columns" if dtype in (torch.float32, torch.float64) else "plain"


def gather_layer(layer: Any, form: Form = "plain") -> Layer:
    """Take one decoder layer's weights; see join."""
    attention, cross = layer.self_attn, layer.encoder_attn
    return Layer(
        heads=attention.num_heads,
        pre_norm=layer.normalize_before,
        self_norm=gather_norm(layer.self_attn_layer_norm),
        qkv=join([attention.q_proj, attention.k_proj, attention.v_proj], form),
        self_out=join([attention.out_proj], form),
        cross_norm=gather_norm(layer.encoder_attn_layer_norm),
        cross_query=join([cross.q_proj], form),
        cross_out=join([cross.out_proj], form),
        ffn_norm=gather_norm(layer.final_layer_norm),
        fc1=join([layer.fc1], form),
        fc2=join([layer.fc2], form),
        activation=layer.activation_fn,
    )


_POSITIONS = (type(None), LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)


def refuse_unknown(
    model: Any,
    decoders: Sequence[type] = (TransformerDecoderBase, TransformerDecoder),
    positions: Sequence[type] = _POSITIONS,
    self_attention: type = MultiheadAttention,
) -> None:
    """Raise a UsageError, with the model's name, if ChunkScorer would decode it wrongly.

    Types are compared exactly: a subclass may compute something else under the same names.

    Args:
        model: the model.
        decoders: the types that its decoder may have.
        positions: the types that the decoder's positions may have.
        self_attention: the type that the decoder's self-attention must have.
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
    """Say in words why a decoder layer is not the stock one, or return None.

    Args:
        layer: the layer.
        self_attention: the type that its self-attention must have.
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
