"""An output for each sentence of a batch, also for one that models cannot translate."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..batch import Batch, Numbers
from ..decoding.hypotheses import empty_hypothesis
from ..errors import option_error

logger = logging.getLogger(__name__)

#: B lists of fairseq's hypotheses.
Hypotheses = list[list[dict[str, Any]]]


def problems_of(batch: Batch, longest: int, sources: Any) -> list[str | None]:
    """Return for each sentence why it cannot be translated, or None.

    Args:
        batch: the sentences.
        longest: the tokens that models take, with ``</s>``.
        sources: the source dictionary.
    """
    eos = sources.eos()
    problems: list[str | None] = []
    for row in batch.tokens.tolist():
        sentence = [token for token in row if token != batch.pad]
        if all(token == eos for token in sentence):
            problems.append("is empty")
        elif len(sentence) > longest:
            start, count = " ".join(sources[token] for token in sentence[:5]), len(sentence)
            problems.append(f"({start} ...) has {count} tokens, and the model takes {longest}")
        else:
            problems.append(None)
    return problems


def decode_each(
    decode: Callable[[Batch], Hypotheses],
    batch: Batch,
    problems: Sequence[str | None],
    models: Sequence[Any],
    words: Any,
) -> Hypotheses:
    """Decode a batch; a sentence that has a problem gets an empty output and a warning.

    Outputs begin with the model's first token, if it has one, and with the prefix.

    Args:
        decode: decodes a batch; see Decoder.decode.
        batch: the sentences.
        problems: for each sentence why it cannot be translated, or None.
        models: one model, or several as an ensemble.
        words: the target dictionary.

    Returns:
        B lists of hypotheses; the empty ones have a ``problem``.

    Raises:
        UsageError: the target dictionary does not have the model's first token.
    """
    first = first_token(models, words)
    if first is not None:
        prefix = _prefix_from(first, len(batch), batch.prefix)
        drafts = [_draft_from(first, draft) for draft in batch.drafts]
        batch = replace(batch, prefix=prefix, drafts=drafts)
    for number, problem in zip(batch.numbers, problems, strict=True):
        if problem is not None:
            name = "a sentence" if number is None else f"sentence {number}"
            logger.warning("%s %s; its output is empty", name, problem)
    good = [b for b, problem in enumerate(problems) if problem is None]
    if len(good) == len(problems):
        return decode(batch)
    hypos = [[empty_hypothesis(words.eos()) | {"problem": problem}] for problem in problems]
    if good:
        for b, hypo in zip(good, decode(batch.take(good)), strict=True):
            hypos[b] = hypo
    return hypos


def first_token(models: Sequence[Any], words: Any) -> int | None:
    """Return the number of the token that the model's outputs begin with; None: it has none.

    Raises:
        UsageError: the target dictionary does not have it.
    """
    word = getattr(models[0], "first_target_token", None)
    if word is None:
        return None
    token: int = words.index(word)
    if token == words.unk():
        raise option_error(
            "--path",
            f"a model whose outputs begin with {word}",
            "one whose first token is in the target dictionary",
        )
    return token


def _prefix_from(token: int, count: int, prefix: Numbers | None) -> Numbers:
    """Put a token before prefixes, B×P, that do not all begin with it; ``count`` is B."""
    first = np.full((count, 1), token, np.int64)
    if prefix is None:
        return first
    if (prefix[:, :1] == first).all():
        return prefix
    return np.concatenate((first, prefix), axis=1)


def _draft_from(token: int, draft: Sequence[int]) -> list[int]:
    """Put a token before a draft of text, which does not have it; an empty draft stays empty."""
    return [token, *draft] if draft and draft[0] != token else [*draft]
