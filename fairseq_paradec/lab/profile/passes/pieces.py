"""The pieces of a decoder's pass: what each reads and computes, and a call that runs it alone.

It reads a ChunkScorer's gathered weights, in any form, so that ``paradec profile passes`` profiles
a pass without a clock inside it.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor, nn

from ....engine.torch.bias import attention_bias
from ....engine.torch.decoder_pass import embed
from ....engine.torch.known import is_stock_encoder
from ....errors import option_error

# The pieces, in the order of a pass.
PIECES = (
    "embedding",
    "self-attention",
    "cross-attention",
    "feed-forward",
    "norms",
    "projection",
    "log-softmax and argmax",
)
NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "int8",
}

DTYPES = {name: dtype for dtype, name in NAMES.items()}

Call = Callable[[], object]


def refuse_unknown(model: Any) -> None:
    """Refuse a model whose pass is not made of PIECES."""
    problem = ""
    if not isinstance(model, TransformerModelBase):
        problem = ", which is no Transformer"
    elif 0 in getattr(getattr(model, "block_heads", None), "learned", ()):
        problem = " whose next token comes from a head (--train-first-head)"
    elif model.decoder.adaptive_softmax is not None:
        problem = " with an adaptive softmax"
    elif hasattr(model.decoder, "attention_window"):
        problem = " with local attention"
    if problem:
        raise option_error("--path", f"a {type(model).__name__}{problem}", "a plain Transformer")


class Pieces:
    """What the pieces of a pass read and compute, by name.

    Args:
        states: the dtype of hidden states, norms, biases and embeddings.
    """

    def __init__(self, states: torch.dtype) -> None:
        self.states = states
        self.by_name: dict[str, dict[str, Any]] = {}

    def piece(self, name: str) -> dict[str, Any]:
        """Return a piece; a new one reads and computes nothing."""
        blank = {"name": name, "weights": 0, "bytes": 0, "cache_bytes": 0, "flops": 0}
        return self.by_name.setdefault(name, blank | {"dtype": NAMES[self.states]})

    def modules(
        self, name: str, *modules: Any, tokens: int = 0, dtype: torch.dtype | None = None
    ) -> None:
        """Count linear maps and layer norms.

        Args:
            name: of the piece.
            modules: None is none.
            tokens: that each linear map is applied to.
            dtype: of the maps' weights; None for their own.
        """
        for weight in (w for module in modules if module is not None for w in module.parameters()):
            if weight.dim() == 1:  # a norm, or a bias
                self.numbers(name, weight.numel())
            else:
                self.matrix(name, weight.numel(), tokens, dtype or weight.dtype)

    def matrix(self, name: str, weights: int, tokens: int, dtype: torch.dtype) -> None:
        """Count the weights of a linear map, and its products with tokens."""
        piece = self.piece(name)
        piece["dtype"] = NAMES[dtype]
        piece["weights"] += weights
        piece["bytes"] += weights * dtype.itemsize
        piece["flops"] += 2 * tokens * weights

    def numbers(self, name: str, count: int) -> None:
        """Count weights of no product."""
        piece = self.piece(name)
        piece["weights"] += count
        piece["bytes"] += count * self.states.itemsize

    def attention(self, name: str, queries: int, keys: int, width: int, batch: int) -> None:
        """Count reading keys and values, and both products of attention.

        Args:
            name: of the piece.
            queries: of all sentences.
            keys: of a sentence.
            width: of a key, all heads together.
            batch: sentences.
        """
        piece = self.piece(name)
        piece["cache_bytes"] += 2 * batch * keys * width * self.states.itemsize
        piece["flops"] += 4 * queries * keys * width


def decoder_pieces(
    scorer: Any, source: int, width: int, seen: int, masks: int | None = None
) -> list[dict[str, Any]]:
    """Count what a decoder's pass reads and computes, by piece.

    A pass reads one row of the embedding and of the positions per token.

    Args:
        scorer: a ChunkScorer that has encoded.
        source: length of the sources.
        width: of the chunk.
        seen: keys that a row of it attends to: the cached tokens and the chunk.
        masks: how many of the chunk's tokens are projected to the vocabulary; None for all.

    Returns:
        For each of PIECES ``name``, ``weights`` (their number), ``bytes``, ``cache_bytes`` (of keys
        and values), ``flops`` and ``dtype`` (of its products).
    """
    decoder, batch = scorer.model.decoder, len(scorer.cache.lengths)
    kept = _kept(scorer.projection.linear)
    dim, embedded = decoder.layers[0].embed_dim, decoder.embed_tokens.embedding_dim
    pieces, rows = Pieces(_of_states(scorer)), batch * width
    # 1. The embedding, and its projection.
    pieces.numbers("embedding", rows * embedded)
    if decoder.embed_positions is not None:
        pieces.numbers("embedding", rows * dim)
    if getattr(decoder, "copy_sharpness", None) is not None:  # masks copy the source's embeddings
        pieces.piece("embedding")["flops"] += 2 * rows * source * embedded
    pieces.modules("embedding", decoder.project_in_dim, tokens=rows)
    pieces.modules("embedding", decoder.layernorm_embedding)
    # 2. Layers.
    for layer in decoder.layers:
        attention, cross = layer.self_attn, layer.encoder_attn
        four = (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
        pieces.modules("self-attention", *four, tokens=rows, dtype=kept)
        pieces.attention("self-attention", rows, seen, dim, batch)
        pieces.modules("cross-attention", cross.q_proj, cross.out_proj, tokens=rows, dtype=kept)
        pieces.attention("cross-attention", rows, source, dim, batch)
        pieces.modules("feed-forward", layer.fc1, layer.fc2, tokens=rows, dtype=kept)
        pieces.modules("norms", layer.self_attn_layer_norm, layer.encoder_attn_layer_norm)
        pieces.modules("norms", layer.final_layer_norm)
    pieces.modules("norms", decoder.layer_norm)
    # 3. The vocabulary.
    pieces.modules("projection", decoder.project_out_dim, tokens=rows)
    projected = rows if masks is None else batch * masks
    pieces.modules("projection", decoder.output_projection, tokens=projected, dtype=kept)
    return [pieces.piece(name) for name in PIECES]


def encoder_pieces(scorer: Any, source: int, own_encoder: bool = True) -> list[dict[str, Any]]:
    """Count what ``encode`` reads and computes: the encoder, and the decoder's keys of the source.

    Args:
        scorer: a ChunkScorer that has encoded.
        source: length of the sources.
        own_encoder: False: count the keys only, for a drafter on the verifier's encoder.
    """
    decoder, encoder = scorer.model.decoder, scorer.model.encoder
    batch, kept = len(scorer.cache.lengths), _kept(scorer.projection.linear)
    pieces, tokens = Pieces(_of_states(scorer)), batch * source
    if own_encoder:
        dim = encoder.embed_tokens.embedding_dim
        pieces.numbers("encoder", tokens * dim * (1 + (encoder.embed_positions is not None)))
        own = is_stock_encoder(encoder)
        for layer in encoder.layers.children():
            linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
            pieces.modules("encoder", *linears, tokens=tokens, dtype=kept if own else None)
            pieces.attention("encoder", tokens, source, dim, batch)
            pieces.modules("encoder", layer.self_attn_layer_norm, layer.final_layer_norm)
        pieces.modules("encoder", encoder.layernorm_embedding, encoder.layer_norm)
    crosses = [layer.encoder_attn for layer in decoder.layers]
    both = [linear for cross in crosses for linear in (cross.k_proj, cross.v_proj)]
    pieces.modules("keys of the source", *both, tokens=tokens, dtype=kept)
    return [*pieces.by_name.values()]


def heads_pieces(scorer: Any, heads: Any, drafts: Any) -> list[dict[str, Any]]:
    """Count what prediction heads read and compute, with the projection of their states.

    Args:
        scorer: a ChunkScorer that has encoded.
        heads: BlockHeads, all learned but the first.
        drafts: the Projection of their states.
    """
    batch, states = len(scorer.cache.lengths), _of_states(scorer)
    pieces, kept = Pieces(states), _kept(drafts.linear)
    own = kept if scorer.native else states
    pieces.modules("heads", heads.inner, tokens=batch, dtype=own)
    pieces.numbers("heads", heads.bias.numel())
    pieces.matrix("heads", heads.outer.numel(), batch, own)
    drafted = batch * (heads.block_size - 1)
    projection = scorer.model.decoder.output_projection
    pieces.modules("projection", projection, tokens=drafted, dtype=kept)
    return [*pieces.by_name.values()]


def _of_states(scorer: Any) -> torch.dtype:
    """Return the dtype of cached keys and of states."""
    dtype: torch.dtype = torch.float32 if scorer.native else scorer.cache.keys.dtype
    return dtype


def _kept(linear: Any) -> torch.dtype:
    """Return the dtype of a linear map's weight, as it is kept."""
    form = getattr(linear, "form", None)  # of native ones
    return linear.dtype if form is None else DTYPES.get(form, torch.int8)


def piece_calls(scorer: Any, tokens: Tensor) -> dict[str, Call]:
    """Return calls that run each of PIECES alone, with the scorer's own weights and cache.

    A whole pass must have enlarged the cache before.

    Args:
        scorer: a ChunkScorer that has encoded; its rows have equally many cached tokens.
        tokens: B×K, the chunk after them.
    """
    batch, width = tokens.shape
    weights, cache = scorer.weights, scorer.cache
    heads, size = cache.keys.shape[4:]
    x = torch.randn(batch, width, heads * size).to(cache.keys.dtype)
    layers, place = list(enumerate(weights.layers)), cache.place(width)
    bias = attention_bias(cache, place, "causal")

    def self_attention() -> None:
        for index, layer in layers:
            qkv = layer.attention.qkv(x).view(batch, width, 3, heads, size)
            cache.keys[index][place.where] = qkv[:, :, 1:]
            past = cache.keys[index][:, : place.end].permute(2, 0, 3, 1, 4)
            query = qkv[:, :, 0].transpose(1, 2)
            mixed = F.scaled_dot_product_attention(query, past[0], past[1], attn_mask=bias)
            layer.attention.out(mixed.transpose(1, 2).reshape(x.shape))

    def cross_attention() -> None:
        for index, layer in layers:
            query = layer.source.query(x).view(batch, width, heads, size).transpose(1, 2)
            key, value = cache.source[index]
            mixed = F.scaled_dot_product_attention(query, key, value)
            layer.source.out(mixed.transpose(1, 2).reshape(x.shape))

    def feed_forward() -> None:
        for _, layer in layers:
            part = layer.feed_forward
            part.fc2(part.activation(part.fc1(x)))

    def norms() -> None:
        for _, layer in layers:
            for part in layer:
                part.norm(x)
        if weights.final_norm is not None:
            weights.final_norm(x)

    def projection() -> Tensor:
        out = weights.project_out
        logits: Tensor = scorer.projection.linear(x if out is None else out(x))
        return logits

    logits = projection()

    def choice() -> None:
        F.log_softmax(logits, dim=-1, dtype=torch.float32).max(dim=-1)

    def embedding() -> None:
        embed(weights, tokens, place.positions)

    calls = (embedding, self_attention, cross_attention, feed_forward, norms, projection, choice)
    return dict(zip(PIECES, calls, strict=True))
