"""From a scorer's model to native weights, or to the reason why there are none."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from ..decoder_pass import DecoderWeights
from ..encoder import LeanEncoder
from .library import NativeUnavailable, library
from .passes import NativeWeights, native_encode
from .stack import NativeMap, NativeStack, Workspace, why_not


def why_torch(model: Any, plain: DecoderWeights) -> str | None:
    """Say why a decoder's passes cannot be native, or return None.

    Args:
        model: the model.
        plain: its decoder's weights, gathered plainly.
    """
    if plain.embedding.device.type != "cpu":
        return f"it is on {plain.embedding.device.type}"
    if plain.embedding.dtype != torch.float32:
        return "its weights are not in fp32 (--engine-dtype packs them in bf16 or int8)"
    if plain.noise is not None or plain.project_in is not None or plain.project_out is not None:
        return "its embeddings or outputs are projected"
    if plain.copy_sharpness is not None:
        return "its masks copy from the source (--soft-copy)"
    if hasattr(model.decoder, "attention_window"):
        return "its attention is local"
    reason = why_not(plain.layers)
    if reason is None:
        try:
            library()
        except NativeUnavailable as error:
            return f"the native library is not there: {error}"
    return reason


def pack_decoder(plain: DecoderWeights, form: str) -> NativeWeights:
    """Pack a decoder that ``why_torch`` has nothing against.

    Args:
        plain: gathered plainly.
        form: ``fp32``, ``bf16`` or ``int8``.
    """
    workspace = Workspace()
    stack = NativeStack(
        plain.layers, plain.embedding, plain.scale, plain.positions, plain.embedding_norm,
        plain.final_norm, form,
    )  # fmt: skip
    keys: Any = plain.source_keys
    parts = 2 * len(plain.layers)
    weight = torch.cat([stack.pad_heads(w) for w in keys.weight.chunk(parts)])
    bias = torch.cat([stack.pad_heads(b) for b in keys.bias.chunk(parts)])
    return NativeWeights(stack, NativeMap(weight, bias, form, workspace), workspace)


def pack_projection(decoder: Any, weights: NativeWeights) -> NativeMap | None:
    """Pack a decoder's projection to the vocabulary; None: it has no linear one."""
    module = decoder.output_projection
    if type(module) is not nn.Linear:
        return None
    return NativeMap(module.weight, module.bias, weights.stack.form, weights.workspace)


class NativeEncoder:
    """A stock encoder by native passes; called like LeanEncoder.

    Args:
        lean: of the same encoder; its weights are gathered plainly.
        weights: of the decoder, for the form and the workspace.
    """

    def __init__(self, lean: LeanEncoder, weights: NativeWeights) -> None:
        lean.gather("plain")
        self.lean, self.workspace = lean, weights.workspace
        places = lean.encoder.embed_positions
        self.most = lean.encoder.max_positions()
        table = lean.positions
        if isinstance(places, SinusoidalPositionalEmbedding):
            size = places.padding_idx + 1 + self.most
            table = places.get_embedding(size, places.embedding_dim, places.padding_idx)
        if table is not None:
            table = table[lean.pad + 1 :]
            self.most = min(self.most, len(table))
        self.stack = NativeStack(
            lean.stack, lean.vectors, lean.scale, table, lean.embedding_norm, lean.final_norm,
            weights.stack.form,
        )  # fmt: skip

    def __call__(self, net_input: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        """Encode a batch; see LeanEncoder.

        Raises:
            IndexError: a source is longer than the model has positions for.
        """
        tokens = net_input["src_tokens"]
        padding = tokens.eq(self.lean.pad)
        padded = bool(padding.any())
        if tokens.size(1) > self.most and int((~padding).sum(dim=1).max()) > self.most:
            raise IndexError(f"a source of {tokens.size(1)} tokens: longer than the positions")
        states = native_encode(self.stack, tokens, padding if padded else None, self.workspace)
        return {
            "encoder_out": [states.transpose(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [],
        }
