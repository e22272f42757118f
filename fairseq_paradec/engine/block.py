"""BlockScorer: a block_nat model's decoder, over a prefix's new tokens and a block of masks."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..model.model import Model
from .chunk import ChunkScorer, pick


class BlockScorer(ChunkScorer):
    """Fills blocks of masks behind prefixes (GAD's drafter, Xia et al. 2022, section 3).

    With prefix_causal attention the prefix's keys and values are cached, and a pass runs over its
    new tokens and the masks; with bidirectional attention it runs over the whole prefix.
    """

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for layers or embeddings that are not stock ones."""
        from .torch.known import refuse_unknown

        refuse_unknown(model, [type(model.decoder)])

    def _torch_passes(self) -> Any:
        """Return torch's passes of the model; see ChunkScorer."""
        from .torch.scoring import BlockPasses

        return BlockPasses(self.given, self.engine)

    @property
    def mask_token(self) -> int:
        """The number of the mask vector: V."""
        if isinstance(self.given, Model):
            return self.given.architecture.target_words
        size: int = self.given.decoder.embed_tokens.num_embeddings
        return size

    @property
    def caches_prefix(self) -> bool:
        """Whether the prefix's keys and values are cached."""
        if isinstance(self.given, Model):
            assert self.given.architecture.block is not None
            return self.given.architecture.block.attention == "prefix_causal"
        causal: bool = self.given.decoder.attention == "prefix_causal"
        return causal

    def fill(self, prefixes: Sequence[Sequence[int]], size: int) -> Any:
        """Predict the block behind each row's prefix, in one pass.

        There can be more masks than K; see ``BlockNatModel.masks``.

        Args:
            prefixes: B lists of tokens, without a start symbol; in later calls a row's prefix
                extends this one.
            size: K.

        Returns:
            B×K×D hidden states of the first K masks, ready for ``choose``.
        """
        masks = self.model.masks(size)
        cached = self.cache.lengths if self.caches_prefix else [0] * len(prefixes)
        self.keep(cached)
        new = [list(p[n:]) for p, n in zip(prefixes, cached, strict=True)]
        begins = tuple(map(len, new))  # where a row's masks begin
        if min(begins) == max(begins):
            begins = begins[:1]  # the same for all rows
        width = max(begins) + masks
        # 1. The chunk, B×W: a row's new tokens, its masks, and filling without attention to it.
        rows = [tokens + [self.mask_token] * (width - len(tokens)) for tokens in new]
        make_mask = kept_block_mask if len(begins) == 1 else block_mask
        mask = make_mask(begins, masks, width, self.caches_prefix)
        hidden = self.step(np.array(rows), mask=mask)  # B×W×D
        # 2. Keep the prefix's keys and values, and return the masks' outputs.
        self.keep([len(p) for p in prefixes])
        if len(begins) == 1:
            return hidden[:, begins[0] : begins[0] + size]
        return pick(hidden, np.array(begins)[:, None] + np.arange(size))


def block_mask(begins: tuple[int, ...], size: int, width: int, causal: bool) -> np.ndarray:
    """Return the attention mask of a chunk of new prefix tokens and masks.

    Masks attend to the whole block and all before it. Prefix tokens attend to themselves and the
    tokens before them (causal), or to the same columns as the masks.

    Args:
        begins: the chunk position of each row's first mask, or one number for all rows.
        size: K, the number of masks.
        width: W, the length of the chunk.
        causal: prefix_causal attention.

    Returns:
        B×W, or 1×W, of int32: the number of the chunk's first tokens that each attends to.
    """
    index = np.arange(width, dtype=np.int32)
    first = np.array(begins, np.int32)[:, None]
    end = first + np.int32(size)
    sees_block = (index < end) & (index >= (first if causal else 0))
    return np.where(sees_block, end, index + np.int32(1))


# Batches of one sentence need the same few masks in every pass; callers must not change them.
kept_block_mask = functools.lru_cache(maxsize=256)(block_mask)
