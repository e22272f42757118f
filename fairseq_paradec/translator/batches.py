"""Sentences of like length side by side, as fairseq-interactive puts them together."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..batch import Batch
from ..model.dictionary import PAD


def collate(sentences: Sequence[Sequence[int]], places: Sequence[int]) -> tuple[list[int], Batch]:
    """Put some sentences side by side, the longest first, padded on the left.

    Args:
        sentences: tokens of each.
        places: the places of those that are taken.

    Returns:
        The places in the batch's order, and the batch.
    """
    tokens = np.full((len(places), max(len(sentences[i]) for i in places)), PAD, np.int64)
    for row, place in zip(tokens, places, strict=True):
        sentence = sentences[place]
        row[len(row) - len(sentence) :] = sentence
    order = np.argsort(-(tokens != PAD).sum(1), kind="stable")
    return [places[row] for row in order], Batch(tokens[order])


def by_length(
    sentences: Sequence[Sequence[int]], batch_size: int, max_tokens: int, longest: int
) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of like length, short sentences first; see ``collate``.

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


def from_short_to_long(dataset: Any) -> list[int]:
    """Return the numbers of a subset's sentences, from short to long.

    Sentences of equal length keep the order of the data; fairseq shuffles them, unless the subset
    is called ``test``.
    """
    sizes, targets = dataset.src_sizes, dataset.tgt_sizes
    numbers = range(len(sizes))
    if targets is None:
        return sorted(numbers, key=sizes.__getitem__)
    return sorted(numbers, key=lambda i: (sizes[i], targets[i]))
