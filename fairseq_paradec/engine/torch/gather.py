"""Gather a fairseq decoder's weights for passes."""

from typing import Any

from torch import Tensor

from .decoder_pass import DecoderWeights
from .known import position_vectors
from .layers import gather_decoder_layer
from .weights import Form, Linear, gather_norm, join


def gather_decoder(decoder: Any, form: Form) -> DecoderWeights:
    """Gather a decoder's weights, in its dtype and on its device."""
    # children(): iteration over a LayerDropModuleList draws random numbers.
    stack: list[Any] = list(decoder.layers.children())
    crosses = [layer.encoder_attn for layer in stack]
    embedding_norm, final_norm = decoder.layernorm_embedding, decoder.layer_norm
    return DecoderWeights(
        form=form,
        embedding=decoder.embed_tokens.weight.detach(),
        scale=decoder.embed_scale,
        noise=_plain(decoder.quant_noise),
        project_in=_plain(decoder.project_in_dim),
        positions=_positions(decoder),
        embedding_norm=None if embedding_norm is None else gather_norm(embedding_norm),
        copy_sharpness=None,
        layers=[gather_decoder_layer(layer, form) for layer in stack],
        source_keys=join([p for cross in crosses for p in (cross.k_proj, cross.v_proj)], form),
        final_norm=None if final_norm is None else gather_norm(final_norm),
        project_out=_plain(decoder.project_out_dim),
    )


def _plain(linear: Any) -> Linear | None:
    """Gather a linear module in the plain form."""
    if linear is None:
        return None
    return Linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


def _positions(decoder: Any) -> Tensor | None:
    """Return position vectors, P×D, for at least all positions of the longest output."""
    module, like = decoder.embed_positions, decoder.embed_tokens.weight
    if module is None:
        return None
    size = decoder.max_positions()
    if hasattr(module, "table"):  # a reordered model's slots, an image model's intensities
        table: Tensor = module.table(size)
        return table.detach().to(like)
    return position_vectors(module, size).to(like)
