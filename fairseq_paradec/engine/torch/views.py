"""fairseq's modules as models: their weights are views of tensors, for native passes."""

import dataclasses
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...model.architecture import NORM_EPSILON, Architecture, Block, Heads, Layers, Slots
from ...model.model import HeadWeights, Model
from ..native import packing
from ..native.stack import ACTIVATIONS, NativeHeads
from .known import activation_name, is_sinusoidal, is_stock_encoder
from .watch import Watch, keeps_weights

#: Models of modules, as long as these live.
_MODELS: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()
_HEADS: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[Watch, NativeHeads]]] = (
    weakref.WeakKeyDictionary()
)
# Held while one is looked up: threads that need it at once get the same.
_LOOKING = threading.Lock()


class _Tensors(Mapping[str, np.ndarray]):
    """A module's weights as arrays, as they are when they are asked for."""

    def __init__(self, module: nn.Module, names: Mapping[str, Any]) -> None:
        self._module, self._names = weakref.ref(module), names

    def __getitem__(self, name: str) -> np.ndarray:
        module = self._module()
        if module is None or name not in self._names:
            raise KeyError(name)
        array: np.ndarray = module.get_parameter(name).detach().numpy()
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def model_of(module: Any) -> Model | str:
    """Return a module as a model, the same as long as its architecture is; or say why it is none.

    Args:
        module: that the scorers support.
    """
    weight = module.decoder.embed_tokens.weight
    if weight.device.type != "cpu":
        return f"it is on {weight.device.type}"
    if weight.dtype != torch.float32:
        return "its weights are not in fp32 (--engine-dtype packs them in bf16 or int8)"
    if getattr(module.decoder, "quant_noise", None) is not None:
        return "its embeddings are projected"
    if hasattr(module.decoder, "attention_window"):
        return "its attention is local"
    architecture = _architecture(module)
    if isinstance(architecture, str):
        return architecture
    with _LOOKING:
        model = _known_or_new(module, architecture)
        if isinstance(model, Model):
            model.lasts = keeps_weights(module)
        return model


def _known_or_new(module: Any, architecture: Architecture) -> Model | str:
    """Return the model of a module's; see ``model_of``."""
    known = _MODELS.get(module)
    if known is not None and known.architecture == architecture:
        return known
    wanted, given = architecture.shapes(), dict(module.named_parameters(remove_duplicate=False))
    if not all(name in given and _fits(name, given[name], size) for name, size in wanted.items()):
        return "its weights are those of no model that is known"
    here = weakref.ref(module)
    _MODELS[module] = Model(
        architecture, _Tensors(module, wanted), state=lambda: _state(here()), path="in memory"
    )
    return _MODELS[module]


def _fits(name: str, weight: Any, size: tuple[int, ...]) -> bool:
    """Return whether a weight has a size; a model may have fewer positions than vectors of them."""
    rows = len(weight) if ".embed_positions." in name else size[0]
    return rows >= size[0] and weight.shape == (rows, *size[1:])


def _state(module: Any) -> list[tuple[int, int, float]]:
    """Return the state of a module's weights: where they lie, torch's counts, and their sums.

    torch does not count changes through ``.data`` or numpy.
    """
    weights = list(module.parameters())
    counts = [0 if p.is_inference() else p._version for p in weights]
    sums = [float(p.detach().sum()) for p in weights]
    return [(p.data_ptr(), n, total) for p, n, total in zip(weights, counts, sums, strict=True)]


def offer(module: Any, form: str, path: Path) -> None:
    """Name a file with a module's packed weights; see ``packing.offer``."""
    model = model_of(module)
    if isinstance(model, Model):
        packing.offer(model, form, path)


def pack_heads(module: Any, form: str) -> Any:
    """Pack prediction heads, once for all generators in this form; see ``packing.packed``.

    Heads whose activation has no native form are returned as they are.
    """
    record = _heads(module)
    if record.activation not in ACTIVATIONS:
        return module
    with packing.PACKING:
        known = _HEADS.setdefault(module, {})
        if form not in known or known[form][0].changed():
            weights = {name: p.detach().numpy() for name, p in module.named_parameters()}
            known[form] = Watch(module), NativeHeads(HeadWeights(record, weights), form)
        return known[form][1]


# ---- architectures ------------------------------------------------------------------------------


def _architecture(module: Any) -> Architecture | str:
    """Return what a module's weights mean, or why the record cannot say it."""
    own: Any = module.decoder
    theirs: Any = getattr(module, "encoder", None)
    decoder, encoder = _layers(own, own.max_target_positions), None
    if is_stock_encoder(theirs):
        encoder = _layers(theirs, theirs.max_source_positions)
    for layers in (decoder, encoder):
        if isinstance(layers, str):
            return layers
    assert isinstance(decoder, Layers) and not isinstance(encoder, str)
    words, projection, softmax = own.embed_tokens, own.output_projection, own.adaptive_softmax
    shared = None
    if encoder is not None and theirs.embed_tokens.weight is words.weight:
        shared = "all"
    elif projection is not None and projection.weight is words.weight:
        shared = "output"
    out, order = own.project_out_dim, getattr(module, "target_order", None)
    options = {}
    if order is not None:
        options = {
            option.name: value
            for option in dataclasses.fields(order)
            if (value := getattr(order, option.name)) != option.default
        }
    heads = getattr(module, "block_heads", None)
    is_block = hasattr(own, "mask_vector")
    return Architecture(
        kind=_kind(module),
        encoder=encoder,
        decoder=decoder,
        source_width=next(own.layers.children()).encoder_attn.kdim,
        source_words=0 if encoder is None else theirs.embed_tokens.num_embeddings,
        target_words=words.num_embeddings,
        output_dim=decoder.dim if out is None else out.out_features,
        shared=shared,
        output_bias=projection is not None and projection.bias is not None,
        cutoffs=() if softmax is None else tuple(softmax.cutoff),
        factor=4.0 if softmax is None else float(softmax.factor),
        order=options,
        slots=_slots(own.embed_positions),
        block=_block(module) if is_block else None,
        heads=None if heads is None else _heads(heads),
        shares_encoder=getattr(module, "shares_encoder", False),
        first_target_token=getattr(module, "first_target_token", None),
        source_end=not hasattr(theirs, "without_end"),
    )


def _kind(module: Any) -> str:
    """Return the kind of a module; see ``Architecture``."""
    parts = {"block_heads": "blockwise", "target_order": "reordered", "masks": "block_nat"}
    parts |= {"start_decoder": "shallow", "first_target_token": "imported"}
    return next((kind for part, kind in parts.items() if hasattr(module, part)), "transformer")


def _layers(part: Any, most: int) -> Layers | str:
    """Return the layers of an encoder or decoder that has so many positions at most."""
    # children(): iteration over a LayerDropModuleList draws random numbers.
    stack: list[Any] = list(part.layers.children())
    if not stack:
        return "it has no layers"
    kinds = {
        (layer.self_attn.num_heads, layer.fc1.out_features, layer.normalize_before)
        + (activation_name(layer.activation_fn),)
        for layer in stack
    }
    if len(kinds) > 1:
        return "its layers differ"
    ((heads, units, pre_norm, activation),) = kinds
    if activation is None:
        return "its activation has no native form"
    norms = [norm for norm in part.modules() if isinstance(norm, nn.LayerNorm)]
    if any(norm.eps != NORM_EPSILON for norm in norms):
        return "its norms add another number to variances"
    places = part.embed_positions
    positions: str | None = "sinusoidal" if is_sinusoidal(places) else "learned"
    if places is None:
        positions = None
    elif hasattr(places, "table"):
        positions = "sinusoidal" if places.learned is None else "learned"
    return Layers(
        count=len(stack),
        dim=stack[0].self_attn.embed_dim,
        feed_forward=units,
        heads=heads,
        pre_norm=pre_norm,
        activation=activation,
        scale=part.embed_scale,
        positions=positions,
        most=most if places is None else min(most, places.max_positions),
        embedding_norm=part.layernorm_embedding is not None,
        final_norm=part.layer_norm is not None,
    )


def _slots(places: Any) -> Slots | None:
    """Return the positions of an order's own."""
    if not hasattr(places, "table"):
        return None
    starts = "zero" if places.symbols else "tokens"
    return Slots(
        directions=0 if places.directions is None else places.directions.num_embeddings,
        starts=starts if places.starts is None else "learned",
        step=places.order.tokens_per_step,
    )


def _block(module: Any) -> Block:
    """Return the blocks of a drafter of masks."""
    soft_copy = module.decoder.copy_sharpness is not None
    return Block(module.block_size, module.has_random_blocks, module.decoder.attention, soft_copy)


def _heads(heads: Any) -> Heads:
    """Return the record of prediction heads."""
    learned = len(heads.learned)
    return Heads(
        size=heads.block_size,
        hidden=heads.inner.out_features // max(1, learned),
        is_dense=heads.is_dense,
        first=heads.learned[:1] == [0],
        seen=heads.seen,
        activation=activation_name(heads.activation) or "another",
    )
