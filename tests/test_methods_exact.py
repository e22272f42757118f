"""Every method gives exactly what fairseq's own SequenceGenerator gives at beam size 1."""

from __future__ import annotations

import argparse

import pytest
import torch
from reference.greedy import stock_greedy
from support.builders import (
    Limits,
    batch,
    built,
    collate,
    decode,
    demo,
    sources,
)
from support.exact import (
    INITS,
    METHODS,
    RAGGED,
    Flags,
    check,
    name,
    windows_and_stops,
)


def test_a_generator_decodes_one_batch_after_another() -> None:
    """Nothing of a batch is left in the generator for the next."""
    task, model = built("learned_positions")
    flags = {"decoding": "pgj", "jacobi_init": "ngram", "jacobi_window": "sliding"}
    args = argparse.Namespace(**Limits().flags(), **flags)
    generator = task.build_generator([model], args)
    for seed, lengths in enumerate([(3, 5, 9), (4,), (2, 2, 7, 6, 8)]):
        sample = batch(task, lengths, seed)
        got = task.inference_step(generator, [model], sample)
        want = stock_greedy(task, [model], sample, **Limits().stock())
        assert [row[0]["tokens"].tolist() for row in got] == [
            hypo["tokens"].tolist() for hypo in want
        ]


class TestDemoModel:
    """A trained model and real sentences."""

    #: Enough for every one of its sentences to end by itself.
    limits = Limits(max_len_b=60)

    @pytest.mark.slow
    @pytest.mark.parametrize("flags", METHODS, ids=name)
    def test_ragged_batches(self, flags: Flags) -> None:
        """All sentences, in batches of 40 of very different lengths."""
        task, model, rows = demo()
        assert len(rows) == 100
        for first in range(0, len(rows), 40):
            sample = collate(task, rows[first : first + 40])
            want = check(task, [model], sample, flags, self.limits, max_ties=1)
            lengths = {len(hypo["tokens"]) for hypo in want}
            assert len(lengths) > 5
            assert max(lengths) < 61

    @pytest.mark.parametrize("flags", METHODS, ids=name)
    def test_double_precision(self, flags: Flags) -> None:
        """float64: no ties."""
        task, model, rows = demo(torch.float64)
        check(task, [model], collate(task, rows[:20]), flags, self.limits)

    @pytest.mark.parametrize("flags", METHODS, ids=name)
    def test_one_at_a_time(self, flags: Flags) -> None:
        """Batch size 1, fairseq's default limits."""
        task, model, rows = demo()
        for row in rows[:10]:
            check(task, [model], collate(task, [row]), flags, Limits(max_len_b=200))

    @pytest.mark.parametrize("init", INITS)
    @pytest.mark.parametrize("how", windows_and_stops(), ids=name)
    def test_inits(self, init: str, how: Flags) -> None:
        """Every first guess with every window and stop rule."""
        task, model, rows = demo()
        flags = {"decoding": "hgj", "block_size": 3, "jacobi_init": init, **how}
        check(task, [model], collate(task, rows[:40]), flags, self.limits, max_ties=1)


def test_the_model_is_left_as_it_was() -> None:
    """The user's model decodes under fairseq afterwards exactly as before."""
    task, model = built("default")
    sample = collate(task, sources(task, RAGGED, seed=7))
    before = stock_greedy(task, [model], sample)
    for flags in METHODS:
        decode(task, [model], sample, Limits(), **flags)
    after = stock_greedy(task, [model], sample)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one["tokens"], other["tokens"])
        assert torch.equal(one["positional_scores"], other["positional_scores"])
