"""BlockScorer: a block_nat model's decoder, over what is new of a prefix and a block of masks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .chunk import ChunkScorer
from .weights import refuse_unknown

MASK = -1  # stands for the model's mask vector in a chunk of tokens


class BlockScorer(ChunkScorer):
    """Fills blocks of masks behind prefixes (GAD's drafter, Xia et al. 2022, section 3).

    With prefix_causal attention the prefix's keys and values are cached, and a pass runs over its
    new tokens and the masks; with bidirectional attention over all of it.

    Args:
        model: a BlockNatModel in evaluation mode.
    """

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for layers or embeddings that are not stock ones."""
        refuse_unknown(model, [type(model.decoder)])

    def _start(self, encoder_out: dict[str, Any]) -> None:
        """Take an encoder's output; see ChunkScorer.start."""
        super()._start(encoder_out)
        self.caches_prefix = self.decoder.attention == "prefix_causal"
        if self.decoder.copy_sharpness is not None:
            self._run = None  # masks are made of the whole source, which comes in any length

    def fill(self, prefixes: Sequence[Sequence[int]], size: int) -> Tensor:
        """Predict the block behind each row's prefix, in one pass.

        Args:
            prefixes: B lists of tokens, without a start symbol; a row's next prefix begins with
                this one.
            size: K.

        Returns:
            B×K×D hidden states of the masks, ready for ``logits`` and ``log_probs``.
        """
        cached = self.lengths if self.caches_prefix else [0] * len(prefixes)
        self.keep(cached)
        new = [list(p[n:]) for p, n in zip(prefixes, cached, strict=True)]
        begins = tuple(map(len, new))  # where a row's masks begin
        if min(begins) == max(begins):
            begins = begins[:1]  # the same for all rows
        width = max(begins) + size
        device = self.cache.device
        # 1. The chunk, B×W: a row's new tokens, its masks, and something that nobody sees.
        rows = [tokens + [self.mask_token] * (width - len(tokens)) for tokens in new]
        make_mask = kept_block_mask if len(begins) == 1 else block_mask
        mask = make_mask(begins, size, width, self.caches_prefix, device)
        hidden = self.step(torch.tensor(rows, device=device), mask=mask)  # B×W×D
        # 2. Only the masks' outputs are wanted, and the prefix's keys and values.
        self.keep([len(p) for p in prefixes])
        if len(begins) == 1:
            return hidden[:, begins[0] :]
        where = torch.tensor(begins, device=device)[:, None] + torch.arange(size, device=device)
        return hidden.gather(1, where[:, :, None].expand(-1, -1, hidden.size(2)))

    def logits(self, hidden: Tensor, whole: bool = False) -> Tensor:
        """Project B×K×D hidden states to scores that are not normalised, in fp32 or fp64.

        Args:
            hidden: of masks.
            whole: whether all tokens are wanted, or those of the shortlist, if there is one.

        Returns:
            B×K×V, or B×K×N for a shortlist of N tokens.
        """
        project = self.projection if whole else self.draft_projection
        logits: Tensor = project(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _gather(self, lasting: bool) -> None:
        """As ChunkScorer; the mask vector stands behind the embeddings, as one more token."""
        super()._gather(lasting)
        table, vector = self.decoder.embed_tokens.weight, self.decoder.mask_vector
        self.mask_token = table.size(0)
        self.vectors = torch.cat((self.decoder.embed_scale * table, vector[None])).detach()

    def _token_vectors(self, tokens: Tensor) -> Tensor:
        """Look up the vectors of tokens and masks."""
        return F.embedding(tokens, self.vectors)

    def _embed(
        self, tokens: Tensor, positions: Tensor | None, start: int, slots: Tensor | None
    ) -> Tensor:
        """Embed a chunk as the model does."""
        if self.decoder.copy_sharpness is None:
            return super()._embed(tokens, positions, start, slots)
        if slots is None:
            slots = start + torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        tokens = tokens.masked_fill(tokens.eq(self.mask_token), MASK)
        embedded: Tensor = self.decoder.embed(tokens, slots, self.encoder_out)
        return embedded

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows; see ChunkScorer.reorder."""
        super().reorder(index, same_source)
        if not same_source and self.decoder.copy_sharpness is not None:
            picked = torch.tensor(index, device=self.cache.device)
            names = ("encoder_embedding", "encoder_padding_mask")
            self.encoder_out = {
                name: [part.index_select(0, picked) for part in self.encoder_out[name]]
                for name in names
            }


def block_mask(
    begins: tuple[int, ...], size: int, width: int, causal: bool, device: torch.device
) -> Tensor:
    """Say who sees whom in a chunk of new prefix tokens and masks.

    Masks see the whole block and all before it. Prefix tokens see those before them (causal), or
    as much as the masks.

    Args:
        begins: where the masks of each row begin, or one number for all rows.
        size: K.
        width: W.
        causal: prefix_causal attention.
        device: where the mask is wanted.

    Returns:
        B×W×W, or 1×W×W.
    """
    index = torch.arange(width, device=device)
    first = torch.tensor(begins, device=device)[:, None]
    last = first + size - 1
    sees_block = (index <= last) & (index >= (first if causal else 0))
    until = torch.where(sees_block, last, index)  # the last column that a row sees
    return index <= until[:, :, None]


# One sentence alone needs the same few masks again and again; they must not be changed.
kept_block_mask = functools.lru_cache(maxsize=256)(block_mask)
