"""The depth of a beam's drafts by what passes cost: the choice by hand, and the same outputs."""

import argparse
import logging
from typing import Any

import pytest
import torch
from support.beam_drafts import assert_fairseqs, assert_same, decoder, fairseqs
from support.builders import Limits, batch, built
from support.exact import watched
from support.multiword import PREFIXES

from fairseq_paradec.decoding.depth import BATCHES, DEEPEST, Costs, Depths, choose_depth, steps_kept
from fairseq_paradec.methods import reports
from fairseq_paradec.methods.beam_drafts import BeamAssistedDecoder

#: A plain step, and rounds of 2 and 10 steps: where reading the weights binds, and where
#: arithmetic does.
READING = Costs(1.0, (2.0, 1.7), (10.0, 4.1))
ARITHMETIC = Costs(1.0, (2.0, 4.5), (10.0, 20.0))


def test_the_cheapest_steps_are_chosen() -> None:
    # 1, 1/2 = 0.5 and 2/3 of a second a step.
    assert choose_depth([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == 1
    assert choose_depth([1.0, 1.5, 1.6], [1.0, 1.9, 2.7]) == 2


def test_a_gain_below_two_percent_is_none() -> None:
    assert choose_depth([1.0, 1.97], [1.0, 2.0]) == 0
    assert choose_depth([1.0, 1.96], [1.0, 2.0]) == 1
    assert choose_depth([1.0, 1.0], [1.0, 1.0]) == 0


def test_steps_kept_by_hand() -> None:
    assert steps_kept([0.5] * 3) == [1.0, 1.5, 1.75, 1.875]
    assert steps_kept([1.0, 1.0]) == [1.0, 2.0, 3.0]
    assert steps_kept([0.0, 1.0]) == [1.0, 1.0, 1.0]
    assert steps_kept([0.5, 1.0, 0.5]) == [1.0, 1.5, 2.0, 2.25]


def test_rounds_cost_a_straight_line() -> None:
    """Through both searches with drafts; a draft that ended early leaves one point, or noise.

    Before the first of them it is flat.
    """
    assert READING.rounds(3) == pytest.approx([1.0, 1.7, 1.7, 2.0])
    assert Costs(1.0, (2.0, 3.0), (2.0, 4.0)).rounds(2) == [1.0, 3.0, 3.0]
    assert Costs(1.0, (2.0, 3.0), (4.0, 2.0)).rounds(2) == [1.0, 3.0, 3.0]
    assert len(READING.rounds()) == DEEPEST + 1


@pytest.mark.parametrize(
    ("costs", "rate", "least", "most"),
    [
        (READING, 1.0, DEEPEST, DEEPEST),
        (READING, 0.92, 5, 11),
        (READING, 0.6, 2, 3),
        (READING, 0.1, 0, 0),
        (ARITHMETIC, 1.0, 0, 0),
    ],
)
def test_depth_follows_costs_and_steps_kept(
    costs: Costs, rate: float, least: int, most: int
) -> None:
    assert least <= choose_depth(costs.rounds(), steps_kept([rate] * DEEPEST)) <= most


def test_what_is_observed_changes_the_depth(caplog: pytest.LogCaptureFixture) -> None:
    """Drafts that are all kept lead to the deepest; wrong ones to the plain search, said once."""
    depths = Depths("self_draft --beam 5")
    assert not depths.knows(1)
    depths.learn(1, READING)
    first = depths.choose(1)
    depths.observe([(8, 9)] * 200)
    assert 0 < first < depths.choose(1) == DEEPEST
    with caplog.at_level(logging.INFO):
        depths.observe([(8, 1)] * 20000)
        assert depths.choose(1) == depths.choose(1) == 0
    assert caplog.text.count("the plain search decodes batches of 1,") == 1
    assert depths.knows(1) and not depths.knows(2)
    depths.learn(3, ARITHMETIC)
    assert depths.knows(4) and not depths.knows(5)


def test_the_rate_counts_steps_that_were_tried(caplog: pytest.LogCaptureFixture) -> None:
    """Behind the first wrong one none is: of 4, 2 and 1 steps tried, 4, 1 and 0 are kept."""
    depths = Depths("self_draft --beam 5")
    depths.learn(1, ARITHMETIC)
    with caplog.at_level(logging.INFO):
        depths.observe([(4, 5), (4, 2), (4, 1)] * 10000)
        assert depths.choose(1) == 0
    assert "about 71% of drafted steps" in caplog.text  # 5 of 7


def test_the_rates_are_of_places_in_a_draft(caplog: pytest.LogCaptureFixture) -> None:
    """Where the first step is seldom right and all behind it are, as with a model hardly trained.

    One rate for all places is 0.84, by which drafts of 12 would take 5.5 steps; they take 2.2.
    """
    depths = Depths("self_draft --beam 5")
    depths.observe([(12, 1)] * 9000 + [(12, 13)] * 1000)
    first, *others = depths.rates()
    assert first == pytest.approx(0.1, abs=0.001)
    assert all(0.99 < rate <= 1 for rate in others)
    assert steps_kept(depths.rates())[12] == pytest.approx(2.2, abs=0.01)
    depths.learn(1, READING)
    assert depths.choose(1) == 0


def test_a_place_that_was_never_tried_has_the_rate_of_all() -> None:
    depths = Depths("self_draft --beam 5")
    assert depths.rates() == pytest.approx([11 / 12] * DEEPEST)
    depths.observe([(2, 1)] * 4)  # the first place, four times, and never right
    assert depths.rates()[1:] == pytest.approx([11 / 16] * (DEEPEST - 1))
    assert depths.rates()[0] == pytest.approx(4 * 11 / 16 / 8)


def test_drafts_that_were_not_faster_end(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was expected of them, for this size of batch; both ways decode in turn before."""
    depths = Depths("self_draft --beam 5")
    for size, seconds in ((1, 9.7), (4, 9.9)):
        depths.learn(size, READING)
        for _ in range(BATCHES):
            depth = depths.choose(size)
            assert depth > 0
            depths.took(size, depth, seconds, 10)
            assert depths.choose(size) == 0
            depths.took(size, 0, 20.0, 20)
        depths.took(size, depth, 0.01, 1000)  # no longer counted
        depths.took(size, 0, 1000.0, 1)
    assert depths.choose(1) > 0
    assert "the plain search" not in caplog.text
    with caplog.at_level(logging.INFO):
        assert depths.choose(4) == 0
    assert "the plain search decodes batches of 4," in caplog.text


def native(
    monkeypatch: pytest.MonkeyPatch, min_len: int = 1, **flags: Any
) -> tuple[BeamAssistedDecoder, Any, Any]:
    """A native decoder of a beam of 4."""
    _, model = built("default", torch.float32)
    monkeypatch.setattr(model, "_is_generation_fast", True, raising=False)
    limits = Limits(max_len_b=12, min_len=min_len)
    flags = {"decoding": "self_draft", "engine": "native"} | flags
    found, task, _ = decoder("default", "itself", torch.float32, 4, limits, **flags)
    return found, task, model


def test_outputs_are_fairseqs_at_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at 0, by the plain search; with prefixes, alone and in a batch."""
    found, task, model = native(monkeypatch)
    assert found.depths is not None
    for lengths in ((6,), (3, 7, 5, 2)):
        sample, forced = batch(task, lengths, seed=4), PREFIXES[: len(lengths)]
        want = fairseqs(task, [model], sample, 4, Limits(max_len_b=12), forced)
        for depth in range(DEEPEST + 1):
            monkeypatch.setattr(found.depths, "choose", lambda _, depth=depth: depth)
            rows = watched(task, found, [model], sample, forced)
            hypos = task.inference_step(found, [model], sample, prefix_tokens=forced)
            for got, other, row in zip(hypos, want, rows, strict=True):
                assert_same(got, other)
                assert max(one.num_drafted for one in row.row.passes) <= depth
        assert found.depths.knows(len(lengths))


def test_a_given_block_size_is_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native(monkeypatch, block_size=5)[0].depths is None


def test_a_trace_and_torchs_passes_have_drafts_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their searches run in Python, whose costs are others."""
    for flags, traced in (({"engine": "torch"}, False), ({}, True)):
        found, task, model = native(monkeypatch, min_len=11, **flags)
        found.record_tokens = traced
        rows = watched(task, found, [model], batch(task, (9,), seed=1))
        assert found.depths is not None and not found.depths.knows(1)
        assert rows[0].row.passes[0].num_drafted == 8


def test_searches_are_measured_once_for_a_size_of_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what their drafts keep is counted."""
    found, task, model = native(monkeypatch, min_len=11)
    depths = found.depths
    assert depths is not None
    learnt: list[tuple[int, Costs]] = []
    learn = depths.learn
    monkeypatch.setattr(depths, "learn", lambda *given: learnt.append(given) or learn(*given))
    seen: list[tuple[int, int]] = []
    observe = depths.observe
    monkeypatch.setattr(
        depths, "observe", lambda each: observe(some := list(each)) or seen.extend(some)
    )
    for lengths in ((3, 7, 5), (4, 4, 4, 4), (2, 8, 3)):
        task.inference_step(found, [model], batch(task, lengths, seed=1))
    ((count, costs),) = learnt
    assert count == 3 and costs.step > 0 and costs.few[1] > 0 and costs.many[1] > 0
    assert 1 <= costs.few[0] <= 2 < costs.many[0] <= 10
    assert {depth for depth, _ in seen} >= {2, 10}


def test_batches_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those without, but not the searches that measure."""
    found, task, model = native(monkeypatch, min_len=11)
    assert found.depths is not None
    taken: list[tuple[int, int, float, int]] = []
    monkeypatch.setattr(found.depths, "took", lambda *given: taken.append(given))
    for depth in (0, 3, 5):
        monkeypatch.setattr(found.depths, "choose", lambda _, depth=depth: depth)
        task.inference_step(found, [model], batch(task, (3, 7, 5), seed=1))
    assert [(count, depth) for count, depth, _, _ in taken] == [(3, 0), (3, 3), (3, 5)]
    assert [steps for *_, steps in taken] == [13] * 3
    assert all(0 < seconds < 60 for _, _, seconds, _ in taken)


def test_a_log_complains_of_drafts_that_were_made_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not where the plain search decodes."""
    for depth, complains in ((0, False), (3, True)):
        found, task, model = native(monkeypatch)
        depths = found.depths
        assert depths is not None
        monkeypatch.setattr(depths, "knows", lambda _: True)
        monkeypatch.setattr(depths, "choose", lambda _, depth=depth: depth)
        monkeypatch.setattr(reports, "LEAST", 99.0)
        task.inference_step(found, [model], batch(task, (3, 7, 5), seed=1))
        caplog.clear()
        found.reports.close()
        assert ("next to no drafts are accepted" in caplog.text) == complains


def test_short_limits_are_no_reason_to_fail() -> None:
    """Also not to measure."""
    task, model = built("default", torch.float32)
    for length in (0, 1, 3):
        limits = Limits(max_len_b=length, min_len=0)
        flags = {"decoding": "self_draft", "beam": 3, "nbest": 3, **limits.flags()}
        found = task.build_generator([model], argparse.Namespace(**flags))
        assert_fairseqs(found, task, [model], batch(task, (5, 2), seed=3), 3, limits)
