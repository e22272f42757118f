"""The decoder of GAD's drafter: it fills blocks of mask slots behind prefixes; see block_nat."""

from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoder
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

MASK = -1  # stands for the mask vector in tensors of tokens


class BlockNatDecoder(TransformerDecoder):
    """A Transformer decoder over a prefix and blocks of mask slots."""

    def __init__(self, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.attention = args.drafter_attention
        self.mask_vector = nn.Parameter(torch.empty(embed_tokens.embedding_dim))
        nn.init.normal_(self.mask_vector, std=0.02)
        # The soft copy's sharpness, 1/tau: the weight of source position s in the slot at target
        # position t falls with exp(-|t - s| / tau).
        self.copy_sharpness = nn.Parameter(torch.ones(1)) if args.soft_copy else None

    def forward(
        self, target: Tensor, starts: Tensor, shown: Tensor, encoder_out: dict[str, Any]
    ) -> Tensor:
        """Run the decoder over prefixes and blocks.

        Args:
            target: B×T tokens; block j of a row attends to the first ``starts[j]`` of them.
            starts: B×J prefix lengths; J is 1 with bidirectional attention.
            shown: B×J×K inputs of the blocks: ``MASK``, or a revealed token.
            encoder_out: the encoder's output, in fairseq's layout.

        Returns:
            B×J×K×D features of the block positions.
        """
        batch, prefix = target.shape
        blocks, size = shown.shape[1:]
        tokens = torch.cat((target, shown.reshape(batch, -1)), dim=1)  # B×L, L = T + J·K
        in_block = torch.arange(size, device=target.device)
        slots = (starts[:, :, None] + in_block).reshape(batch, -1)  # B×(J·K)
        before = torch.arange(prefix, device=target.device).expand(batch, -1)
        positions = torch.cat((before, slots), dim=1)  # B×L
        x = self.dropout_module(self.embed(tokens, positions, encoder_out))
        visible = visibility(starts, prefix, size, self.attention == "prefix_causal")  # B×L×L
        heads = self.layers[0].self_attn.num_heads
        hidden = torch.zeros_like(visible, dtype=x.dtype).masked_fill_(~visible, float("-inf"))
        hidden = hidden.repeat_interleave(heads, dim=0)  # (B·H)×L×L
        padding = encoder_out["encoder_padding_mask"]
        x = x.transpose(0, 1)  # L×B×D
        for layer in self.layers:
            x, _, _ = layer(
                x,
                encoder_out["encoder_out"][0],
                padding[0] if len(padding) > 0 else None,
                self_attn_mask=hidden,
            )
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x[prefix:].transpose(0, 1)  # B×(J·K)×D
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x.view(batch, blocks, size, -1)

    def embed(self, tokens: Tensor, positions: Tensor, encoder_out: dict[str, Any]) -> Tensor:
        """Embed tokens and masks: B×L each, 0-based positions -> B×L×D."""
        is_mask = tokens.eq(MASK)[:, :, None]
        x = self.embed_scale * self.embed_tokens(tokens.masked_fill(tokens.eq(MASK), 0))
        x = torch.where(is_mask, self.mask_vector.to(x), x)
        if self.copy_sharpness is not None:
            x = x + is_mask * self.soft_copy(positions, encoder_out)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            places = self.embed_positions
            sinusoids = isinstance(places, SinusoidalPositionalEmbedding)
            table = places.weights.to(x) if sinusoids else places.weight
            first = places.padding_idx + 1
            # Slots past the last position are not scored.
            last = self.max_positions() - 1
            x = x + table[first + positions.clamp(max=last)]
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return x

    def soft_copy(self, positions: Tensor, encoder_out: dict[str, Any]) -> Tensor:
        """Average the source embeddings around each position: B×L 0-based positions -> B×L×D."""
        source = encoder_out["encoder_embedding"][0]  # B×S×D
        padding = encoder_out["encoder_padding_mask"][0]  # B×S; fairseq pads sources on the left
        where = (~padding).cumsum(dim=1) - 1
        distance = (positions[:, :, None] - where[:, None]).abs().to(source.dtype)
        scores = -distance * self.copy_sharpness  # B×L×S
        return scores.masked_fill(padding[:, None], float("-inf")).softmax(dim=-1) @ source


def visibility(starts: Tensor, prefix: int, size: int, causal: bool) -> Tensor:
    """Return the attention mask of T prefix tokens and J blocks of K slots.

    A block's slots attend to each other and to the first ``starts`` tokens. Prefix tokens attend to
    themselves and the tokens before them (causal), or else to the prefix of the only block and all
    of its slots.

    Args:
        starts: B×J prefix lengths.
        prefix: T.
        size: K.
        causal: prefix_causal attention.

    Returns:
        B×L×L, L = T + J·K; True where row i attends to column j.
    """
    batch, blocks = starts.shape
    length = prefix + blocks * size
    index = torch.arange(length, device=starts.device)
    block = (index - prefix).div(size, rounding_mode="floor").clamp(min=-1)  # -1: a prefix token
    visible = (block[:, None] == block[None, :]).expand(batch, -1, -1).clone()
    # A slot attends to the tokens before its block.
    start = starts.repeat_interleave(size, dim=1)  # B×(J·K)
    visible[:, prefix:, :prefix] = index[:prefix] < start[:, :, None]
    if causal:
        visible[:, :prefix, :prefix] = index[:prefix] <= index[:prefix, None]
    else:
        same = index[:prefix] == index[:prefix, None]  # so that every row attends to something
        visible[:, :prefix, :prefix] = (index[:prefix] < starts[:, :, None]) | same
        visible[:, :prefix, prefix:] = True
    return visible
