"""What a model says of translations that are there: log-probabilities, in a pass a batch.

A translation is forced as the beginning of the output, and is its own draft: greedy search then
scores all of it in one pass.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..config import LARGEST
from ..errors import option_error
from ..model.dictionary import EOS, PAD
from .batches import by_length


class Score(NamedTuple):
    """What a model says of a translation.

    Attributes:
        score: the mean log-probability of its tokens (natural), as fairseq's ``--score-reference``
            has it; with ``lenpen`` another power of their number; None if there is a problem.
        tokens: its tokens, with ``</s>``, and with the token that the model's outputs begin with.
        scores: the log-probability of each.
        problem: why it has none.
    """

    score: float | None
    tokens: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    problem: str | None = None


def scores_of(
    translator: Any,
    sources: Iterable[str],
    targets: Iterable[str],
    batch_size: int,
    max_tokens: int,
    buffer_size: int,
    options: dict[str, Any],
) -> Iterator[Score]:
    """Yield the scores of translations; see ``Translator.score``."""
    if translator.usual("greedy") != "greedy":
        allowed = "a model that writes a word a step, from left to right"
        raise option_error("--model", str(translator.path), allowed)
    decoder = translator.generator({"decoding": "greedy", "max_len_b": LARGEST, **options})
    pairs = _pairs(sources, targets)
    while window := list(islice(pairs, buffer_size)):
        yield from _window(translator, decoder, window, batch_size, max_tokens)


def _pairs(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield a source and its translation.

    Raises:
        UsageError: there are more of one, or one is no text.
    """
    over: Any = object()
    for number, (source, target) in enumerate(zip_longest(sources, targets, fillvalue=over)):
        if over in (source, target):
            shorter = "SOURCE" if source is over else "TARGET"
            raise option_error(shorter, f"{number} lines", "as many lines as the other has")
        for text in (source, target):
            if not isinstance(text, str):
                raise option_error("score()", text, "lists of sentences")
        yield source, target


def _window(
    translator: Any,
    decoder: Any,
    pairs: Sequence[tuple[str, str]],
    batch_size: int,
    max_tokens: int,
) -> Iterator[Score]:
    """Yield the scores of some translations, by batches of sources of like length."""
    words, longest = translator.targets, decoder.max_len
    sources = [translator.sources.encode_line(translator.encode(source)) for source, _ in pairs]
    targets = [words.encode_line(translator.encode_output(target)) for _, target in pairs]
    results: dict[int, Score] = {}
    for place, tokens in enumerate(targets):
        if tokens == [EOS]:
            results[place] = Score(None, problem="is empty")
        elif len(tokens) > longest:
            problem = f"has {len(tokens)} tokens, and the model writes {longest}"
            results[place] = Score(None, problem=problem)
    left = [place for place in range(len(pairs)) if place not in results]
    for taken, batch in by_length([sources[i] for i in left], batch_size, max_tokens, max_tokens):
        places = [left[i] for i in taken]
        forced = [targets[place] for place in places]
        drafts = [tokens[:-1] for tokens in forced]
        prefix = np.full((len(forced), max(map(len, forced))), PAD, np.int64)
        for row, tokens in zip(prefix, forced, strict=True):
            row[: len(tokens)] = tokens
        batch = replace(batch, ids=np.array(places), prefix=prefix, drafts=drafts)
        for place, (hypo, *_) in zip(places, translator.decode(decoder, batch), strict=True):
            if "problem" in hypo:
                results[place] = Score(None, problem=f"its source {hypo['problem']}")
            else:
                symbols = (words[token] for token in hypo["tokens"].tolist())
                each = map(float, hypo["positional_scores"])
                results[place] = Score(float(hypo["score"]), tuple(symbols), tuple(each))
    yield from (results[place] for place in range(len(pairs)))
