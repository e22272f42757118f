"""Sentences of like length side by side, as fairseq-interactive puts them together."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..model.dictionary import PAD

Numbers = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """Sentences that are decoded together, the longest first."""

    ids: Numbers  # B, the place of each among the sentences
    tokens: Numbers  # B×S, padded on the left

    @property
    def lengths(self) -> Numbers:
        """Tokens of each sentence, without padding: B."""
        return (self.tokens != PAD).sum(1)


def collate(sentences: Sequence[Sequence[int]], places: Sequence[int]) -> Batch:
    """Put some sentences side by side.

    Args:
        sentences: tokens of each.
        places: the places of those that are taken.
    """
    tokens = np.full((len(places), max(len(sentences[i]) for i in places)), PAD, np.int64)
    for row, place in zip(tokens, places, strict=True):
        sentence = sentences[place]
        row[len(row) - len(sentence) :] = sentence
    batch = Batch(np.array(places, np.int64), tokens)
    order = np.argsort(-batch.lengths, kind="stable")
    return Batch(batch.ids[order], tokens[order])


def by_length(
    sentences: Sequence[Sequence[int]], batch_size: int, max_tokens: int, longest: int
) -> Iterator[Batch]:
    """Yield batches of like length, short sentences first.

    Args:
        sentences: tokens of each.
        batch_size: sentences of a batch, at most.
        max_tokens: tokens of a batch, at most, padding among them.
        longest: a sentence of more tokens than this or ``max_tokens`` is a batch of its own, after
            the others.
    """
    alone = min(max_tokens, longest)
    places: list[int] = []
    for place in sorted(range(len(sentences)), key=lambda place: len(sentences[place])):
        length = len(sentences[place])
        if places and (len(places) == batch_size or length * (len(places) + 1) > max_tokens):
            yield collate(sentences, places)
            places = []
        if length > alone:
            break
        places.append(place)
    if places:
        yield collate(sentences, places)
    for place, sentence in enumerate(sentences):
        if len(sentence) > alone:
            yield collate(sentences, [place])
