"""The pieces of a decoder's pass: what each reads and computes, and a call that runs it alone.

It reads a ChunkScorer's gathered weights, in any form, so that ``paradec passes`` profiles a pass
without a clock inside it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor, nn

from ...engine.decoder_pass import embed
from ...engine.encoder import LeanEncoder
from ...engine.masks import attention_bias
from ...engine.native.packing import NativeEncoder
from ...errors import option_error
from ..analysis import flops

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


def _sizes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a model's weights, by name."""
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


class Counter:
    """Counts what the pieces of a pass read; ``analysis.flops`` counts what they compute.

    Args:
        states: the dtype of hidden states, norms, biases and embeddings.
    """

    def __init__(self, states: torch.dtype) -> None:
        self.states = states
        self.pieces: dict[str, dict[str, Any]] = {}

    def _piece(self, name: str) -> dict[str, Any]:
        blank = {"name": name, "weights": 0, "bytes": 0, "cache_bytes": 0, "flops": 0}
        return self.pieces.setdefault(name, blank | {"dtype": NAMES[self.states]})

    def product(self, name: str, modules: Sequence[Any], dtype: torch.dtype) -> None:
        """Count linear modules."""
        piece = self._piece(name)
        piece["dtype"] = NAMES[dtype]
        for module in modules:
            count = module.weight.numel()
            piece["weights"] += count
            piece["bytes"] += count * dtype.itemsize
            if module.bias is not None:
                self.numbers(name, module.bias.numel())

    def numbers(self, name: str, count: int) -> None:
        """Count weights of no product."""
        piece = self._piece(name)
        piece["weights"] += count
        piece["bytes"] += count * self.states.itemsize

    def norm(self, name: str, module: Any) -> None:
        """Count a layer norm, if there is one."""
        if module is not None:
            self.numbers(name, sum(p.numel() for p in module.parameters()))

    def attention(self, name: str, batch: int, keys: int, width: int) -> None:
        """Count reading keys and values.

        Args:
            name: of the piece.
            batch: sentences.
            keys: of a sentence.
            width: of a key, all heads together.
        """
        piece = self._piece(name)
        piece["cache_bytes"] += 2 * batch * keys * width * self.states.itemsize

    def computes(self, operations: Mapping[str, float]) -> None:
        """Set the operations of pieces, by name."""
        for name, count in operations.items():
            self._piece(name)["flops"] = int(count)


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
    decoder, batch = scorer.decoder, scorer.cache.keys.size(1)
    kept = scorer.projection.linear.dtype
    dim = decoder.layers[0].embed_dim
    counter, rows = Counter(scorer.cache.keys.dtype), batch * width
    # 1. The embedding, and its projection.
    counter.numbers("embedding", rows * decoder.embed_tokens.embedding_dim)
    if decoder.embed_positions is not None:
        counter.numbers("embedding", rows * dim)
    if decoder.project_in_dim is not None:
        states = decoder.project_in_dim.weight.dtype
        counter.product("embedding", [decoder.project_in_dim], states)
    counter.norm("embedding", decoder.layernorm_embedding)
    # 2. Layers.
    for layer in decoder.layers:
        attention, cross = layer.self_attn, layer.encoder_attn
        four = [attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj]
        counter.product("self-attention", four, kept)
        counter.attention("self-attention", batch, seen, dim)
        counter.product("cross-attention", [cross.q_proj, cross.out_proj], kept)
        counter.attention("cross-attention", batch, source, dim)
        counter.product("feed-forward", [layer.fc1, layer.fc2], kept)
        norms = (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)
        for norm in norms:
            counter.norm("norms", norm)
    counter.norm("norms", decoder.layer_norm)
    # 3. The vocabulary.
    if decoder.project_out_dim is not None:
        states = decoder.project_out_dim.weight.dtype
        counter.product("projection", [decoder.project_out_dim], states)
    counter.product("projection", [decoder.output_projection], kept)
    counter.numbers("log-softmax and argmax", 0)
    projected = rows if masks is None else batch * masks
    shape = flops.read_shape(_sizes(scorer.model))
    counter.computes(flops.decoder_pass(shape, rows, seen, source, projected))
    return [counter.pieces[name] for name in PIECES]


def encoder_pieces(scorer: Any, source: int, own_encoder: bool = True) -> list[dict[str, Any]]:
    """Count what ``encode`` reads and computes: the encoder, and the decoder's keys of the source.

    Args:
        scorer: a ChunkScorer that has encoded.
        source: length of the sources.
        own_encoder: False: count the keys only, for a drafter on the verifier's encoder.
    """
    decoder, encoder = scorer.decoder, scorer.model.encoder
    batch = scorer.cache.keys.size(1)
    counter, shape = Counter(scorer.cache.keys.dtype), flops.read_shape(_sizes(scorer.model))
    kept = scorer.projection.linear.dtype
    if own_encoder:
        dim = encoder.embed_tokens.embedding_dim
        vectors = 1 + (encoder.embed_positions is not None)
        counter.numbers("encoder", batch * source * dim * vectors)
        counter.computes({"encoder": batch * flops.encoder(shape, source)})
        own = any(isinstance(v, LeanEncoder | NativeEncoder) for v in vars(scorer).values())
        for layer in encoder.layers.children():
            linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
            counter.product("encoder", linears, kept if own else linears[0].weight.dtype)
            counter.attention("encoder", batch, source, dim)
            counter.norm("encoder", layer.self_attn_layer_norm)
            counter.norm("encoder", layer.final_layer_norm)
        counter.norm("encoder", encoder.layernorm_embedding)
        counter.norm("encoder", encoder.layer_norm)
    crosses = [layer.encoder_attn for layer in decoder.layers]
    both = [linear for cross in crosses for linear in (cross.k_proj, cross.v_proj)]
    counter.product("keys of the source", both, kept)
    counter.computes({"keys of the source": batch * flops.source_keys(shape, source)})
    return list(counter.pieces.values())


def heads_pieces(scorer: Any, heads: Any, drafts: Any) -> list[dict[str, Any]]:
    """Count what prediction heads read and compute, with the projection of their states.

    Args:
        scorer: a ChunkScorer that has encoded.
        heads: BlockHeads, all learned but the first.
        drafts: the Projection of their states.
    """
    batch, count = scorer.cache.keys.size(1), heads.block_size - 1
    counter, projection = Counter(scorer.cache.keys.dtype), scorer.decoder.output_projection
    kept = drafts.linear.dtype
    own = kept if scorer.native else scorer.cache.keys.dtype
    counter.product("heads", [heads.inner], own)
    counter.numbers("heads", heads.bias.numel())
    outer = heads.outer.numel()
    counter.pieces["heads"]["weights"] += outer
    counter.pieces["heads"]["bytes"] += outer * own.itemsize
    counter.product("projection", [projection], kept)
    counter.computes(
        {
            "heads": 2 * batch * (heads.inner.weight.numel() + outer),
            "projection": 2 * batch * count * projection.weight.numel(),
        }
    )
    return list(counter.pieces.values())


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
            found = F.scaled_dot_product_attention(query, past[0], past[1], attn_mask=bias)
            layer.attention.out(found.transpose(1, 2).reshape(x.shape))

    def cross_attention() -> None:
        for index, layer in layers:
            query = layer.source.query(x).view(batch, width, heads, size).transpose(1, 2)
            key, value = cache.source[index]
            found = F.scaled_dot_product_attention(query, key, value)
            layer.source.out(found.transpose(1, 2).reshape(x.shape))

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
