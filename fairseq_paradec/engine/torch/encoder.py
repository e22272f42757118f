"""LeanEncoder: a stock fairseq Transformer encoder without the overhead of its modules.

At batch size 1 fairseq's encoder spends most of its time outside matrix products. LeanEncoder
gathers the weights once, in the fastest memory layout, and computes query, key and value in one
product.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .known import is_sinusoidal, is_stock_encoder, place_numbers
from .layers import gather_encoder_layer
from .weights import Form, Norm, SquareNorm, gather_norm


class LeanEncoder:
    """Computes the output of a stock fairseq encoder in evaluation mode; see ``lean_encoder``.

    The weights are those at the last ``gather``, which must be called again when they change.
    """

    def __init__(self, encoder: Any, form: Form = "plain") -> None:
        self.encoder = encoder
        self.gather(form)

    def gather(self, form: Form) -> None:
        """Gather the encoder's weights, in its dtype and on its device; see ``weights.join``."""
        encoder = self.encoder
        self.vectors = encoder.embed_tokens.weight.detach()  # V×D
        self.scale, self.pad = encoder.embed_scale, encoder.padding_idx
        norm, final = encoder.layernorm_embedding, encoder.layer_norm
        self.embedding_norm = None if norm is None else gather_norm(norm)
        # children(): iteration over a LayerDropModuleList draws random numbers.
        self.stack = [gather_encoder_layer(layer, form) for layer in encoder.layers.children()]
        self.final_norm: Norm | SquareNorm | None = None if final is None else gather_norm(final)
        self.positions: Tensor | None = None  # P×D, indexed by fairseq's position numbers
        places = encoder.embed_positions
        if places is not None:
            table = places.weights if is_sinusoidal(places) else places.weight
            self.positions = table.detach().to(self.vectors)

    def __call__(self, source: Tensor) -> dict[str, list[Tensor]]:
        """Encode a batch.

        Args:
            source: tokens, B×S, padded on either side.

        Returns:
            The parts of fairseq's encoder output that this package reads, in fairseq's layout:
            ``encoder_out`` [S×B×D], ``encoder_padding_mask`` [B×S, True at padding], and
            ``encoder_embedding`` [B×S×D], the scaled embeddings.

        Raises:
            IndexError: a source is longer than the model has positions for.
        """
        if hasattr(self.encoder, "without_end"):
            source = self.encoder.without_end(source)
        x, bias, padding, embedding = self.embed(source)
        return {
            "encoder_out": [self.layers(x, bias).transpose(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
        }

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Embed a batch and find its padding.

        On a GPU this synchronises once, to read whether the batch has padding. It does so first,
        when only the copy of the tokens is pending.

        Returns:
            The input of ``layers``, B×S×D, zero at padding, and its bias; the padding, B×S; the
            scaled embeddings without positions, B×S×D.
        """
        padding = tokens.eq(self.pad)
        padded = bool(padding.any())
        embedding = x = self.scale * F.embedding(tokens, self.vectors)
        if self.positions is not None:
            x = x + self._position_vectors(self.positions, tokens, padded)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if not padded:
            return x, None, padding, embedding
        x = x.masked_fill(padding[:, :, None], 0.0)
        blank = x.new_zeros(len(tokens), 1, 1, tokens.size(1))
        return x, blank.masked_fill_(padding[:, None, None], -math.inf), padding, embedding

    def _position_vectors(self, table: Tensor, tokens: Tensor, padded: bool) -> Tensor:
        """Return the tokens' position vectors, S×D or B×S×D; padding takes no position."""
        first, end = self.pad + 1, self.pad + 1 + tokens.size(1)
        places = self.encoder.embed_positions
        if len(table) < end and is_sinusoidal(places):
            table = places.get_embedding(end, places.embedding_dim, self.pad).to(table)
            self.positions = table
        if padded:
            return F.embedding(place_numbers(tokens, self.pad), table)
        if len(table) < end:
            raise IndexError(f"a source of {end - first} tokens: longer than the model's positions")
        return table[first:end]

    def layers(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Run the layers and the final norm: a pure function of tensors.

        Args:
            x: B×S×D from ``embed``.
            bias: B×1×1×S, added to the attention scores: -inf at padding. None: no padding.

        Returns:
            B×S×D.
        """
        for layer in self.stack:
            x = layer.feed_forward(layer.attention(x, bias))
        return x if self.final_norm is None else self.final_norm(x)


def lean_encoder(model: Any, form: Form = "plain") -> LeanEncoder | None:
    """Make the LeanEncoder of a model; None if its encoder is not stock, so fairseq's must run."""
    encoder = getattr(model, "encoder", None)
    return LeanEncoder(encoder, form) if is_stock_encoder(encoder) else None


def encode_by(encoder: Any, source: np.ndarray) -> dict[str, Any]:
    """Run one of fairseq's encoders; its output has fairseq's layout.

    Args:
        encoder: fairseq's module.
        source: tokens, B×S, padded on either side.
    """
    tokens = torch.from_numpy(source).to(next(encoder.parameters()).device)
    net_input = {"src_tokens": tokens, "src_lengths": tokens.ne(encoder.padding_idx).sum(1)}
    out: dict[str, Any] = encoder.forward_torchscript(net_input)
    return out
