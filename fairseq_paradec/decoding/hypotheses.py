"""fairseq's hypotheses, in the layout that its commands expect from a generator."""

from typing import Any

import numpy as np

from ..row import Row


def hypothesis(row: Row, normalise: bool, len_penalty: float) -> dict[str, Any]:
    """Turn a finished row into a fairseq hypothesis.

    Returns:
        ``tokens`` (T, with ``</s>``), ``score``, ``positional_scores`` (T, natural log),
        ``steps`` (decoder passes), ``num_drafted`` and ``num_accepted`` (drafted and accepted
        tokens of each pass), ``given`` (whether each pass's draft is from an earlier output),
        ``history`` (the output after each pass, if a trace is kept).
    """
    positional_scores = np.array(row.scores, np.float32)
    score = positional_scores.sum()
    if normalise:
        score = score / np.float32(len(row.tokens) ** len_penalty)
    return {
        "tokens": np.array(row.tokens, np.int64),
        "score": score,
        "positional_scores": positional_scores,
        "steps": len(row.passes),
        "num_drafted": [record.num_drafted for record in row.passes],
        "num_accepted": [record.num_accepted for record in row.passes],
        "given": [record.given for record in row.passes],
        "history": history(row),
    }


def history(row: Row) -> list[dict[str, Any]]:
    """Return the row's tokens after each pass: the final tokens, then the new predictions."""
    states = []
    for record in row.passes:
        if record.tokens is not None:
            accepted = record.num_accepted
            block = record.tokens.draft[:accepted] + record.tokens.verifier[accepted:]
            known = row.tokens[: record.start] + block
            states.append({"tokens": np.array(known, np.int64)})
    return states


def without_repetitions(tokens: list[int], longest: int) -> list[int]:
    """Drop immediate repetitions of n-grams, the longest first.

    Returns:
        The indices of the kept tokens; of a repeated n-gram, those of its first occurrence.
    """
    kept: list[int] = []
    for index in range(len(tokens)):
        kept.append(index)
        for n in range(longest, 0, -1):
            last = [tokens[i] for i in kept[-n:]]
            if len(kept) >= 2 * n and last == [tokens[i] for i in kept[-2 * n : -n]]:
                del kept[-n:]
                break
    return kept


def empty_hypothesis(eos: int) -> dict[str, Any]:
    """Return the hypothesis of a sentence that cannot be decoded: ``</s>`` alone."""
    return {
        "tokens": np.array([eos]),
        "score": np.float32(0.0),
        "positional_scores": np.zeros(1, np.float32),
        "steps": 0,
        "history": [],
    }
