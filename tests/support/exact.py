"""Comparing a method with fairseq's own beam 1: cases, scenarios, and the check."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from reference.greedy import assert_same_or_tie, rules_for, stock_greedy
from torch import Tensor

from fairseq_paradec.errors import UsageError
from fairseq_paradec.row import Row
from fairseq_paradec.token_rules import Scored
from support.builders import Limits, decode, source_rows

Flags = dict[str, Any]

RAGGED = (3, 7, 5, 9, 2, 4)
#: Every kind of method once, for tests that vary something else.
METHODS: list[Flags] = [
    {"decoding": "greedy"},
    {"decoding": "pj"},
    {"decoding": "pj", "jacobi_length": "oracle", "jacobi_stop": "unchanged"},
    {"decoding": "pgj", "block_size": 3},
    {"decoding": "pgj", "block_size": 8, "jacobi_stop": "unchanged", "jacobi_init": "ngram"},
    {"decoding": "pgj", "block_size": 3, "jacobi_stop": "unchanged", "jacobi_length": "oracle"},
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
    return "-".join(str(value) for value in flags.values())


def same_or_tie(
    task: Any,
    models: Any,
    limits: Limits,
    ours: Any,
    theirs: Any,
    source: Any,
    prefix: Any,
    close: float = 1e-4,
    rounding: float | None = None,
) -> int:
    """Check tokens, score and positional scores of one row; 1 if they part at a tie.

    Two tokens whose log-probabilities are closer than `close` tie. Those of the same token may
    differ by `rounding`, by default `close`, or by a few roundings.
    """
    rounding = close if rounding is None else rounding
    words = task.target_dictionary
    rules = rules_for(words, models, len(source), prefix=prefix, **limits.reference())
    outputs = [one["tokens"].tolist() for one in (ours, theirs)]
    if assert_same_or_tie(models, source, rules, *outputs, close):
        return 1
    assert float(ours["score"]) == pytest.approx(float(theirs["score"]), abs=rounding, rel=1e-5)
    positional = [one["positional_scores"].double() for one in (ours, theirs)]
    torch.testing.assert_close(*positional, atol=rounding, rtol=1e-5)
    return 0


def is_whole(hypo: dict[str, Tensor], device: str) -> bool:
    """Whether the output is on the device, ends once, and has finite scores."""
    tokens, scores = hypo["tokens"], hypo["positional_scores"]
    here = tokens.device.type == scores.device.type == device
    ends = tokens.eq(2).nonzero().flatten().tolist() == [len(tokens) - 1]
    finite = bool(scores.isfinite().all()) and bool(torch.as_tensor(hypo["score"]).isfinite())
    return here and ends and finite and len(scores) == len(tokens)


def check(
    task: Any,
    models: Sequence[Any],
    sample: dict[str, Any],
    flags: Flags,
    limits: Limits,
    prefix_tokens: Tensor | None = None,
    max_ties: int = 0,
    want: list[dict[str, Tensor]] | None = None,
) -> list[dict[str, Tensor]]:
    """Decode, compare with fairseq's hypotheses (`want`, if they are known), and return these."""
    if want is None:
        want = stock_greedy(task, models, sample, prefix_tokens, **limits.stock())
    got = decode(task, models, sample, limits, prefix_tokens, **flags)
    forced = [[]] * len(got) if prefix_tokens is None else prefix_tokens.tolist()
    rows = zip(got, want, source_rows(sample), forced, strict=True)
    ties = sum(same_or_tie(task, models, limits, *row) for row in rows)
    assert ties <= max_ties
    return want


@dataclass(frozen=True)
class Decoded:
    """What became of one row."""

    hypo: dict[str, Tensor]
    row: Row

    @property
    def tokens(self) -> list[int]:
        return self.hypo["tokens"].tolist()

    @property
    def passes(self) -> list[tuple[int, int, int]]:
        """Start, number of drafted tokens and of accepted ones, pass by pass."""
        return [(p.start, p.num_drafted, p.num_accepted) for p in self.row.passes]


def watched(
    task: Any,
    generator: Any,
    models: Sequence[Any],
    sample: dict[str, Any],
    prefix_tokens: Tensor | None = None,
) -> list[Decoded]:
    """Decode a batch, and keep what happened in each row's passes."""
    kept: list[Row] = []
    decoder = getattr(generator, "decoder", generator)
    make_rows = decoder._make_rows
    decoder._make_rows = lambda *args: kept.extend(make_rows(*args)) or kept
    try:
        hypos = task.inference_step(generator, list(models), sample, prefix_tokens=prefix_tokens)
    finally:
        del decoder._make_rows
    return [Decoded(hypo[0], row) for hypo, row in zip(hypos, kept, strict=True)]


def outputs_of(sample: dict[str, Any], hypos: Sequence[dict[str, Tensor]]) -> dict:
    """The output of each source."""
    rows = map(tuple, source_rows(sample))
    return {row: hypo["tokens"].tolist() for row, hypo in zip(rows, hypos, strict=True)}


PREFIXES: dict[str, list[list[int]]] = {
    "one": [[5], [6], [7], [8]],
    "three": [[5, 9, 11], [6, 6, 6], [7, 3, 30], [8, 39, 4]],
    "ragged": [[5, 9, 11], [6, 1, 1], [1, 1, 1], [8, 39, 1]],
    "ends": [[5, 2, 1], [6, 7, 2], [2, 1, 1], [8, 39, 10]],
    "long": [[5, 9, 11, 12, 13, 14, 15, 16]] * 4,
}


def scored(scores: Tensor, choices: Tensor, draft: Tensor) -> Scored:
    """The verifier's scores, B×R×V, as an acceptance rule reads them."""
    part = scores[:, : draft.size(1)]
    drafted = part.gather(2, draft[:, :, None])
    best = scores.gather(2, choices[:, :, None]).squeeze(2)
    parts = choices, best, drafted.squeeze(2), part.gt(drafted).sum(2)
    return Scored(*(part.numpy() for part in parts))


def refused(task: Any, models: Sequence[Any], words: str, **flags: Any) -> None:
    """Building the generator must fail, and name all these words, which `|` parts."""
    with pytest.raises(UsageError) as error:
        task.build_generator([*models], argparse.Namespace(**flags))
    missing = [word for word in words.split("|") if word not in str(error.value)]
    assert not missing, f"{missing}: {error.value}"
