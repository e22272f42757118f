"""Comparing a method with fairseq's own beam 1: cases, scenarios, and the check."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference.greedy import assert_same_or_tie, rules_for, stock_greedy

from support.builders import (
    Limits,
    decode,
    source_rows,
)

Flags = dict[str, Any]


INITS = ("pad", "bos", "source-copy", "ngram")
BLOCKS = (1, 3, 5, 8, 50)  # 50: beyond every limit here
RAGGED = (3, 7, 5, 9, 2, 4)
#: Every kind of method once, for tests that vary something else.
METHODS: list[Flags] = [
    {"decoding": "greedy"},
    {"decoding": "pj"},
    {"decoding": "pj", "jacobi_length": "oracle", "jacobi_stop": "unchanged"},
    {"decoding": "pgj", "block_size": 3},
    {"decoding": "pgj", "block_size": 8, "jacobi_stop": "unchanged", "jacobi_init": "ngram"},
    {"decoding": "pgj", "block_size": 5, "jacobi_window": "sliding", "jacobi_init": "bos"},
    {"decoding": "hgj"},
    {"decoding": "hgj", "block_size": 3, "hybrid_length": 7},
    {
        "decoding": "hgj",
        "block_size": 3,
        "hybrid_length": 7,
        "jacobi_window": "sliding",
        "jacobi_init": "ngram",
    },
]


def name(flags: Flags) -> str:
    """A test id that says which flags are set."""
    return "-".join(str(value) for value in flags.values())


def windows_and_stops() -> list[Flags]:
    """What --jacobi-window and --jacobi-stop allow together."""
    return [
        {"jacobi_window": "block", "jacobi_stop": "prefix"},
        {"jacobi_window": "block", "jacobi_stop": "unchanged"},
        {"jacobi_window": "sliding", "jacobi_stop": "prefix"},
    ]


#: Every combination of the flags of one method.
GRID: list[Flags] = [
    *(
        {"decoding": "pj", "jacobi_init": init, "jacobi_stop": stop, "jacobi_length": length}
        for init, stop, length in itertools.product(
            INITS, ("prefix", "unchanged"), ("grow", "oracle")
        )
    ),
    *(
        {"decoding": "pgj", "block_size": size, "jacobi_init": init, **how}
        for size, init, how in itertools.product(BLOCKS, INITS, windows_and_stops())
    ),
    *(
        {
            "decoding": "hgj",
            "block_size": size,
            "jacobi_init": init,
            "hybrid_length": hybrid_length,
            **how,
        }
        for size, init, how, hybrid_length in itertools.product(
            (1, 3, 8), INITS, windows_and_stops(), (1, 7, None)
        )
    ),
]


def check(
    task: Any,
    models: Sequence[Any],
    sample: dict[str, Any],
    flags: Flags,
    limits: Limits,
    prefix_tokens: torch.Tensor | None = None,
    max_ties: int = 0,
    want: list[dict[str, torch.Tensor]] | None = None,
) -> list[dict[str, torch.Tensor]]:
    """Decode with the flags and compare tokens, score and positional scores with fairseq's.

    Args:
        want: fairseq's hypotheses, if they are known.

    Returns:
        fairseq's hypotheses, for tests that look at what they are.
    """
    if want is None:
        want = stock_greedy(task, models, sample, prefix_tokens, **limits.stock())
    got = decode(task, models, sample, limits, prefix_tokens, **flags)
    ties = 0
    for i, (ours, theirs, source) in enumerate(zip(got, want, source_rows(sample), strict=True)):
        rules = rules_for(
            task.target_dictionary,
            models,
            len(source),
            prefix=[] if prefix_tokens is None else prefix_tokens[i].tolist(),
            **limits.reference(),
        )
        tie = assert_same_or_tie(
            models, source, rules, ours["tokens"].tolist(), theirs["tokens"].tolist()
        )
        ties += tie
        if not tie:
            assert float(ours["score"]) == pytest.approx(float(theirs["score"]), abs=1e-4)
            torch.testing.assert_close(
                ours["positional_scores"].double(),
                theirs["positional_scores"].double(),
                atol=1e-4,
                rtol=0,
            )
    assert ties <= max_ties
    return want


PREFIXES: dict[str, list[list[int]]] = {
    "one": [[5], [6], [7], [8]],
    "three": [[5, 9, 11], [6, 6, 6], [7, 3, 30], [8, 39, 4]],
    "ragged": [[5, 9, 11], [6, 1, 1], [1, 1, 1], [8, 39, 1]],
    "ends": [[5, 2, 1], [6, 7, 2], [2, 1, 1], [8, 39, 10]],
    "long": [[5, 9, 11, 12, 13, 14, 15, 16]] * 4,
}
