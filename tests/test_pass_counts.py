"""`steps`, the decoder passes of each row, are those of the plain reference."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from reference.greedy import rules_for
from reference.jacobi import Sentence, greedy, reference, sentence
from support.builders import Limits, batch, built, collate, decode, source_rows
from support.exact import GRID, METHODS, RAGGED, Flags, name

#: Models whose pass counts lie anywhere between two and greedy's.
TELLING = ("learned_positions", "mbart")
LIMITS = Limits()


@cache
def known(variant: str, row: tuple[int, ...]) -> Sentence:
    """The reference's view of a sentence; kept, because it remembers what it has computed."""
    task, model = built(variant)
    rules = rules_for(task.target_dictionary, [model], len(row), **LIMITS.reference())
    return sentence([model], row, rules)


@pytest.mark.parametrize("flags", METHODS[:1] + GRID, ids=name)
@pytest.mark.parametrize("variant", TELLING)
def test_every_combination_of_flags(variant: str, flags: Flags) -> None:
    """Tokens and passes of every row, batch = single = reference."""
    task, model = built(variant)
    sample = batch(task, RAGGED, seed=2)
    together = decode(task, [model], sample, LIMITS, **flags)
    for i, (hypo, row) in enumerate(zip(together, source_rows(sample), strict=True)):
        x = known(variant, tuple(row))
        want = reference(x, **flags)
        hypos = [hypo]
        if i < 2:
            hypos += decode(task, [model], collate(task, [torch.tensor(row)]), LIMITS, **flags)
        for one in hypos:
            assert (one["tokens"].tolist(), one["steps"]) == (want.tokens, want.num_passes)
        if flags.get("jacobi_stop") != "unchanged":
            assert hypo["steps"] <= greedy(x).num_passes
