"""A step of a beam search by the native library: that of arrays, and of equal candidates."""

import argparse
import ctypes
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.multiword import reordered

from fairseq_paradec.decoding.beam_output import Results, Written
from fairseq_paradec.engine.native.library import Extended, Step, library
from fairseq_paradec.engine.torch.choices import arrays_of
from fairseq_paradec.methods.multiword_beam import extend
from fairseq_paradec.row import Row
from fairseq_paradec.target_order import TargetOrder
from fairseq_paradec.token_rules import Best


def extended(best: Best, scores: np.ndarray, beam: int, pairs: bool) -> list[list[Any]]:
    """What a step of the library makes of S sentences: ended hypotheses, and those that go on."""
    sentences, width, z, candidates = best.tokens.shape
    found = min(3 * beam, min(2 * beam, width * candidates) * candidates)
    counts = (found, min(beam, found)) if pairs else (z * beam, min(beam, width * candidates))
    step = Step(
        sentences=sentences,
        width=width,
        words=z,
        candidates=candidates,
        beam=beam,
        kept=counts[1],
        end=2,
        scores=scores.ctypes.data,
        tokens=best.tokens.ctypes.data,
        token_scores=best.scores.ctypes.data,
        end_scores=best.ends.ctypes.data,
        pairs=pairs,
    )
    made = [
        (
            np.empty((sentences, count), np.float32),
            np.empty((sentences, count), np.int64),
            np.empty((sentences, count, z), np.int64),
            np.empty((sentences, count, z), np.float32),
        )
        for count in counts
    ]
    where = [Extended(*(part.ctypes.data for part in one)) for one in made]
    assert library().paradec_extend(*map(ctypes.byref, (step, *where))) == 0
    return [
        [
            (parent, *words, total, *scores)
            for total, parent, words, scores in zip(*(part[0].tolist() for part in one))
            if math.isfinite(total)
        ]
        for one in made
    ]


@pytest.mark.parametrize("ends", [(-1.0, -1.0), (1.5, 1.5), (8.0, 8.0), (8.0, -1.0)])
def test_a_step_of_pairs_is_that_of_arrays(ends: tuple[float, float]) -> None:
    """Random scores, also where most pairs or left words end, and the beam needs 3W."""
    task, model = reordered("double_token")
    for seed, beam in enumerate((1, 2, 3, 5)):
        lots = torch.Generator().manual_seed(seed)
        width = beam if seed % 2 else 1
        tables = torch.randn(1, width, 2, 9, generator=lots)
        tables[..., 2] += torch.tensor(ends)
        tables[..., [1, 4]] = -torch.inf
        tables = tables.log_softmax(dim=-1)
        scores = torch.randn(1, width, generator=lots).numpy()
        made = task.build_generator([model], argparse.Namespace(beam=beam)).decoder
        values, tokens = tables.topk(min(made.most_words, 9))
        best = Best(tokens.numpy(), values.numpy(), tables[..., 2].numpy().copy())
        for got, want in zip(
            extended(best, scores, beam, True), made.extend(best, scores), strict=True
        ):
            rows = zip(*(part[0].tolist() for part in want))
            wanted = [(p, *w, s, *v) for s, p, w, v in rows if math.isfinite(s)]
            assert got == [pytest.approx(one, abs=1e-5) for one in wanted]


def test_of_equal_candidates_the_first_is_taken() -> None:
    """Ends before words, then by hypothesis, then by the words' order."""
    tokens = np.array([[[[5, 6, 2]], [[7, 5, 2]]]])
    scores = np.zeros((1, 2), np.float32)
    best = Best(tokens, np.full(tokens.shape, -1, "f4"), np.full((1, 2, 1), -1, "f4"))
    for parts in extend(best, scores, 2, 3):
        order = np.argsort(-parts.scores[0], kind="stable")
        rows = zip(*(part[0][order].tolist() for part in parts), strict=True)
        either = [(p, *w, s, *v) for s, p, w, v in rows if math.isfinite(s)]
        assert either in (
            [(0, 2, -1.0, -1.0), (1, 2, -1.0, -1.0)],
            [(0, 5, -1.0, -1.0), (0, 6, -1.0, -1.0), (1, 7, -1.0, -1.0)],
        )
    ended, alive = extended(best, scores, 3, pairs=False)
    assert ended == [(0, 2, -1.0, -1.0), (1, 2, -1.0, -1.0)]
    assert alive == [(0, 5, -1.0, -1.0), (0, 6, -1.0, -1.0), (1, 7, -1.0, -1.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_steps_candidates_come_from_a_device_in_one_copy_as_they_are(dtype: torch.dtype) -> None:
    lots = torch.Generator().manual_seed(1)
    parts = [
        torch.randn(3, 5, generator=lots, dtype=dtype).masked_fill(torch.eye(3, 5) > 0, -math.inf),
        torch.randint(0, 2**40, (3, 5), generator=lots),
        torch.zeros(3, 0, 2, dtype=dtype),
        torch.randint(0, 50000, (2, 4, 1), generator=lots),
    ]
    for at_once, each in zip(arrays_of(parts, True), arrays_of(parts, False), strict=True):
        assert at_once.dtype == each.dtype and at_once.shape == each.shape
        assert (at_once == each).all()


def test_hypotheses_are_ranked_and_in_natural_order() -> None:
    results = Results(TargetOrder(), 2, True, 1.0, None, False)
    rows = [Row(i, [5, 2], 9) for i in range(5)]
    finished = [
        [
            Written(-4.0, [7] * (i % 4), [-1.0] * (i % 4 + 1), []),
            Written(-0.5, [6], [-0.25] * 2, []),
        ]
        for i in range(5)
    ]
    for i, hypos in enumerate(results.fill(rows, finished, [3] * 5, 2)):
        assert [hypo["tokens"].tolist() for hypo in hypos] == [[6, 2], [7] * (i % 4) + [2]]
        assert [len(hypo["positional_scores"]) for hypo in hypos] == [2, i % 4 + 1]
        assert [float(hypo["score"]) for hypo in hypos] == [-0.25, pytest.approx(-4 / (i % 4 + 1))]
        assert rows[i].tokens == [6, 2] and rows[i].scores == [-0.25] * 2
