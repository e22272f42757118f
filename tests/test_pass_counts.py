"""`steps`, the decoder passes of each row, are those of the plain reference."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from reference.greedy import rules_for
from reference.jacobi import Sentence, greedy, reference, sentence
from support.builders import Limits, batch, built, collate, decode, demo, source_rows
from support.exact import GRID, METHODS, RAGGED, Flags, name

#: Models whose pass counts lie anywhere between two and greedy's.
TELLING = ("learned_positions", "mbart")
LIMITS = Limits()


@cache
def known(variant: str, row: tuple[int, ...], limits: Limits = LIMITS) -> Sentence:
    """The reference's view of a sentence; kept, because it remembers what it has computed."""
    task, model = demo(torch.float64)[:2] if variant == "demo" else built(variant)
    rules = rules_for(task.target_dictionary, [model], len(row), **limits.reference())
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


@pytest.mark.parametrize("flags", METHODS, ids=name)
@pytest.mark.parametrize("init", ["pad", "bos"])
def test_wholly_wrong_first_guess(init: str, flags: Flags) -> None:
    """Not one guess right at first, greedy's output all the same.

    `<pad>` is never predicted; `</s>`, the start symbol, not before min_len, here the limit.
    """
    task, model = built("mbart")
    limits = Limits(max_len_b=12, min_len=12)
    flags = {**flags, "jacobi_init": init} if flags["decoding"] != "greedy" else flags
    sample = batch(task, RAGGED[:3], seed=5)
    hypos = decode(task, [model], sample, limits, **flags)
    for hypo, row in zip(hypos, source_rows(sample), strict=True):
        x = known("mbart", tuple(row), limits)
        want = reference(x, **flags)
        first = want.passes[0]
        assert all(a != b for a, b in zip(first.guesses[:12], first.predictions, strict=False))
        assert hypo["tokens"].tolist() == greedy(x).tokens
        assert hypo["steps"] == want.num_passes


@pytest.mark.parametrize("flags", METHODS, ids=name)
def test_demo_model(flags: Flags) -> None:
    """A trained model, in float64, because hidden guesses may tie too."""
    task, model, rows = demo(torch.float64)
    limits = Limits(max_len_b=60)
    sample = collate(task, rows[:8])
    hypos = decode(task, [model], sample, limits, **flags)
    for hypo, row in zip(hypos, source_rows(sample), strict=True):
        x = known("demo", tuple(row), limits)
        assert hypo["steps"] == reference(x, **flags).num_passes
