"""An output for each sentence of a batch, also for one that models cannot translate."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..decoding.hypotheses import empty_hypothesis
from ..decoding.samples import select_rows
from ..errors import option_error

logger = logging.getLogger(__name__)

#: B lists of fairseq's hypotheses.
Hypotheses = list[list[dict[str, Any]]]


def problems_of(tokens: np.ndarray, longest: int, sources: Any) -> list[str | None]:
    """Return for each sentence why it cannot be translated, or None.

    Args:
        tokens: B×S, padded.
        longest: the tokens that models take, with ``</s>``.
        sources: the source dictionary.
    """
    pad, eos = sources.pad(), sources.eos()
    problems: list[str | None] = []
    for row in tokens.tolist():
        sentence = [token for token in row if token != pad]
        if all(token == eos for token in sentence):
            problems.append("is empty")
        elif len(sentence) > longest:
            start, count = " ".join(sources[token] for token in sentence[:5]), len(sentence)
            problems.append(f"({start} ...) has {count} tokens, and the model takes {longest}")
        else:
            problems.append(None)
    return problems


def decode_each(
    decode: Callable[..., Hypotheses],
    sample: dict[str, Any],
    problems: Sequence[str | None],
    models: Sequence[Any],
    words: Any,
    prefix_tokens: np.ndarray | None = None,
    constraints: Any = None,
) -> Hypotheses:
    """Decode a batch; a sentence that has a problem gets an empty output and a warning.

    Outputs begin with the model's first token, if it has one, and with the prefix.

    Args:
        decode: decodes sample, prefixes and constraints; see Decoder.decode.
        sample: fairseq's batch, of arrays or tensors; see Decoder.decode.
        problems: for each sentence why it cannot be translated, or None.
        models: one model, or several as an ensemble.
        words: the target dictionary.
        prefix_tokens: B×P tokens that the outputs begin with, padded at the end.
        constraints: fairseq's, B×C.

    Returns:
        B lists of hypotheses; the empty ones have a ``problem``.

    Raises:
        UsageError: the target dictionary does not have the model's first token.
    """
    first = first_token(models, words)
    if first is not None:
        prefix_tokens = _prefix_from(first, len(problems), prefix_tokens)
        if "drafts" in sample:
            sample = sample | {"drafts": [_draft_from(first, draft) for draft in sample["drafts"]]}
    ids = sample["id"].tolist() if "id" in sample else [None] * len(problems)
    for sample_id, problem in zip(ids, problems, strict=True):
        if problem is not None:
            name = "a sentence" if sample_id is None else f"sentence {sample_id}"
            logger.warning("%s %s; its output is empty", name, problem)
    good = [b for b, problem in enumerate(problems) if problem is None]
    if len(good) == len(problems):
        return decode(sample, prefix_tokens, constraints)
    hypos = [[empty_hypothesis(words.eos()) | {"problem": problem}] for problem in problems]
    if good:
        decoded = decode(
            select_rows(sample, good, words.pad()),
            None if prefix_tokens is None else prefix_tokens[good],
            None if constraints is None else constraints[good],
        )
        for b, hypo in zip(good, decoded, strict=True):
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


def _prefix_from(token: int, count: int, prefix_tokens: np.ndarray | None) -> np.ndarray:
    """Put a token before prefixes, B×P, that do not all begin with it; ``count`` is B."""
    first = np.full((count, 1), token, np.int64)
    if prefix_tokens is None:
        return first
    if (prefix_tokens[:, :1] == first).all():
        return prefix_tokens
    return np.concatenate((first, prefix_tokens), axis=1)


def _draft_from(token: int, draft: Sequence[int]) -> list[int]:
    """Put a token before a draft of text, which does not have it; an empty draft stays empty."""
    return [token, *draft] if draft and draft[0] != token else [*draft]
