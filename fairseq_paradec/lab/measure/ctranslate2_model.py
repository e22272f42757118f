"""A model in CTranslate2's format, written from the weights alone: neither torch nor fairseq."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import extras
from ...errors import UsageError
from ...model.model import Model
from . import CTRANSLATE2

#: CTranslate2's names of activations, by fairseq's.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_accurate": "GELUTanh",
    "swish": "SWISH",
    "tanh": "Tanh",
}


def write(model: Model, words: Sequence[Sequence[str]], folder: str) -> None:
    """Write a Transformer, with its vocabularies, in fp32.

    Args:
        model: the model.
        words: the symbols of source and target by number.
        folder: an empty one, which CTranslate2 then loads.

    Raises:
        UsageError: CTranslate2 is not installed, or has no layout for the model.
    """
    with extras.named(f"--peers {CTRANSLATE2}"):
        from ctranslate2 import specs
    _check(model)
    sides = {}
    kinds = {"encoder": specs.TransformerEncoderSpec, "decoder": specs.TransformerDecoderSpec}
    for side, kind in kinds.items():
        layers = model.layers(side)
        sides[side] = kind(
            layers.count,
            layers.heads,
            pre_norm=layers.pre_norm,
            no_final_norm=not layers.final_norm,
            activation=getattr(specs.Activation, _ACTIVATIONS[layers.activation]),
            layernorm_embedding=layers.embedding_norm,
        )
        _fill_side(sides[side], model, side)
    spec = specs.TransformerSpec(**sides)
    projection, name = spec.decoder.projection, "decoder.output_projection"
    projection.weight = model.weight(f"{name}.weight")
    if model.architecture.output_bias:
        projection.bias = model.weight(f"{name}.bias")
    sources, targets = (
        ["<blank>" if symbol == "<pad>" else symbol for symbol in symbols] for symbols in words
    )
    spec.register_source_vocabulary(sources)
    spec.register_target_vocabulary(targets)
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(folder)


def _check(model: Model) -> None:
    """Refuse what CTranslate2 has no layout for.

    Raises:
        UsageError: the model has such a thing.
    """
    own = model.architecture
    lacks = {
        f"of kind {own.kind}": own.encoder is None
        or own.slots is not None
        or own.block is not None,
        "with an adaptive softmax": bool(own.cutoffs),
        "whose weights are packed alone": model.is_packed_only,
        "whose sides differ in width": own.source_width != own.decoder.dim,
        "whose outputs are projected": own.output_dim != own.decoder.dim,
    }
    for side, layers in (("encoder", own.encoder), ("decoder", own.decoder)):
        if layers is not None:
            lacks[f"whose {side} has no positions"] = layers.positions is None
            lacks[f"of activation {layers.activation}"] = layers.activation not in _ACTIVATIONS
            odd = layers.final_norm and not layers.pre_norm
            lacks[f"whose {side} ends in a norm, and its layers, too"] = odd
    if (found := next((what for what, lack in lacks.items() if lack), None)) is not None:
        raise UsageError(f"--peers: CTranslate2 cannot convert {model.path}: it is a model {found}")


def _fill_side(spec: Any, model: Model, side: str) -> None:
    """Give CTranslate2's record of a side its weights."""
    layers = model.layers(side)
    words, scale = model.embeddings(side)
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight, spec.scale_embeddings = words, scale
    spec.position_encodings.encodings = model.positions(side)
    for number, layer in enumerate(spec.layer):
        name = f"{side}.layers.{number}"
        _fill_attention(layer.self_attention, model, f"{name}.self_attn", ["qkv"])
        if side == "decoder":
            _fill_attention(layer.attention, model, f"{name}.encoder_attn", ["q", "kv"])
        _fill_norm(layer.ffn.layer_norm, model, f"{name}.final_layer_norm")
        _fill_map(layer.ffn.linear_0, model, [f"{name}.fc1"])
        _fill_map(layer.ffn.linear_1, model, [f"{name}.fc2"])
    if layers.final_norm:
        _fill_norm(spec.layer_norm, model, f"{side}.layer_norm")
    if layers.embedding_norm:
        _fill_norm(spec.layernorm_embedding, model, f"{side}.layernorm_embedding")


def _fill_attention(spec: Any, model: Model, name: str, inputs: list[str]) -> None:
    """Give an attention its weights; ``inputs``: the maps that are one, as letters."""
    for linear, letters in zip(spec.linear, inputs, strict=False):
        _fill_map(linear, model, [f"{name}.{letter}_proj" for letter in letters])
    _fill_map(spec.linear[-1], model, [f"{name}.out_proj"])
    _fill_norm(spec.layer_norm, model, f"{name}_layer_norm")


def _fill_map(spec: Any, model: Model, names: list[str]) -> None:
    """Give a linear map its weights: those of several names, one below the other."""
    spec.weight = np.concatenate([model.weight(f"{name}.weight") for name in names])
    spec.bias = np.concatenate([model.weight(f"{name}.bias") for name in names])


def _fill_norm(spec: Any, model: Model, name: str) -> None:
    """Give a norm its weights."""
    spec.gamma, spec.beta = model.weight(f"{name}.weight"), model.weight(f"{name}.bias")
