"""RecordPasses: torch's passes of a Model that fairseq has no class of, such as a T5.

They are the reference of the native ones. Weights are the model's arrays; no module is built.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UsageError
from ...model.architecture import Layers
from ...model.dictionary import PAD
from ...model.model import Model
from ..settings import Engine
from .bias import by_distance
from .copies import DTYPES, form_of
from .decoder_pass import DecoderWeights
from .encoder import LeanEncoder
from .layers import DecoderLayer, EncoderLayer, FeedForward, SelfAttention, SourceAttention
from .projection import Projection
from .scoring import TorchPasses
from .weights import Form, Linear, Map, Norm, SquareNorm, make_map

#: torch's activations by fairseq's names of them.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_accurate": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "swish": F.silu,
}


class RecordPasses(TorchPasses):
    """A Model's passes in the engine's dtype; arrays in, tensors out.

    Args:
        model: a model whose record is read here.
        engine: in which dtype passes are computed.
    """

    def __init__(self, model: Model, engine: Engine) -> None:
        self.model, self.engine = model, engine
        self._dtype = DTYPES.get(engine.dtype or "fp32", torch.float32)

    @property
    def vectors(self) -> Tensor:
        """The embeddings of target words; see TorchPasses."""
        return self.weights.embedding

    @property
    def max_positions(self) -> int:
        """How many tokens the decoder takes."""
        return self.model.max_decoder_positions()

    def gather(self) -> None:
        """Make tensors of the weights, in the form that a pass reads."""
        read = sum(weight.size for weight in self.model.weights.values())
        form = form_of(self.engine.dtype, self._dtype, torch.device("cpu"), True, read)
        self._encoder = RecordEncoder(_Side(self.model, "encoder", self._dtype, form))
        self.weights = _Side(self.model, "decoder", self._dtype, form).decoder()
        name = "decoder.output_projection"
        bias = self.tensor(f"{name}.bias") if self.model.architecture.output_bias else None
        linear = Linear(self.tensor(f"{name}.weight"), bias)
        self.projection = Projection(make_map(*linear, form), None, None, form, linear)

    def tensor(self, name: str) -> Tensor:
        """Return a weight."""
        return torch.tensor(self.model.weight(name)).to(self._dtype)

    def embed(self, tokens: np.ndarray) -> Tensor:
        """Return the scaled embeddings of tokens, ... -> ...×E."""
        return self.weights.scale * F.embedding(torch.from_numpy(tokens), self.vectors)

    def heads(self, given: Any, dtype: str | None = None) -> Any:
        """Refuse prediction heads, which are modules of fairseq's where torch computes.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"--engine torch: got heads for a {self.model.architecture.kind} model; "
            "allowed: native with them"
        )


class RecordEncoder(LeanEncoder):
    """An encoder whose attention has biases by distance."""

    def __init__(self, side: "_Side") -> None:
        self.encoder = None
        self.vectors, self.scale, self.pad = side.embedding, side.layers.scale, PAD
        self.embedding_norm, self.positions = None, None
        self.stack = [side.encoder_layer(index) for index in range(side.layers.count)]
        self.final_norm = side.norm("layer_norm")
        self.distances = side.distances

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Embed a batch; the bias is B×H×S×S: of padding and distances together."""
        x, bias, padding, embedding = super().embed(tokens)
        places = (~padding).cumsum(1) - 1  # padding has any: nothing sees it
        near = by_distance(self.distances, places, places[:, None].expand(-1, tokens.size(1), -1))
        return x, near if bias is None else bias + near, padding, embedding


class _Side:
    """The weights of an encoder or a decoder as tensors."""

    def __init__(self, model: Model, side: str, dtype: torch.dtype, form: Form) -> None:
        self.model, self.side, self.dtype, self.form = model, side, dtype, form
        self.layers: Layers = model.layers(side)
        self.scale = None if self.layers.scaled else 1.0
        words, _ = model.embeddings(side)
        self.embedding = torch.tensor(words).to(dtype)
        biases = model.relative_bias(side)
        assert biases is not None and self.layers.positions is None, "a model of fairseq's"
        self.distances = torch.tensor(biases).to(dtype)

    def _tensor(self, name: str) -> Tensor:
        """Return a weight of this side."""
        return torch.tensor(self.model.weight(f"{self.side}.{name}")).to(self.dtype)

    def norm(self, name: str) -> Norm | SquareNorm:
        """Return a norm."""
        weight, epsilon = self._tensor(f"{name}.weight"), self.layers.epsilon
        if self.layers.is_rms:
            return SquareNorm(weight, epsilon)
        return Norm(weight, self._tensor(f"{name}.bias"), epsilon)

    def _map(self, names: Sequence[str]) -> Map:
        """Return maps with one input as one."""
        weight = torch.cat([self._tensor(f"{name}.weight") for name in names])
        bias = None
        if self.layers.biases:
            bias = torch.cat([self._tensor(f"{name}.bias") for name in names])
        return make_map(weight, bias, self.form)

    def _attention(self, name: str) -> SelfAttention:
        """Return a layer's self-attention."""
        return SelfAttention(
            heads=self.layers.heads,
            pre_norm=self.layers.pre_norm,
            norm=self.norm(f"{name}.self_attn_layer_norm"),
            qkv=self._map([f"{name}.self_attn.{part}_proj" for part in "qkv"]),
            out=self._map([f"{name}.self_attn.out_proj"]),
            scale=self.scale,
        )

    def _feed_forward(self, name: str) -> FeedForward:
        """Return the feed-forward part of a layer."""
        return FeedForward(
            pre_norm=self.layers.pre_norm,
            norm=self.norm(f"{name}.final_layer_norm"),
            fc1=self._map([f"{name}.fc1"]),
            fc2=self._map([f"{name}.fc2"]),
            activation=_ACTIVATIONS[self.layers.activation],
            gate=self._map([f"{name}.fc3"]) if self.layers.gated else None,
        )

    def encoder_layer(self, index: int) -> EncoderLayer:
        """Return an encoder's layer."""
        name = f"layers.{index}"
        return EncoderLayer(self._attention(name), self._feed_forward(name))

    def _decoder_layer(self, index: int) -> DecoderLayer:
        """Return a decoder's layer."""
        name = f"layers.{index}"
        source = SourceAttention(
            heads=self.layers.heads,
            pre_norm=self.layers.pre_norm,
            norm=self.norm(f"{name}.encoder_attn_layer_norm"),
            query=self._map([f"{name}.encoder_attn.q_proj"]),
            out=self._map([f"{name}.encoder_attn.out_proj"]),
            scale=self.scale,
        )
        return DecoderLayer(self._attention(name), source, self._feed_forward(name))

    def decoder(self) -> DecoderWeights:
        """Return a decoder's weights."""
        crosses = [f"layers.{index}.encoder_attn" for index in range(self.layers.count)]
        return DecoderWeights(
            form=self.form,
            embedding=self.embedding,
            scale=self.layers.scale,
            noise=None,
            project_in=None,
            positions=None,
            embedding_norm=None,
            copy_sharpness=None,
            layers=[self._decoder_layer(index) for index in range(self.layers.count)],
            source_keys=self._map([f"{cross}.{part}_proj" for cross in crosses for part in "kv"]),
            final_norm=self.norm("layer_norm"),
            project_out=None,
            distances=self.distances,
        )
