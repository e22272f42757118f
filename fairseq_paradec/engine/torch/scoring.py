"""TorchPasses: a fairseq module's passes by torch, as ChunkScorer calls them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import option_error
from ..masks import Mask
from ..settings import Engine
from .cache import Cache
from .choices import on_device
from .copies import form_of, model_in
from .decoder_pass import DecoderWeights, decoder_pass, source_keys
from .encoder import encode_by, lean_encoder
from .gather import gather_decoder
from .projection import Projection, gather_projection
from .weights import Form


class TorchPasses:
    """A module in the engine's dtype; arrays in, tensors out.

    Args:
        module: a stock fairseq Transformer in evaluation mode.
        engine: in which dtype passes are computed.

    Attributes:
        model: the module in the engine's dtype.
        weights: the decoder's weights, gathered.
        projection: the output projection at the same time.
    """

    native = False
    weights: DecoderWeights
    projection: Projection

    def __init__(self, module: Any, engine: Engine) -> None:
        self.module, self.engine = module, engine
        self.model = model_in(engine.dtype, module)
        self.decoder = self.model.decoder
        self._encoder = lean_encoder(self.model)

    @property
    def vectors(self) -> Tensor:
        """The embeddings of target words, V×E, as passes have them."""
        table: Tensor = self.decoder.embed_tokens.weight
        return table

    @property
    def max_positions(self) -> int:
        """How many tokens the decoder has positions for."""
        most: int = self.decoder.max_positions()
        return most

    def gather(self) -> None:
        """Gather the weights in the form that a pass reads."""
        weight = self.module.decoder.embed_tokens.weight
        if self.model is not self.module:
            # fairseq's own load_state_dict upgrades checkpoints and needs their options.
            nn.Module.load_state_dict(self.model.to(weight.device), self.module.state_dict())
        lasting = getattr(self.module, "_is_generation_fast", False)
        weight = self.decoder.embed_tokens.weight
        read = sum(p.numel() for p in self.decoder.parameters())
        form = form_of(self.engine.dtype, weight.dtype, weight.device, lasting, read)
        if self._encoder is not None:
            self._encoder.gather(form)
        self.weights = self._gather(form)
        self.projection = gather_projection(self.model, form)

    def _gather(self, form: Form) -> DecoderWeights:
        """Gather the decoder's weights."""
        return gather_decoder(self.decoder, form)

    def encode(self, source: np.ndarray) -> dict[str, Any]:
        """Run the encoder; its output has fairseq's layout."""
        if self._encoder is not None:
            return self._encoder(torch.from_numpy(source).to(self.vectors.device))
        return encode_by(self.model.encoder, source)

    def states(self, encoder_out: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Return the states of an encoder's output, B×S×C, and where padding is, B×S, or None.

        They may be another scorer's, arrays, or of another dtype.
        """
        vectors = self.vectors
        states = torch.as_tensor(encoder_out["encoder_out"][0]).to(vectors).transpose(0, 1)
        padding = [*encoder_out["encoder_padding_mask"], None][0]
        return states, None if padding is None else torch.as_tensor(padding).to(vectors.device)

    def new_cache(self, encoder_out: dict[str, Any]) -> Cache:
        """Make keys and values of the source, and an empty cache."""
        states, padding = self.states(encoder_out)
        return self._empty(source_keys(self.weights, states), padding)

    def _empty(self, source: Tensor, padding: Tensor | None) -> Cache:
        """Make an empty cache; see Cache."""
        return Cache(source, padding)

    def step(self, cache: Cache, tokens: np.ndarray, mask: Mask) -> Tensor:
        """Run the decoder over one chunk and cache it; see ChunkScorer."""
        return decoder_pass(self.weights, cache, on_device(tokens, cache.keys), mask)

    def embed(self, tokens: np.ndarray) -> Tensor:
        """Return the scaled embeddings of tokens, ... -> ...×E, without positions."""
        table = self.decoder.embed_tokens
        vectors: Tensor = self.decoder.embed_scale * table(on_device(tokens, table.weight))
        return vectors

    def heads(self, given: Any, dtype: str | None = None) -> Any:
        """Return prediction heads for the outputs of ``step``; see ChunkScorer.

        Raises:
            UsageError: passes have another dtype.
        """
        if dtype not in (None, self.engine.dtype_of(self.module)):
            allowed = "that of --engine-dtype with heads whose passes are torch's"
            raise option_error("--drafter-dtype", dtype, allowed)
        own = getattr(self.model, "block_heads", None)
        if own is None:
            device = self.decoder.embed_tokens.weight.device
            own = model_in(self.engine.dtype, given).to(device)
        return own


class BlockPasses(TorchPasses):
    """A block_nat model's: the mask vector follows the embeddings, as one more token."""

    def _gather(self, form: Form) -> DecoderWeights:
        """Gather the decoder's weights."""
        weights, decoder = super()._gather(form), self.decoder
        sharpness = decoder.copy_sharpness
        vectors = torch.cat((weights.scale * weights.embedding, decoder.mask_vector[None]))
        return weights._replace(
            embedding=vectors.detach(),
            scale=1.0,
            copy_sharpness=None if sharpness is None else sharpness.detach(),
        )

    def new_cache(self, encoder_out: dict[str, Any]) -> Cache:
        """Make an empty cache, with what a decoder with a soft copy reads of the source."""
        cache = super().new_cache(encoder_out)
        if self.decoder.copy_sharpness is not None:
            weight = self.decoder.embed_tokens.weight
            names = ("encoder_embedding", "encoder_padding_mask")
            vectors, padding = (torch.as_tensor(encoder_out[name][0]) for name in names)
            cache.source_vectors = vectors.to(weight), padding.to(weight.device)
        return cache
