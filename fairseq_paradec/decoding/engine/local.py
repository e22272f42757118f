"""LocalScorer: ChunkScorer for decoders with local attention, whose cache holds the window only.

Local attention is that of Parmar et al. (2018), section 3.3: a position sees those before it in its
own block, and so many before the block. An image has thousands of tokens and each sees a few
hundred: what nobody will see again is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from .chunk import INITIAL_CAPACITY, PLAIN, ChunkScorer
from .settings import Engine
from .weights import refuse_unknown


class LocalScorer(ChunkScorer):
    """The decoder of one image Transformer over chunks of K tokens against a ring of slots.

    Position p of a row is kept in slot p mod C. C is the window and room for a chunk, whatever the
    output's length; so rolled-back tokens never lie where an older one is still to be seen, and
    which position a slot holds follows from the row's length alone. A row can be rolled back as far
    as its last chunk's start, no further. The decoder says by ``attention_window.first`` from where
    on a position sees.

    Args:
        model: an ImageTransformer, with heads or without, in evaluation mode.
        engine: see ChunkScorer.

    Raises:
        UsageError: the model is not one that this class knows.
    """

    def __init__(self, model: Any, engine: Engine = PLAIN) -> None:
        super().__init__(model, engine)
        self.window = model.decoder.attention_window
        most = self.window.block - 1 + self.window.memory
        # How many positions before its own one sees at most.
        self.reach: int = min(most, model.decoder.max_positions() - 1)
        self.initial_capacity = self.reach + INITIAL_CAPACITY
        self.oldest: list[int] = []  # of each row, the first position that the ring holds

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for layers or embeddings that are neither stock nor known as local."""
        decoder = model.decoder
        attention = type(next(decoder.layers.children()).self_attn)
        # What a class says of itself does not hold for its subclasses.
        decoders = [type(decoder)] if _is_known(type(decoder)) else ()
        positions = type(decoder.embed_positions)
        refuse_unknown(
            model, decoders, [positions] if _is_known(positions) else (),
            attention if _is_known(attention) else MultiheadAttention,
        )  # fmt: skip

    def _position_table(self, size: int) -> Tensor:
        """Vectors of all the rows that an image has."""
        table: Tensor = self.decoder.embed_positions.table().detach()
        return table.to(self.decoder.embed_tokens.weight)

    def _start(self, encoder_out: dict[str, Any]) -> None:
        """Take an encoder's output; see ChunkScorer.start."""
        super()._start(encoder_out)
        self.oldest = [0] * len(self.lengths)

    def _make_room(self, end: int) -> None:
        """Make the ring large enough for a chunk; ``end`` is where that of the longest row ends."""
        width = end - max(self.lengths)
        room = INITIAL_CAPACITY
        while room < width:
            room *= 2
        if self.reach + room > self.cache.size(2):
            self._enlarge(self.reach + room)
        capacity = self.cache.size(2)
        known = zip(self.oldest, self.lengths, strict=True)
        self.oldest = [max(oldest, n + width - capacity) for oldest, n in known]

    def _enlarge(self, capacity: int) -> None:
        """Move what is still to be seen into a larger ring."""
        device = self.cache.device
        last = torch.tensor(self.lengths, device=device)[:, None] - 1
        # Those below 0 are nobody's; they fall into slots that are of no use yet.
        places = last - torch.arange(self.reach, device=device)  # B×R
        rows = torch.arange(len(self.lengths), device=device)[:, None]
        larger = self._empty_cache(len(self.lengths), capacity, self.cache)
        old = self._slots(places, self.cache.size(2))
        larger[:, rows, self._slots(places, capacity)] = self.cache[:, rows, old]
        self.cache = larger
        known = zip(self.oldest, self.lengths, strict=True)
        self.oldest = [max(oldest, n - self.reach) for oldest, n in known]

    def step(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Run the decoder over one chunk and cache it; see ChunkScorer.step.

        Args:
            tokens: B×K.
            positions: None: an image is written from its first intensity to its last.
            mask: None: the window's.
        """
        assert positions is None and mask is None
        return super().step(tokens)

    def _step_plain(self, tokens: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        """Run the decoder over a chunk as Python calls it; see ``step``."""
        starts = self.lengths
        self._make_room(max(starts) + tokens.size(1))
        if min(starts) == max(starts):
            starts = starts[:1]  # one mask for all
        first = torch.tensor(starts, device=tokens.device)
        return self._pass(tokens, first, None, None, self.cache, self.cross, self.source_bias)

    def _slots(self, places: Tensor, capacity: int) -> Tensor:
        """Return where in a ring of so many slots these positions are kept."""
        return places % capacity

    def _hidden(self, places: Tensor, capacity: int) -> Tensor:
        """Say which slots a chunk at these positions, B×K, does not see: B×K×C."""
        last = places[:, -1:]
        slots = torch.arange(capacity, device=places.device)
        held = (last - (last - slots) % capacity)[:, None]  # B×1×C: the position in each slot
        here = places[:, :, None]
        return (held > here) | (held < self.window.first(here).clamp(min=0))

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        for length, oldest in zip(lengths, self.oldest, strict=True):
            assert self.window.first(length) >= oldest or oldest == 0, "what it sees is overwritten"
        super().keep(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows; see ChunkScorer.reorder."""
        super().reorder(index, same_source)
        self.oldest = [self.oldest[i] for i in index]


def _is_known(kind: type) -> bool:
    """Say whether a class itself, and no parent of it, says that LocalScorer knows it."""
    return "known_to_local_scorer" in vars(kind)
