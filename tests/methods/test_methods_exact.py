"""Every method gives, on a trained model, what fairseq's own SequenceGenerator gives at beam 1."""

import argparse
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from reference.greedy import stock_greedy
from support.builders import Limits, batch, built, collate, decode, demo
from support.exact import METHODS, RAGGED, Flags, check, name

#: Enough for every sentence of the demo to end by itself.
LIMITS = Limits(max_len_b=60)


@pytest.mark.parametrize("flags", METHODS, ids=name)
def test_threads_may_share_a_generator(flags: Flags) -> None:
    task, model, rows = demo()
    generator = task.build_generator([model], argparse.Namespace(**LIMITS.flags(), **flags))

    def translate(row: torch.Tensor) -> list[int]:
        hypos = task.inference_step(generator, [model], collate(task, [row]))
        return hypos[0][0]["tokens"].tolist()

    wanted = list(map(translate, rows[:12]))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(translate, rows[:12])) == wanted


@functools.cache
def answers() -> list[tuple[Any, Any, Any, Limits, Any]]:
    """Batches of the demo, in double precision and of one row, and what fairseq makes of them."""
    task, model, rows = demo(torch.float64)
    asked = [(task, model, collate(task, rows[:20]), LIMITS)]
    task, model, rows = demo()
    asked += [(task, model, collate(task, [row]), Limits(max_len_b=200)) for row in rows[:5]]
    return [
        (task, model, sample, limits, stock_greedy(task, [model], sample, **limits.stock()))
        for task, model, sample, limits in asked
    ]


@pytest.mark.parametrize("flags", METHODS, ids=name)
def test_no_ties_in_double_precision_nor_one_at_a_time(flags: Flags) -> None:
    for task, model, sample, limits, want in answers():
        check(task, [model], sample, flags, limits, want=want)


def test_the_model_is_left_as_it_was() -> None:
    """The user's model decodes under fairseq afterwards exactly as before."""
    task, model = built("default")
    sample = batch(task, RAGGED, seed=7)
    before = stock_greedy(task, [model], sample)
    for flags in METHODS:
        decode(task, [model], sample, Limits(), **flags)
    for one, other in zip(before, stock_greedy(task, [model], sample), strict=True):
        assert torch.equal(one["positional_scores"], other["positional_scores"])
